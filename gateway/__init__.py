"""nearhit's gateway: HTTP, providers, ledger, database, telemetry, command line and pages."""

__version__ = "0.1.0"
