"""One HTTP/1.1 connection to an upstream and the exchange that runs on it, on asyncio and httptools.

Knows: responses byte by byte, their three ways to end, back-pressure, timeouts. Does not know: where connections come
from or go back to (`gateway.transport.direct`), what the bytes mean.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import cast

import httptools

from gateway.transport import BrokenOff, TimedOut, TransportError

LARGEST_HEAD = 64 << 10
# Above the first the peer is told to wait, below the second it may go on.
_BUFFERED_HIGH = 256 << 10
_BUFFERED_LOW = 64 << 10
_BODILESS = (204, 304)
_name_of = itemgetter(0)


class Exchange:
    """One request's response. Made by its connection; after `close` it is finished with, the connection is not.

    `raw`: its headers as they came.
    """

    __slots__ = ("_connection", "_error", "_pieces", "_size", "_timer", "_until", "_waiter", "ended", "raw", "status")

    def __init__(self, connection: "Connection") -> None:
        self.status = 0
        self.ended = False
        self._connection: Connection | None = connection
        self.raw: list[tuple[bytes, bytes]] = []
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._error: TransportError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._until = 0.0

    @property
    def headers(self) -> Mapping[str, str]:
        """Lower-case names; of several headers of one name the last."""
        return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in self.raw}

    async def head(self, until: float) -> None:
        """Wait for the status and headers, until a moment of the loop's clock."""
        while not self.status and self._error is None:
            await self._wait(until)
        if self._error is not None and not self.status:
            raise self._error

    async def piece(self, timeout: float) -> bytes:
        until = 0.0
        while not self._pieces:
            if self._error is not None:
                raise self._error
            if self.ended:
                return b""
            connection = self._alive()
            until = until or connection.loop.time() + timeout
            await self._wait(until)
        return self._taken()

    async def whole(self, limit: int, timeout: float) -> bytes:
        until = 0.0
        read: list[bytes] = []
        size = 0
        while True:
            if self._pieces:
                size += self._size
                if size > limit:
                    raise BrokenOff(f"the answer is longer than {limit} bytes")
                read.append(self._taken())
            if self._error is not None:
                raise self._error
            if self.ended:
                return read[0] if len(read) == 1 else b"".join(read)
            connection = self._alive()
            until = until or connection.loop.time() + timeout
            await self._wait(until)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if connection is not None:
            connection.finished(self)

    def arrived(self, data: bytes) -> None:
        self._pieces.append(data)
        self._size += len(data)
        if self._size > _BUFFERED_HIGH and self._connection is not None:
            self._connection.hold_back()
        self.wake()

    def fail(self, error: TransportError) -> None:
        if not self.ended and self._error is None:
            self._error = error
            self.wake()

    def wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _alive(self) -> "Connection":
        if self._connection is None:
            raise BrokenOff("the exchange is closed")
        return self._connection

    def _taken(self) -> bytes:
        pieces = self._pieces
        data = pieces.popleft() if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        if self._size > _BUFFERED_LOW and self._connection is not None:
            self._connection.go_on()
        self._size = 0
        return data

    async def _wait(self, until: float) -> None:
        """Until something arrives. One timer serves many waits: it is moved only when it fires too early."""
        connection = self._alive()
        self._until = until
        if self._timer is None or self._timer.when() > until:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = connection.loop.call_at(until, self._late)
        self._waiter = connection.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _late(self) -> None:
        self._timer = None
        connection, waiter = self._connection, self._waiter
        if connection is None or waiter is None or waiter.done():
            # Nobody waits now; the next wait sets its own timer.
            return
        if connection.loop.time() < self._until:
            self._timer = connection.loop.call_at(self._until, self._late)
            return
        self.fail(TimedOut("nothing came in time"))


class Connection(asyncio.Protocol):
    """`idle(connection)` is called when it may serve another request, `lost(connection)` when it is gone."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        idle: Callable[["Connection"], None],
        lost: Callable[["Connection"], None],
    ) -> None:
        self.loop = loop
        self.idle_since = 0.0
        self.usable = False
        self._idle = idle
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._exchange: Exchange | None = None
        self._held = False
        self._forget()

    def _forget(self) -> None:
        """Ready for the next response."""
        self._in_body = False
        self._interim = False
        self._measured = False
        self._reusable = False
        self._head_fed = self._head_size = self._counted = 0

    def begin(self, request: bytes) -> Exchange:
        """Send a request; the exchange must be closed before the next one."""
        assert self._exchange is None
        assert self._transport is not None
        self._exchange = Exchange(self)
        self._transport.write(request)
        return self._exchange

    def finished(self, exchange: Exchange) -> None:
        if exchange is not self._exchange:
            return
        self._exchange = None
        if exchange.ended and self._reusable and self.usable:
            self._forget()
            self.go_on()
            self._idle(self)
        else:
            self.abort()

    def abort(self) -> None:
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    def hold_back(self) -> None:
        if not self._held and self._transport is not None and self.usable:
            self._held = True
            self._transport.pause_reading()

    def go_on(self) -> None:
        if self._held and self._transport is not None and self.usable:
            self._held = False
            self._transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpResponseParser(self)
        self.usable = True

    def connection_lost(self, exc: Exception | None) -> None:
        # When we ended it ourselves `usable` is already off, and that is no clean end of a body.
        clean = exc is None and self.usable
        self.usable = False
        if self._exchange is not None:
            self._cut(self._exchange, clean=clean)
        # The parser holds on to this object.
        self._parser = None
        self._transport = None
        self._lost(self)

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None or exchange.ended or self._parser is None:
            # Bytes nobody asked for: whatever they are, this connection is out of step.
            self._reusable = False
            self.abort()
            return
        if not self._in_body:
            self._head_fed += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            exchange.fail(BrokenOff(f"no HTTP we understand: {type(error).__name__}"))
            self.abort()
        if not self._in_body and self._head_fed > LARGEST_HEAD:  # one header without an end, too
            self._too_long(exchange)

    def on_message_begin(self) -> None:
        if self._exchange is not None and self._exchange.ended:
            self._reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        exchange = self._exchange
        if exchange is None or exchange.ended or self._in_body:
            # Trailers, or a second response nobody asked for.
            return
        exchange.raw.append((name, value))
        if self._head_fed > LARGEST_HEAD and self._is_too_long(exchange.raw):
            self._too_long(exchange)

    def _too_long(self, exchange: Exchange) -> None:
        exchange.fail(BrokenOff(f"headers longer than {LARGEST_HEAD} bytes"))
        self.abort()

    def _is_too_long(self, raw: list[tuple[bytes, bytes]]) -> bool:
        """Counted only where so much has come that they may be: with a large body's beginning, mostly."""
        self._head_size += sum([len(name) + len(value) for name, value in raw[self._counted :]])
        self._counted = len(raw)
        return self._head_size > LARGEST_HEAD

    def on_headers_complete(self) -> None:
        exchange, parser = self._exchange, self._parser
        if exchange is None or exchange.ended or parser is None:
            return
        status = parser.get_status_code()
        self._interim = 100 <= status < 200
        if self._interim:
            exchange.raw.clear()  # those of an interim response are not the answer's
            self._counted = 0
            return
        names = set(map(bytes.lower, map(_name_of, exchange.raw)))
        if b"content-encoding" in names and not _is_plain(exchange.raw):
            exchange.fail(BrokenOff("a content coding that was not asked for"))
        self._in_body = True
        self._measured = b"content-length" in names or b"transfer-encoding" in names or status in _BODILESS
        exchange.status = status
        exchange.wake()

    def on_body(self, body: bytes) -> None:
        if self._exchange is not None and not self._exchange.ended:
            self._exchange.arrived(body)

    def on_message_complete(self) -> None:
        exchange, parser = self._exchange, self._parser
        if exchange is None or exchange.ended or parser is None or self._interim:
            return
        self._reusable = parser.should_keep_alive()
        exchange.ended = True
        exchange.wake()

    def _cut(self, exchange: Exchange, *, clean: bool) -> None:
        """The connection ended. Only a body without a length may end so."""
        if exchange.status and not self._measured and clean:
            exchange.ended = True
            exchange.wake()
        elif exchange.status:
            exchange.fail(BrokenOff("the connection ended inside the body"))
        else:
            exchange.fail(BrokenOff("the connection ended before an answer"))


def _is_plain(raw: list[tuple[bytes, bytes]]) -> bool:
    """Whether the body is coded as it was asked for, which is not at all."""
    return all(value.lower() == b"identity" for name, value in raw if name.lower() == b"content-encoding")
