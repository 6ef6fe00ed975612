"""Real servers behind the gateway: `python -m tests.servers`."""
