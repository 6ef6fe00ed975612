"""The engine's own process: `python -m engine.process --model demo --socket PATH`.

Knows: a Unix socket, its clients, the core. Does not know: text, tokenizers, HTTP.

One thread does everything in turn: read what clients sent, compute a step, write what it produced. So a heartbeat is
proof that steps still turn, an abort is seen at the next step, and nothing needs a lock. The socket listens before the
model is loaded; clients connect at once and get `Hello` when requests can be served.
"""

import argparse
import contextlib
import logging
import os
import selectors
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from msgspec.structs import replace

from engine import options
from engine.api import EngineError, EngineFailed, EngineStats, InvalidRequest, Overloaded
from engine.connection import Connection
from engine.core import EngineCore
from engine.frames import (
    PROTOCOL,
    Cancel,
    Export,
    Failed,
    FrameError,
    Handed,
    Hello,
    Import,
    Output,
    Refusal,
    Release,
    Rest,
    Submit,
    ToEngine,
    pack,
)
from engine.handover import Held, take
from engine.meter import Meter, Objective
from engine.resident import Resident

_log = logging.getLogger(__name__)
_HEARTBEAT = 1.0  # seconds between frames to a client for whom there is nothing
CANNOT_LOAD = 78  # exit status (EX_CONFIG): starting it again with the same files will not help
_LAST_WORDS = 1.0  # seconds in which a process that cannot serve tells why
_IDLE = 0.25  # seconds between turns when there is nothing to do


class Server:
    """Moves frames between clients and the core. `run` returns when `stop` was called."""

    def __init__(
        self,
        resident: Resident,
        listener: socket.socket,
        meter: Meter,
        monotonic: Callable[[], float],
        orphaned: Callable[[], bool] = lambda: False,
    ) -> None:
        self._resident = resident
        self._meter = meter
        self._orphaned = orphaned
        self._monotonic = monotonic
        self._selector = selectors.DefaultSelector()
        self._listener = listener
        self._clients: dict[int, Connection] = {}
        self._stopping = False
        self._worked = False  # since the books were looked at
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)

    def stop(self) -> None:
        """End after this turn: everything in flight is aborted and told so."""
        self._stopping = True

    def run(self) -> None:
        """Raises EngineError when a sleeping model cannot be woken any more, a part of it or of its cache is lost."""
        while not self._stopping:
            if not self._receive(0.0 if self._resident.busy else _IDLE):
                self._look_at_the_books()
                self._resident.check()
            if self._orphaned():
                _log.warning("the process that started this one is gone; ending")
                break
            self._step()
            self._send()
            if self._resident.rest_if_idle():
                self._send(force=True)
        for client in list(self._clients.values()):
            for handle in list(client.handles):
                self._cancel(client, Cancel(handle=handle, reason="abort"))
        self._send()
        for client in list(self._clients.values()):
            self._drop(client)
        self._selector.close()

    def _step(self) -> None:
        core = self._resident.core
        if core is None or not core.busy:
            return
        began, self._worked = self._monotonic(), True
        ended = core.step()
        now = self._monotonic()
        self._meter.stepped(now - began)
        for one in ended:
            self._collect(one.key, one.output, now)

    def _look_at_the_books(self) -> None:
        """Once after work, when there is none and nobody asks: a lost block would be missing until the next start.

        Raises EngineFailed.
        """
        core = self._resident.core
        if core is not None and self._worked and not core.busy:
            self._worked = False
            try:
                core.check()
            except AssertionError as error:
                raise EngineFailed(f"The books of the cache do not agree: {error}") from error

    def _receive(self, wait: float) -> bool:
        """Whether there was anything."""
        found = self._selector.select(wait)
        for key, events in found:
            if key.fileobj is self._listener:
                self._accept()
            elif key.fd in self._clients and events & selectors.EVENT_READ:
                self._read(self._clients[key.fd])
        return bool(found)

    def _accept(self) -> None:
        try:
            connected, _ = self._listener.accept()
        except OSError as error:  # the client is gone already, or this process has too many files open
            _log.warning("could not accept a client: %s", error)
            return
        client = Connection(connected, Hello(protocol=PROTOCOL, info=self._resident.info))
        self._clients[client.fd] = client
        self._selector.register(connected, client.interest)

    def _read(self, client: Connection) -> None:
        try:
            for message in client.read():
                if isinstance(message, Submit | Export | Import):
                    self._awake()
                if self._clients.get(client.fd) is not client:
                    return  # everybody was told that a sleeper wakes, and this one had left
                self._heed(client, message)
        except FrameError as error:
            _log.error("a client sent what is no frame, closing it: %s", error)
            self._drop(client)
        except OSError:
            self._drop(client)

    def _heed(self, client: Connection, message: ToEngine) -> None:
        match message:
            case Submit():
                self._submit(client, message)
            case Cancel():
                self._cancel(client, message)
            case Rest():
                self._rest(message)
            case Export():
                held = Held(self._awake(), message.tokens, message.salt)
                client.held[message.handle] = held
                client.hand(Handed(handle=message.handle, blocks=held.blocks, path=held.path))
            case Import():
                blocks = take(self._awake(), message.tokens, message.salt, message.path)
                client.hand(Handed(handle=message.handle, blocks=blocks))
            case Release():
                client.release(message.handle)

    def _submit(self, client: Connection, request: Submit) -> None:
        handle = request.handle
        try:
            self._awake().submit((client.fd, handle), request)
        except Overloaded as error:
            refusal = Refusal(handle=handle, kind="overloaded", message=str(error), retry_after=error.retry_after)
        except InvalidRequest as error:
            refusal = Refusal(handle=handle, kind="invalid", message=str(error), param=error.param, code=error.code)
        else:
            client.handles.add(handle)
            return
        self._meter.figures.refused += 1
        client.refuse(refusal)

    def _awake(self) -> EngineCore:
        if self._resident.sleeping:  # this takes a while: who waits must not think that steps have stopped
            self._send(self._stats("waking"), force=True)
        return self._resident.wake()

    def _rest(self, message: Rest) -> None:
        if message.level == 0:
            self._awake()
        else:
            self._resident.rest(message.level)
        self._send(force=True)

    def _cancel(self, client: Connection, message: Cancel) -> None:
        key = (client.fd, message.handle)
        core = self._resident.core
        output = None if core is None else core.cancel(key, message.reason)
        if output is not None:
            self._collect(key, output, self._monotonic())

    def _collect(self, key: object, output: Output, now: float) -> None:
        assert isinstance(key, tuple)
        fd, handle = key
        output.handle = handle
        self._meter.saw(key, output, now)
        self._clients[fd].add(output)

    def _stats(self, loading: str = "") -> EngineStats:
        core = self._resident.core
        return replace(
            EngineStats(ready=True) if core is None else core.stats(),
            loading=loading,
            step_p50_ms=self._meter.step_p50 * 1000,
            sleeping=self._resident.sleeping,
            wake_ms=self._resident.wake_ms,
        )

    def _send(self, stats: EngineStats | None = None, *, force: bool = False) -> None:
        now = self._monotonic()
        for client in list(self._clients.values()):
            count = now - client.counted >= _HEARTBEAT
            try:
                if count or force or client.waiting:
                    if count:
                        self._meter.settle()
                    stats = stats or self._stats()
                    client.send(stats, now, self._meter.figures if count else None)
                else:
                    client.flush()
            except OSError:
                self._drop(client)
                continue
            if self._selector.get_key(client.socket).events != client.interest:
                self._selector.modify(client.socket, client.interest)

    def _drop(self, client: Connection) -> None:
        """Close a connection; what it asked for has no reader any more and ends."""
        fd = client.fd
        if self._clients.pop(fd, None) is None:
            return  # it was gone already
        for handle in client.handles:
            if (core := self._resident.core) is not None:
                output = core.cancel((fd, handle), "abort")
                if output is not None:
                    self._meter.saw((fd, handle), output, self._monotonic())
        self._selector.unregister(client.socket)
        client.close()


def listen(path: Path) -> socket.socket:
    """A listening socket that only this user may use. What is left of an earlier process is removed."""
    if path.exists() and stat.S_ISSOCK(path.stat().st_mode):
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    listener.listen(64)
    return listener


def tell_why(listener: socket.socket, reason: str) -> None:
    """To everybody who connects within a second or has connected: this process cannot serve.

    Then it ends, however many come again and again.
    """
    end = time.monotonic() + _LAST_WORDS
    with contextlib.suppress(TimeoutError, OSError):
        while (left := end - time.monotonic()) > 0:
            listener.settimeout(left)
            connected, _ = listener.accept()
            with connected, contextlib.suppress(OSError):
                connected.sendall(pack(Failed(reason=reason)))
                connected.shutdown(socket.SHUT_WR)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m engine.process", description="The engine process.")
    parser.add_argument("--model", required=True, help="demo, tiny-random:FAMILY or a model folder")
    parser.add_argument("--socket", required=True, type=Path)
    options.add(parser)
    parser.add_argument(
        "--parent", type=int, default=None, help="process id; end when it is not this one's parent any more"
    )
    parser.add_argument("--sleep-after", type=float, default=None, help="idle seconds after which the model sleeps")
    parser.add_argument("--sleep-level", type=int, choices=(1, 2), default=1, help="2: drop the weights too")
    parser.add_argument("--slo-ttft-ms", type=float, default=Objective().first_ms, help="what goodput counts by")
    parser.add_argument("--slo-tpot-ms", type=float, default=Objective().each_ms)
    found = parser.parse_args(argv)
    try:
        found.options = options.given(found)
    except ValueError as error:
        parser.error(str(error))
    return found


def main(argv: list[str] | None = None) -> int:
    """Load, serve until SIGTERM or SIGINT. Exit code 78 when the model cannot be loaded: clients are told why."""
    given = _arguments(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        listener = listen(given.socket)
    except OSError as error:
        _log.error("cannot listen at %s: %s", given.socket, error)
        return 1
    own = given.socket.stat().st_ino
    try:
        resident = Resident(
            given.model,
            given.options,
            monotonic=time.monotonic,
            idle_s=given.sleep_after,
            level=given.sleep_level,
        )
    except EngineError as error:
        _log.error("cannot serve %s: %s", given.model, error)
        tell_why(listener, str(error))
        return CANNOT_LOAD
    except OSError as error:
        _log.error("cannot serve %s: %s", given.model, error)
        return 1
    meter = Meter(Objective(first_ms=given.slo_ttft_ms, each_ms=given.slo_tpot_ms))
    server = Server(resident, listener, meter, time.monotonic, lambda: given.parent not in (None, os.getppid()))

    def end(_number: int, _frame: FrameType | None) -> None:
        server.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    try:
        server.run()
        with contextlib.suppress(RuntimeError, EngineFailed):  # a follower is gone already
            resident.rest(2)  # processes that hold shares of the model end with it, in peace
    except EngineError as error:
        _log.error("cannot go on serving %s: %s", given.model, error)
        return 1
    finally:
        with contextlib.suppress(FileNotFoundError):
            if given.socket.stat().st_ino == own:  # else another process listens there by now
                given.socket.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
