"""Makes the shipped prior of the reuse boundary from labelled data, offline: `python -m cache.training`."""
