"""The transport on asyncio and httptools, without a client library in between: a third of the CPU of one.

Knows: origins, connecting (happy eyeballs, TLS, a proxy in between), which connections are free. Does not know: HTTP's
bytes (`gateway.transport.wire`), who is called or why; how many calls may run at once is the dispatcher's business.

It obeys the same contract suite as the one on aiohttp and can take its place anywhere.
"""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Mapping
from http import HTTPStatus
from typing import cast
from urllib.parse import urlsplit

from aiohappyeyeballs import AddrInfoType, start_connection  # pyright: ignore[reportUnknownVariableType] - a bare tuple
from msgspec import Struct

from gateway.transport import ConnectFailed, tunnel
from gateway.transport.proxies import DIRECTLY, Proxies, Proxy
from gateway.transport.trouble import words
from gateway.transport.wire import Connection, Exchange

# DNS, TCP and TLS together.
CONNECT_TIMEOUT = 5.0
KEEP_ALIVE = 30.0
_EYEBALLS_DELAY = 0.25
_MOST_TARGETS = 1_024
_MOST_IDLE = 1_024

Origin = tuple[str, str, int]


class _Target(Struct, frozen=True):
    """What of a URL does not change between calls. `proxy`: what stands before it."""

    origin: Origin
    lines: bytes
    proxy: Proxy | None = None

    @property
    def forwarded(self) -> bool:
        """Whether the proxy reads the request and sends it on, and the answer may be its own."""
        return self.proxy is not None and self.origin[0] == "http"


class DirectTransport:
    """One pool of connections, the most recently used first."""

    def __init__(self, *, trust: ssl.SSLContext | None = None, proxies: Proxies = DIRECTLY) -> None:
        """`trust`: whose certificates to believe; None for the system's."""
        self._trust = trust
        self._proxies = proxies
        self._targets: dict[tuple[str, str], _Target] = {}
        self._free: dict[Origin, deque[Connection]] = {}
        self._alive: set[Connection] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False

    async def open(self, method: str, url: str, headers: Mapping[str, str], content: bytes, timeout: float) -> Exchange:
        target = self._targets.get((method, url)) or self._target(method, url)
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        connection = self._take(target.origin, loop) or await self._connect(target, until)
        exchange = connection.begin(_request(target.lines, headers, content))
        try:
            await exchange.head(until)
            if target.forwarded and exchange.status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
                raise tunnel.refusal(cast("Proxy", target.proxy), exchange.status)
        except BaseException:
            # Also when cancelled: what is half done on a connection cannot be used by anybody else.
            exchange.close()
            raise
        return exchange

    async def close(self) -> None:
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self._alive):
            connection.abort()
        # One turn of the loop lets the sockets close.
        await asyncio.sleep(0)

    def _target(self, method: str, url: str) -> _Target:
        try:
            parts = urlsplit(url)
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError as error:
            raise ConnectFailed("not an address") from error
        if parts.scheme not in ("http", "https") or not parts.hostname or not url.isascii() or not url.isprintable():
            raise ConnectFailed("not an http address")
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        host = parts.netloc.rpartition("@")[2]
        origin = (parts.scheme, parts.hostname, port)
        if len(self._targets) >= _MOST_TARGETS:
            self._targets.clear()
        try:
            proxy = self._proxies.before(*origin)
        except ValueError as error:
            raise ConnectFailed(str(error)) from error
        lines = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n"
        if proxy is not None and parts.scheme == "http":  # which it reads, and sends on
            lines = f"{method} http://{host}{path} HTTP/1.1\r\nHost: {host}\r\n{tunnel.authorization(proxy)}"
        target = _Target(origin, lines.encode(), proxy)
        self._targets[method, url] = target
        return target

    def check(self, url: str) -> None:
        """Raises ValueError where the proxy that stands before an address cannot be used."""
        parts = urlsplit(url)
        if parts.hostname:
            self._proxies.before(parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))

    def _take(self, origin: Origin, loop: asyncio.AbstractEventLoop) -> Connection | None:
        free = self._free.get(origin)
        while free:
            connection = free.pop()
            if connection.usable and loop.time() - connection.idle_since < KEEP_ALIVE:
                return connection
            connection.abort()
        return None

    def _idle(self, connection: Connection, origin: Origin) -> None:
        free = self._free.setdefault(origin, deque())
        if self._closed or len(free) >= _MOST_IDLE:
            connection.abort()
            return
        connection.idle_since = connection.loop.time()
        free.append(connection)
        if self._sweeper is None:
            self._sweeper = connection.loop.call_later(KEEP_ALIVE, self._sweep, connection.loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close what has been idle for too long; the oldest stand first."""
        self._sweeper = None
        limit = loop.time() - KEEP_ALIVE
        for free in self._free.values():
            while free and (not free[0].usable or free[0].idle_since <= limit):
                free.popleft().abort()
        if any(self._free.values()):
            self._sweeper = loop.call_later(KEEP_ALIVE, self._sweep, loop)

    def _lost(self, connection: Connection, origin: Origin) -> None:
        self._alive.discard(connection)
        free = self._free.get(origin)
        if free is not None and connection in free:
            free.remove(connection)

    async def _connect(self, target: _Target, until: float) -> Connection:
        if self._closed:
            raise ConnectFailed("the transport is closed")
        loop = asyncio.get_running_loop()
        patience = min(CONNECT_TIMEOUT, until - loop.time())
        try:
            async with asyncio.timeout(patience):
                return await self._connected(target, loop)
        except TimeoutError as error:
            through = f" through the proxy {target.proxy.host}" if target.proxy is not None else ""
            raise ConnectFailed(f"no connection{through} within {patience:.3g} s") from error
        except (OSError, ssl.SSLError, UnicodeError) as error:
            raise ConnectFailed(words(error)) from error

    async def _connected(self, target: _Target, loop: asyncio.AbstractEventLoop) -> Connection:
        origin = target.origin
        scheme, host, _ = origin
        sock = await _socket(target, loop)

        def made() -> Connection:
            return Connection(loop, idle=lambda one: self._idle(one, origin), lost=lambda one: self._lost(one, origin))

        try:
            _, connection = await loop.create_connection(
                made,
                sock=sock,
                ssl=self._context() if scheme == "https" else None,
                server_hostname=host if scheme == "https" else None,
            )
        except BaseException:
            sock.close()
            raise
        if self._closed:
            connection.abort()
            raise ConnectFailed("the transport is closed")
        self._alive.add(connection)
        return connection

    def _context(self) -> ssl.SSLContext:
        if self._trust is None:
            self._trust = ssl.create_default_context()
            self._trust.set_alpn_protocols(["http/1.1"])
        return self._trust


async def _socket(target: _Target, loop: asyncio.AbstractEventLoop) -> socket.socket:
    """To an origin, or to the proxy before it, which has then made a way to what speaks TLS."""
    scheme, host, port = target.origin
    if (proxy := target.proxy) is None:
        return await _dialled(host, port, loop)
    try:
        sock = await _dialled(proxy.host, proxy.port, loop)
    except (OSError, UnicodeError) as error:
        raise ConnectFailed(f"the proxy {proxy.host} in between: {words(error)}") from error
    if scheme == "https":
        try:
            await tunnel.made(sock, proxy, host, port)
        except BaseException:
            sock.close()
            raise
    return sock


async def _dialled(host: str, port: int, loop: asyncio.AbstractEventLoop) -> socket.socket:
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return await start_connection(cast("list[AddrInfoType]", found), happy_eyeballs_delay=_EYEBALLS_DELAY, loop=loop)


_line = ": ".join


def _request(lines: bytes, headers: Mapping[str, str], content: bytes) -> bytes:
    """Raises ConnectFailed for a header that would break out of its line: nothing is sent then."""
    text = "\r\n".join([*map(_line, headers.items()), ""])
    if text.count("\n") != len(headers) or text.count("\r") != len(headers) or "\0" in text:
        raise ConnectFailed("a header has a line break in it")
    try:
        raw = text.encode("ascii")
    except UnicodeEncodeError as error:
        raise ConnectFailed("a header has characters that no header can carry") from error
    return b"%b%bContent-Length: %d\r\n\r\n%b" % (lines, raw, len(content), content)
