"""One gateway worker: `python -m gateway.server --fd N …` serves the application on sockets it was handed.

Knows how to run an ASGI application on uvicorn (or granian), on the shared TCP socket and, in one worker, on the Unix
socket of the control plane; drains on SIGTERM. Does not know what the application does, nor who else is running.
"""

import argparse
import asyncio
import contextlib
import gc
import importlib
import math
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, cast

import uvicorn
from msgspec import Struct

from gateway import logs
from gateway.rereading import Rereading, written_now
from gateway.serve_hearing import Beating
from gateway.server_limits import Limits
from gateway.server_listening import Listener
from gateway.server_socket import Socket, protocol
from gateway.settings import Settings, load

CONFIGURATION_ERROR = 78  # EX_CONFIG of sysexits.h: starting again will not help
KEEP_ALIVE = 75  # seconds; longer than the 60 s of the usual load balancers, so that they close first
_BACKLOG = 2_048
_MOST_FILES = 65_536
_SPARE_FILES = 128
_LAST_WORDS = 1.0  # seconds for what is said to clients whose answers are cut
# A thread that writes a batch may keep the interpreter for so many seconds while a request waits (Python's own: 0.005).
_TURN = 0.0005
# Requests make many small objects and no cycles: look for some a tenth as often as Python would.
_COLLECT_AFTER = (7_000, 20, 20)
App = Callable[..., Any]


class Listening(Struct, frozen=True, kw_only=True):
    """Where a worker listens: inherited TCP sockets, and the file of the control plane's Unix socket in one worker.

    `born`: a descriptor into which it writes its process id while it serves (`gateway.serve_hearing`).
    """

    sockets: list[socket.socket]
    admin: Path | None = None
    born: int | None = None


class Worker(uvicorn.Server):
    """uvicorn's server with listeners of our own on `tcp`; a signal it obeyed does not kill the process afterwards."""

    born: int | None = None

    def __init__(self, config: uvicorn.Config, tcp: Sequence[socket.socket]) -> None:
        super().__init__(config)
        self._tcp = tcp

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self._listen()

    def _listen(self) -> None:
        """On the TCP sockets, beside those that uvicorn was given."""
        make: Any = self.config.http_protocol_class

        def connection() -> asyncio.Protocol:
            return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

        self.servers += cast("list[asyncio.Server]", [Listener(sock, connection, _BACKLOG) for sock in self._tcp])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._drain()
        await self._end_others()
        await super().shutdown(sockets=sockets)

    async def _end_others(self) -> None:
        """Whatever else than uvicorn serves."""

    def _drain(self) -> None:
        """The application hears of it before its lifespan ends, for that is after the last answer."""
        if (drain := getattr(self.config.app, "drain", None)) is not None:
            drain()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        del frame
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True

    async def main_loop(self) -> None:
        """Until it is to end."""
        if self.born is not None:
            Beating(self.born)
        await super().main_loop()


class GranianWorker(Worker):
    """granian on the TCP sockets; uvicorn keeps the lifespan, the signals and the control plane's socket."""

    def __init__(self, config: uvicorn.Config, tcp: Sequence[socket.socket], app: App, settings: Settings) -> None:
        super().__init__(config, tcp)
        self._app = app
        self._settings = settings
        self._granians: list[tuple[Any, asyncio.Task[None]]] = []

    def _listen(self) -> None:
        from gateway.server_granian import on_socket  # only who chose it pays for the import

        loop = asyncio.get_running_loop()
        for sock in self._tcp:
            granian = on_socket(self._app, sock, self._settings.server)
            # Part of the server itself: it ends in `shutdown`, before anything that other tasks need.
            self._granians.append((granian, loop.create_task(granian.serve())))

    async def _end_others(self) -> None:
        for granian, _ in self._granians:
            granian.stop()
        for sock in self._tcp:
            sock.close()  # who comes now is refused, or another worker's guest; left open, they would wait in vain
        if not (serving := [task for _, task in self._granians]):
            return
        _, late = await asyncio.wait(serving, timeout=self._settings.server.drain_timeout)
        for granian, task in self._granians:
            if task in late:
                granian.cut()
        await asyncio.wait(serving, timeout=_LAST_WORDS)


def run(app: App, settings: Settings, listening: Listening) -> int:
    """Serve until SIGTERM or SIGINT, drain, return an exit status. The sockets are closed afterwards."""
    _limit_resources()
    admin = [_bind_admin(listening.admin)] if listening.admin is not None else []
    granian = settings.server.server == "granian"
    config = _config(app, settings)
    worker = GranianWorker(config, listening.sockets, app, settings) if granian else Worker(config, listening.sockets)
    worker.born = listening.born
    try:
        worker.run(sockets=admin)
    except SystemExit as stopped:  # uvicorn's way of saying that the application did not start
        return _not_started(app, int(stopped.code or 1))
    finally:
        if listening.admin is not None:
            listening.admin.unlink(missing_ok=True)
    return 0 if worker.started else _not_started(app, 1)


def _not_started(app: App, status: int) -> int:
    """The exit status of an application that did not start: its own word for what another try cannot mend."""
    trouble = getattr(app, "trouble", None)
    return CONFIGURATION_ERROR if trouble is not None and trouble.hopeless else status


def _config(app: App, settings: Settings) -> uvicorn.Config:
    server = settings.server
    limits = Limits(
        header_timeout=server.header_timeout,
        # A backstop behind `read_body`, which tells its client more.
        body_timeout=2 * server.body_timeout,
        connections=max(64, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _SPARE_FILES),
    )
    return uvicorn.Config(
        app,
        http=protocol(limits, getattr(app, "doors", None), getattr(app, "sockets", ())),
        ws=Socket,
        ws_max_size=server.max_body,
        lifespan="on",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=math.ceil(server.drain_timeout),
    )


def _bind_admin(path: Path) -> socket.socket:
    """A Unix socket that only its owner may open: whoever can is an administrator."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path.unlink(missing_ok=True)
    before = os.umask(0o177)  # the file must never exist with wider rights, not even for a moment
    try:
        sock.bind(str(path))
    finally:
        os.umask(before)
    return sock


def _limit_resources() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    # A core dump would hold every secret and every prompt in flight.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def tune() -> None:
    """Set up the interpreter for serving, once everything is imported."""
    sys.setswitchinterval(_TURN)
    gc.set_threshold(*_COLLECT_AFTER)
    gc.enable()  # whoever started this process may have left that until now
    gc.collect()
    gc.freeze()  # what was imported stays: looking through it at every full collection costs milliseconds


def _build(factory: str, settings: Settings, rereading: Rereading) -> App:
    module, _, name = factory.partition(":")
    return getattr(importlib.import_module(module), name)(settings, rereading)


def _rereading(asked: argparse.Namespace) -> Rereading:
    """How this process reads its settings again, and tells the supervisor to have all others do so."""
    supervisor = asked.supervisor
    spread = None if supervisor is None else (lambda: os.kill(supervisor, signal.SIGHUP))
    return Rereading(lambda: written_now(asked.config), spread)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m gateway.server", description=__doc__)
    parser.add_argument("--fd", type=int, action="append", required=True, help="a listening TCP socket, inherited")
    parser.add_argument("--admin", type=Path, help="where to put the control plane's Unix socket")
    parser.add_argument("--born", type=int, help="a descriptor for the process id while this worker serves")
    parser.add_argument("--config", type=Path, help="nearhit.yaml")
    parser.add_argument("--supervisor", type=int, help="process to be told when every worker is to read its settings")
    parser.add_argument(
        "--app", default="gateway.app:create_app", help="module:function of the settings and how to read them again"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """The worker's command line; its exit status is CONFIGURATION_ERROR where starting again cannot help."""
    asked = _arguments(argv)
    try:
        settings = load(asked.config)
        logs.configure_plain(settings.server.log)
        app = _build(asked.app, settings, _rereading(asked))
    except ValueError as error:  # its message names the key
        sys.stderr.write(f"nearhit: {error}\n")
        return CONFIGURATION_ERROR
    tune()
    sockets = [socket.socket(fileno=fd) for fd in asked.fd]
    with contextlib.suppress(KeyboardInterrupt):
        return run(app, settings, Listening(sockets=sockets, admin=asked.admin, born=asked.born))
    return 130


if __name__ == "__main__":
    sys.exit(main())
