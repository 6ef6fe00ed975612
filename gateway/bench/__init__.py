"""Measuring the gateway from outside, as processes on one machine. Nothing here runs inside a gateway."""
