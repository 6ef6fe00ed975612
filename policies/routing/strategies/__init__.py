"""One file per strategy, its name is the strategy's. `policies.routing` says what is in such a file."""
