"""The deterministic upstream as a process of its own (`nearhit scripted`): HTTP, keep-alive, counters and a bill.

Knows: HTTP/1.1 by httptools, OpenAI's paths. Does not know: what is answered (`scripted_answers`) or when
(`scripted_calls`), batches (`scripted_batches`). It is not a model: every word comes from a hash of the prompt.
"""

import asyncio
import os
import re
import signal
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, cast

import httptools
import uvloop

from gateway.call import Operation
from gateway.ids import uuid7
from gateway.scripted_batches import Asked, ScriptedBatches, Told
from gateway.scripted_calls import Books, OngoingCall, Options, Wire, response, text_response

_OPERATIONS: dict[bytes, Operation] = {
    b"/v1/chat/completions": "chat",
    b"/chat/completions": "chat",
    b"/v1/completions": "completion",
    b"/completions": "completion",
    b"/v1/embeddings": "embedding",
    b"/embeddings": "embedding",
}
# What has batches of its own there answers single requests under the same address.
_SERVICE = re.compile(rb"^/(?:together|xai|fireworks/inference)(?=/v1/)")
_LARGEST_BODY = 64 << 20
_LARGEST_HEAD = 64 << 10
_MOST_WAITING = 16


class _Ready(NamedTuple):
    """A request that has arrived whole."""

    method: str
    path: bytes
    query: bytes
    attempt: str
    body: bytes
    keep: bool


class _Connection(asyncio.Protocol):
    """One client. Pipelined requests wait for their turn, a few of them."""

    def __init__(self, books: Books, batches: ScriptedBatches, alive: set["_Connection"]) -> None:
        self._books = books
        self._batches = batches
        self._alive = alive
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[_Ready] = deque()
        self._call: OngoingCall | None = None
        self._busy = False
        self._paused = False
        self._keep = True
        self._wire = Wire(self._write, lambda: self._paused, self._over)
        self._reset()

    def _reset(self) -> None:
        self._url = b""
        self._attempt = ""
        self._body: list[bytes] = []
        self._size = 0
        self._head_size = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._alive.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._alive.discard(self)
        self._waiting.clear()
        if self._call is not None:
            self._call.gone()
            self._call = None

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def cut(self) -> None:
        """End what runs here, as if the client had left."""
        self.connection_lost(None)
        self._transport.abort()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._call is not None:
            self._call.resume()

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._bounded(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._bounded(len(name) + len(value))
        lowered = name.lower()
        if lowered == b"x-request-id":
            self._attempt = value.decode("latin-1")
        elif lowered == b"expect":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size > _LARGEST_BODY:
            self._transport.close()
            return
        self._body.append(body)

    def on_message_complete(self) -> None:
        path, _, query = self._url.partition(b"?")
        path = path.rstrip(b"/") if len(path) > 1 else path
        method = self._parser.get_method().decode("latin-1")
        ready = _Ready(method, path, query, self._attempt, b"".join(self._body), self._parser.should_keep_alive())
        self._reset()
        if not self._busy:
            self._serve(ready)
        elif len(self._waiting) < _MOST_WAITING:
            self._waiting.append(ready)
        else:
            self._transport.close()

    def _bounded(self, size: int) -> None:
        self._head_size += size
        if self._head_size > _LARGEST_HEAD:
            self._transport.close()

    def _serve(self, ready: _Ready) -> None:
        self._busy = True
        self._keep = ready.keep
        operation = _OPERATIONS.get(_SERVICE.sub(b"", ready.path))
        if operation is not None:
            self._call = OngoingCall(self._books, self._wire, operation, ready.attempt)
            self._call.start(ready.body)
            return
        asked = Asked(ready.method, ready.path.decode("latin-1"), ready.query.decode("latin-1"), ready.body)
        told = self._batches.answer(asked) or Told(self._other(ready.path))
        self._write(told.raw[: len(told.raw) // 2] if told.cut else told.raw)
        self._over(keep=not told.cut)

    def _other(self, path: bytes) -> bytes:
        if path == b"/stats":
            return response(200, self._books.counters)
        if path == b"/metrics":
            running = max(0, self._books.counters.in_flight)
            return text_response(b"vllm:num_requests_running %d\nvllm:num_requests_waiting 0\n" % running)
        if path in (b"/v1/models", b"/models"):
            model = {"id": "scripted", "object": "model", "created": 0, "owned_by": "nearhit"}
            return response(200, {"object": "list", "data": [model]})
        error = {"message": "no such path at the scripted upstream", "type": "invalid_request_error"}
        return response(404, {"error": {**error, "param": None, "code": None}})

    def _write(self, raw: bytes) -> None:
        self._transport.write(raw)

    def _over(self, keep: bool) -> None:
        self._call = None
        self._busy = False
        if not keep or not self._keep:
            self._transport.close()
        elif self._waiting:
            self._serve(self._waiting.popleft())


class ScriptedServer:
    """Listening inside a running event loop. `port=0` takes a free one; `start` returns it."""

    def __init__(self, options: Options, bill: Path | None = None) -> None:
        """Raises OSError when the bill cannot be written."""
        self._file = None if bill is None else os.open(bill, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.books = Books(options, self._file, uuid7()[-12:])
        self.batches = ScriptedBatches(self.books)
        self._server: asyncio.Server | None = None
        self._alive: set[_Connection] = set()

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self.books, self.batches, self._alive), host, port, backlog=2_048
        )
        bound = int(self._server.sockets[0].getsockname()[1])
        self.books.address = f"http://{host}:{bound}"
        return bound

    async def close(self) -> None:
        """Stop listening, cut what runs (each such call still gets its line in the bill), close the bill."""
        if self._server is not None:
            self._server.close()
        self.batches.close()
        for connection in list(self._alive):
            connection.cut()
        if self._file is not None:
            os.close(self._file)
            self._file = None


def run(host: str, port: int, bill: Path | None, options: Options, *, announce: Callable[[str], object]) -> None:
    """Serve until SIGINT or SIGTERM. `announce` is told the base URL once the port is open."""
    uvloop.run(_serve(host, port, ScriptedServer(options, bill), announce))


async def _serve(host: str, port: int, server: ScriptedServer, announce: Callable[[str], object]) -> None:
    stop = asyncio.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    bound = await server.start(host, port)
    announce(f"http://{host}:{bound}/v1")
    await stop.wait()
    await server.close()
