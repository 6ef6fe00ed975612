"""The engine's own process: `python -m engine.process --model demo --socket PATH`.

Knows: a Unix socket, its clients, the core. Does not know: text, tokenizers, HTTP.

One thread does everything in turn: read what clients sent, compute a step, write what it produced. So a heartbeat is
proof that steps still turn, an abort is seen at the next step, and nothing needs a lock. The socket listens before the
model is loaded; clients connect at once and get `Hello` when requests can be served.
"""

import argparse
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

from engine.api import EngineError, InvalidRequest, Overloaded
from engine.core import EngineCore
from engine.frames import (
    PROTOCOL,
    Cancel,
    FrameBuffer,
    FrameError,
    Hello,
    Output,
    Refusal,
    Step,
    Submit,
    pack,
    read_for_engine,
)
from engine.launch import Options, launch
from engine.quant import KINDS, KV_KINDS

_log = logging.getLogger(__name__)
_HEARTBEAT = 1.0  # seconds between frames to a client for whom there is nothing
_IDLE = 0.25  # seconds between turns when there is nothing to do
_READ = 256 * 1024
_MAX_UNSENT = 64 * 1024 * 1024  # a client that reads nothing for so long is gone


class Client:
    """One connection. `unsent` waits for the socket to take it; `handles` are this client's running requests."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.buffer = FrameBuffer()
        self.unsent = bytearray()
        self.handles: set[int] = set()
        self.outputs: list[Output] = []
        self.refusals: list[Refusal] = []
        self.told = 0.0

    def flush(self) -> bool:
        """Write what the socket takes now. False: the other side is gone."""
        try:
            while self.unsent:
                del self.unsent[: self.socket.send(self.unsent)]
        except BlockingIOError:
            pass
        except OSError:
            return False
        return len(self.unsent) <= _MAX_UNSENT


class Server:
    """Moves frames between clients and the core. `run` returns when `stop` was called."""

    def __init__(
        self,
        core: EngineCore,
        listener: socket.socket,
        monotonic: Callable[[], float],
        orphaned: Callable[[], bool] = lambda: False,
    ) -> None:
        self._core = core
        self._orphaned = orphaned
        self._monotonic = monotonic
        self._selector = selectors.DefaultSelector()
        self._listener = listener
        self._clients: dict[int, Client] = {}
        self._stopping = False
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)

    def stop(self) -> None:
        """End after this turn: everything in flight is aborted and told so."""
        self._stopping = True

    def run(self) -> None:
        while not self._stopping:
            self._receive(0.0 if self._core.busy else _IDLE)
            if self._orphaned():
                _log.warning("the process that started this one is gone; ending")
                break
            for ended in self._core.step():
                self._collect(ended.key, ended.output)
            self._send()
        for client in list(self._clients.values()):
            for handle in list(client.handles):
                self._cancel(client, Cancel(handle=handle, reason="abort"))
        self._send()
        for client in list(self._clients.values()):
            self._drop(client)
        self._selector.close()

    def _receive(self, wait: float) -> None:
        for key, _ in self._selector.select(wait):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fd in self._clients:
                self._read(self._clients[key.fd])

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:  # the client is gone already, or this process has too many files open
            _log.warning("could not accept a client: %s", error)
            return
        client = Client(connection)
        client.unsent += pack(Hello(protocol=PROTOCOL, info=self._core.info()))
        self._clients[connection.fileno()] = client
        self._selector.register(connection, selectors.EVENT_READ)

    def _read(self, client: Client) -> None:
        try:
            data = client.socket.recv(_READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(client)
            return
        try:
            for payload in client.buffer.feed(data):
                message = read_for_engine(payload)
                if isinstance(message, Submit):
                    self._submit(client, message)
                else:
                    self._cancel(client, message)
        except FrameError as error:
            _log.error("a client sent what is no frame, closing it: %s", error)
            self._drop(client)

    def _submit(self, client: Client, request: Submit) -> None:
        handle = request.handle
        try:
            self._core.submit((client.socket.fileno(), handle), request)
        except Overloaded as error:
            refusal = Refusal(handle=handle, kind="overloaded", message=str(error), retry_after=error.retry_after)
        except InvalidRequest as error:
            refusal = Refusal(handle=handle, kind="invalid", message=str(error), param=error.param, code=error.code)
        else:
            client.handles.add(handle)
            return
        client.refusals.append(refusal)

    def _cancel(self, client: Client, message: Cancel) -> None:
        key = (client.socket.fileno(), message.handle)
        output = self._core.cancel(key, message.reason)
        if output is not None:
            self._collect(key, output)

    def _collect(self, key: object, output: Output) -> None:
        assert isinstance(key, tuple)
        fd, handle = key
        client = self._clients[fd]
        output.handle = handle
        client.outputs.append(output)
        if output.finish is not None:
            client.handles.discard(handle)

    def _send(self) -> None:
        now = self._monotonic()
        stats = self._core.stats()
        for client in list(self._clients.values()):
            if client.outputs or client.refusals or now - client.told >= _HEARTBEAT:
                client.unsent += pack(Step(outputs=client.outputs, refusals=client.refusals, stats=stats))
                client.outputs, client.refusals, client.told = [], [], now
            if not client.flush():
                self._drop(client)

    def _drop(self, client: Client) -> None:
        """Close a connection; what it asked for has no reader any more and ends."""
        fd = client.socket.fileno()
        for handle in client.handles:
            self._core.cancel((fd, handle), "abort")
        self._selector.unregister(client.socket)
        del self._clients[fd]
        client.socket.close()


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


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m engine.process", description="The engine process.")
    parser.add_argument("--model", required=True, help="demo, tiny-random:FAMILY or a model folder")
    parser.add_argument("--socket", required=True, type=Path)
    parser.add_argument("--threads", type=int, default=None, help="torch threads; default: by the model's size")
    parser.add_argument("--max-queue", type=int, default=256, help="requests that may wait")
    parser.add_argument("--max-sequences", type=int, default=32, help="requests that run at once")
    parser.add_argument("--context", type=int, default=None, help="shorten the model's window")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--quant", choices=KINDS, default="none", help="weights in fewer bits")
    parser.add_argument("--kv-dtype", choices=KV_KINDS, default="auto", help="type keys and values are kept in")
    parser.add_argument("--speculate", default="predicted", help="off, predicted, ngram, or a smaller model")
    parser.add_argument("--draft-tokens", type=int, default=4, help="guesses per step and request")
    parser.add_argument(
        "--parent", type=int, default=None, help="process id; end when it is not this one's parent any more"
    )
    parser.add_argument("--memory-mib", type=int, default=None, help="for keys and values; default: a quarter of RAM")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Load, serve until SIGTERM or SIGINT. Exit code 1 when the model cannot be loaded; why is in the log."""
    given = _arguments(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        listener = listen(given.socket)
        core = launch(
            given.model,
            Options(
                threads=given.threads,
                queue=given.max_queue,
                sequences=given.max_sequences,
                context=given.context,
                dtype=given.dtype,
                quant=given.quant,
                kv_dtype=given.kv_dtype,
                speculate=given.speculate,
                draft_tokens=given.draft_tokens,
                memory=None if given.memory_mib is None else given.memory_mib * 2**20,
            ),
            monotonic=time.monotonic,
        )
    except (EngineError, OSError) as error:
        _log.error("cannot serve %s: %s", given.model, error)
        return 1
    server = Server(core, listener, time.monotonic, lambda: given.parent not in (None, os.getppid()))

    def end(_number: int, _frame: FrameType | None) -> None:
        server.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    server.run()
    given.socket.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
