"""Processes of the gateway as a test starts, asks and ends them.

Run as a script it is a supervisor like that of `nearhit serve` whose workers serve the small application of `edge_rig`
and whose encoder is a process that does nothing: `python -m tests.flow.edge_process`.
"""

import asyncio
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from gateway import serve
from gateway.serve_child import Plan, module_command
from gateway.serve_home import leave_first_key
from gateway.settings import environment
from tests.flow.edge_rig import Answer, ask

APP = "tests.flow.edge_rig:create"
ROOT = Path(__file__).parents[2]


def spawn(
    arguments: list[str], home: Path, variables: dict[str, str], fds: tuple[int, ...] = ()
) -> subprocess.Popen[str]:
    """A Python process with `NEARHIT_HOME` and the settings in `variables`; stdout and stderr together."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        env=environment() | {"NEARHIT_HOME": str(home), "NEARHIT_SERVER__DRAIN_TIMEOUT": "5"} | variables,
        cwd=ROOT,
        pass_fds=fds,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


@contextmanager
def ending(process: subprocess.Popen[str]) -> Generator[subprocess.Popen[str], None, None]:
    """Nothing outlives the test, whatever becomes of it."""
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(60)
                except subprocess.TimeoutExpired:
                    process.kill()


@contextmanager
def worker(home: Path, **variables: str) -> Generator[tuple[subprocess.Popen[str], int], None, None]:
    """`python -m gateway.server` on a socket of ours, and its port."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as sock:
        port, fd = sock.getsockname()[1], sock.fileno()
        arguments = ["-m", "gateway.server", "--fd", str(fd), "--admin", str(home / "admin.sock"), "--app", APP]
        process = spawn(arguments, home, variables, (fd,))
    with ending(process):  # the port is the worker's alone by now, and closed when it closes it
        yield process, port


async def ask_patiently(
    port: int, request: bytes, process: subprocess.Popen[str] | None = None, *, within: float = 30.0
) -> Answer:
    """As `ask`, while the process behind the port may still be starting; what it said is told when it has ended."""
    until = time.monotonic() + within
    while True:
        try:
            return await ask(port, request)
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            if process is not None and process.poll() is not None:
                raise AssertionError(process.communicate()[0]) from None
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.1)


def _with_the_small_application(plan: Plan) -> Plan:
    if plan.kind == "worker":
        return replace(plan, command=[*plan.command, "--app", APP])
    return replace(plan, command=module_command("tests.flow.idle"))


def main() -> int:
    real = serve.plans_for

    def plans_for(started: serve.Started, chosen: dict[str, object]) -> list[Plan]:
        leave_first_key(started.settings.home, "sk-nh-first")
        return [_with_the_small_application(plan) for plan in real(started, chosen)]

    serve.plans_for = plans_for
    return serve.run()


if __name__ == "__main__":
    sys.exit(main())
