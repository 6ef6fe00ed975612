"""`nearhit serve` and `nearhit demo`."""

from pathlib import Path
from typing import Literal

from gateway.cli import show

_LASTING = {f"NEARHIT_{name}" for name in ("DATABASE", "REDIS", "CACHE__STORE", "SERVER__WORKERS", "EXPORTS")}


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


def demo(*, port: int = 8080) -> int:
    """Run the gateway in a throw-away folder: nothing is left behind when it ends.

    It reads no nearhit.yaml, and neither database nor Redis of the environment: those would keep what it does.

    Parameters
    ----------
    port
        Port to listen on.
    """
    import signal
    import subprocess
    import tempfile

    from gateway.serve_child import python
    from gateway.settings import environment

    with tempfile.TemporaryDirectory(prefix="nearhit-demo-") as folder:
        show.line(f"nearhit: everything this demo writes is in {folder} and goes with it")
        given = environment().items()
        kept = {name: value for name, value in given if name.upper().removesuffix("_FILE") not in _LASTING}
        variables = kept | {"NEARHIT_HOME": folder, "NEARHIT_SERVER__PORT": str(port)}
        child = subprocess.Popen([*python(), "-m", "gateway.serve"], env=variables, cwd=folder)  # noqa: S603 - our own module
        signal.signal(signal.SIGTERM, lambda number, _: child.send_signal(number))
        while True:
            try:
                return child.wait()
            except KeyboardInterrupt:
                continue  # the terminal sent it to the child as well, which drains
