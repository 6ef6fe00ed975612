"""A load generator cheap enough to share one core with the upstream: asyncio protocols over httptools.

Knows: HTTP/1.1 requests that are ready as bytes, when their answers began and ended, how many events a stream had.
Does not know: what is asked, processes, CPU time.
"""

import asyncio
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import cast

import httptools
from msgspec import Struct, field

Ask = Callable[[], bytes]
_STALL = 60.0
_REFUSED = 400
_TCP_INFO, _LAST_DATA_RECEIVED = 104, 52  # bytes of Linux's tcp_info, and where milliseconds since the last data stand


class Exchange(Struct):
    """One request and its answer; times in seconds since the request was written.

    `unread`: of a refusal, how long it lay in this machine's kernel until this process came to read it.
    """

    status: int = 0
    mark: str = ""
    first: float = 0.0
    total: float = 0.0
    unread: float = 0.0
    events: int = 0
    body: bytes = b""


class Sample(Struct):
    """What one slice of load saw. `wall`: seconds from the first request to the last answer."""

    totals: list[float] = []
    firsts: list[float] = []
    marks: Counter[str] = field(default_factory=Counter[str])  # msgspec copies lists, but not Counters
    statuses: Counter[int] = field(default_factory=Counter[int])
    events: int = 0
    wall: float = 0.0

    def add(self, exchange: Exchange) -> None:
        self.totals.append(exchange.total)
        self.firsts.append(exchange.first)
        self.marks[exchange.mark] += 1
        self.statuses[exchange.status] += 1
        self.events += exchange.events

    @property
    def rate(self) -> float:
        """Requests per second."""
        return len(self.totals) / self.wall if self.wall else 0.0


class Connection(asyncio.Protocol):
    """One keep-alive connection, one exchange at a time. Raises ConnectionError when the server hangs up."""

    def __init__(self) -> None:
        self._answered: asyncio.Future[Exchange] | None = None
        self._exchange = Exchange()
        self._parser = httptools.HttpResponseParser(self)
        self._keep_body = False

    @classmethod
    async def open(cls, host: str, port: int) -> "Connection":
        _, protocol = await asyncio.get_running_loop().create_connection(cls, host, port)
        return protocol

    async def exchange(self, request: bytes, *, keep_body: bool = False) -> Exchange:
        """Raises ConnectionError, TimeoutError after a minute without an end."""
        self._exchange = Exchange()
        self._keep_body = keep_body
        self._parser = httptools.HttpResponseParser(self)
        self._answered = asyncio.get_running_loop().create_future()
        self._started = time.perf_counter()
        self._transport.write(request)
        async with asyncio.timeout(_STALL):
            return await self._answered

    def close(self) -> None:
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own class says so without inheriting

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(ConnectionError(f"the server hung up ({exc})"))

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-nearhit-cache":
            self._exchange.mark = value.decode("ascii", "replace")

    def on_body(self, body: bytes) -> None:
        exchange = self._exchange
        if not exchange.first:
            exchange.first = time.perf_counter() - self._started
        exchange.events += body.count(b"data:")
        if self._keep_body or self._parser.get_status_code() >= 400:
            exchange.body += body

    def on_message_complete(self) -> None:
        exchange = self._exchange
        exchange.total = time.perf_counter() - self._started
        exchange.status = self._parser.get_status_code()
        if exchange.status >= _REFUSED:
            exchange.unread = since_last_data(self._transport.get_extra_info("socket"))
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(exchange)


def since_last_data(sock: socket.socket) -> float:
    """Seconds since the kernel took the last data in for this connection (Linux's tcp_info), to a few milliseconds.

    0 where the operating system does not tell.
    """
    if sys.platform != "linux":
        return 0.0
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO)
    return struct.unpack_from("=I", info, _LAST_DATA_RECEIVED)[0] / 1e3


async def drive(where: tuple[str, int], ask: Ask, *, connections: int, seconds: float, rate: float = 0.0) -> Sample:
    """Load for `seconds`: each connection asks again as soon as it is answered, or all together `rate` times a second.

    A paced request that had to wait for its connection counts from the moment it was due (no coordinated omission).
    """
    opened = [await Connection.open(*where) for _ in range(connections)]
    sample = Sample()
    begun = time.perf_counter()
    try:
        async with asyncio.TaskGroup() as group:
            for number, connection in enumerate(opened):
                pace = (connections / rate, number / rate) if rate else None
                group.create_task(_ask_again(connection, ask, sample, begun + seconds, pace))
    finally:
        for connection in opened:
            connection.close()
    sample.wall = time.perf_counter() - begun
    return sample


async def _ask_again(
    connection: Connection, ask: Ask, sample: Sample, until: float, pace: tuple[float, float] | None
) -> None:
    due = time.perf_counter() + (pace[1] if pace else 0.0)
    while (now := time.perf_counter()) < until:
        late = 0.0
        if pace:
            if due > now:
                await asyncio.sleep(due - now)
            else:
                late = now - due
            due += pace[0]
        exchange = await connection.exchange(ask())
        exchange.first += late
        exchange.total += late
        sample.add(exchange)
