"""The transport on aiohttp: its connector, pool and parser, called without any client layer above it.

Knows: connections, TLS, keep-alive, timeouts of one socket. Does not know: who is called or why; how many calls may run
at once is the dispatcher's business, so the pool has no limit of its own.
"""

import asyncio
import io
import ssl
from collections.abc import Mapping

import aiohttp
from aiohttp.client_proto import ResponseHandler
from yarl import URL

from gateway.transport import BrokenOff, ConnectFailed, TimedOut, TransportError
from gateway.transport.trouble import words

# DNS, TCP and TLS together.
CONNECT_TIMEOUT = 5.0
# Longer than most gaps between requests; a server that closes earlier is noticed when its FIN arrives.
KEEP_ALIVE = 30.0
_WAITS = aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT)
_LARGE = 1 << 20
_UNWANTED = ("Accept-Encoding", "User-Agent", "Accept")


class AiohttpTransport:
    """One pool of connections, made with the first request (aiohttp wants a running event loop). Asks no proxy."""

    def __init__(self, *, trust: ssl.SSLContext | None = None) -> None:
        """`trust`: whose certificates to believe; None for the system's."""
        self._trust = trust
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    def _begin(self) -> aiohttp.ClientSession:
        if self._closed:
            raise ConnectFailed("the transport is closed")
        connector = aiohttp.TCPConnector(
            limit=0, ttl_dns_cache=30, keepalive_timeout=KEEP_ALIVE, ssl=self._trust or True
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=_WAITS,
            trust_env=False,
            skip_auto_headers=_UNWANTED,
        )
        return self._session

    async def open(
        self, method: str, url: str, headers: Mapping[str, str], content: bytes, timeout: float
    ) -> "AiohttpExchange":
        session = self._session or self._begin()
        try:
            async with asyncio.timeout(timeout):
                response = await session.request(
                    method, URL(url, encoded=True), data=_payload(content), headers=headers, allow_redirects=False
                )
        except TimeoutError as error:
            if isinstance(error, aiohttp.ConnectionTimeoutError):
                raise ConnectFailed(f"no connection within {CONNECT_TIMEOUT:g} s") from error
            raise TimedOut(f"no answer within {timeout:g} s") from error
        except (aiohttp.ClientError, aiohttp.http.HttpProcessingError, OSError) as error:
            raise _translated(error) from error  # a certificate's are of ValueError, too
        except ValueError as error:
            raise ConnectFailed("an address or a header that cannot be sent") from error
        return AiohttpExchange(response)

    def check(self, url: str) -> None:
        """Nothing stands before it."""

    async def close(self) -> None:
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()


class AiohttpExchange:
    """A response on aiohttp. The silence timer is the socket's own, so a piece costs no timer of ours."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self._response = response
        self._content = response.content
        self._timeout = 0.0

    @property
    def ended(self) -> bool:
        return self._content.at_eof()

    async def piece(self, timeout: float) -> bytes:
        if timeout != self._timeout:
            self._watch(timeout)
        try:
            return await self._content.readany()
        except TimeoutError as error:
            raise TimedOut(f"nothing came for {timeout:g} s") from error
        except (aiohttp.ClientError, aiohttp.http.HttpProcessingError, OSError) as error:
            raise BrokenOff(words(error)) from error

    async def whole(self, limit: int, timeout: float) -> bytes:
        pieces: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(timeout):
                while piece := await self._content.readany():
                    pieces.append(piece)
                    size += len(piece)
                    if size > limit:
                        raise BrokenOff(f"the answer is longer than {limit} bytes")
        except TimeoutError as error:
            raise TimedOut(f"the answer was not whole within {timeout:g} s") from error
        except (aiohttp.ClientError, aiohttp.http.HttpProcessingError, OSError) as error:
            raise BrokenOff(words(error)) from error
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        # `release` gives the connection back when the body was read to its end and closes it otherwise.
        self._response.release()

    def _watch(self, timeout: float) -> None:
        self._timeout = timeout
        connection = self._response.connection
        if connection is not None and isinstance(connection.protocol, ResponseHandler):
            connection.protocol.read_timeout = timeout
            connection.protocol.start_timeout()


def _payload(content: bytes) -> bytes | io.BytesIO | None:
    """Large bodies go out in pieces, so that one of them does not hold up everybody else."""
    return io.BytesIO(content) if len(content) > _LARGE else content or None


def _translated(error: Exception) -> TransportError:
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.InvalidURL):
        return ConnectFailed(words(error))
    return BrokenOff(words(error))
