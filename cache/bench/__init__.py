"""Measurements of the reuse decision over labelled data: streams of requests, and pairs of texts. No gateway needed."""
