"""Batches: a file of requests, run at low priority within a day, each exactly as if it had come alone."""
