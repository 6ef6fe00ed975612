"""`nearhit serve` and `nearhit demo`."""

from pathlib import Path
from typing import Literal

from gateway.cli import show


def serve(
    *,
    config: Path | None = None,
    host: str | None = None,
    port: int | None = None,
    workers: int | None = None,
    server: Literal["uvicorn", "granian"] | None = None,
) -> int:
    """Run the gateway until Ctrl-C or SIGTERM, then finish what was begun.

    Parameters
    ----------
    config
        Configuration file (default: ./nearhit.yaml when it is there).
    host
        Address to listen on (default 127.0.0.1).
    port
        Port to listen on (default 8080).
    workers
        Gateway processes; more than one needs PostgreSQL, and Redis for the cache.
    server
        HTTP server.
    """
    from gateway.serve import run

    return run(config, host=host, port=port, workers=workers, server=server)
