"""Our transports under httpx: for code that wants httpx's client, off the hot path.

Knows: httpx's `AsyncBaseTransport` on one side, `gateway.transport.Transport` on the other. Does not know: pools,
sockets. httpx's own pool is never used: it can stay full for ever after cancellations (encode/httpcore issue 1093).
"""

from collections.abc import AsyncIterator
from typing import cast

import httpx

from gateway.transport import BrokenOff, ConnectFailed, Exchange, TimedOut, Transport, TransportError

_DEFAULT_TIMEOUT = 30.0


class HttpxSeam(httpx.AsyncBaseTransport):
    """`httpx.AsyncClient(transport=HttpxSeam(transport), trust_env=False)`. The transport is closed by its owner."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        timeouts = cast("dict[str, float | None]", request.extensions.get("timeout", {}))
        wait = timeouts.get("read") or _DEFAULT_TIMEOUT
        kept = {name: value for name, value in request.headers.items() if name not in _OURS}
        kept["accept-encoding"] = "identity"
        content = await request.aread()
        try:
            exchange = await self._transport.open(request.method, str(request.url), kept, content, wait)
        except TransportError as error:
            raise _translated(error, request) from error
        # A body that the transport has already decoded must not be decoded again.
        headers = [item for item in exchange.headers.items() if item[0].lower() not in _CODINGS]
        return httpx.Response(exchange.status, headers=headers, stream=_Stream(exchange, wait, request))


# Said by the transport itself, or never asked for.
_OURS = ("host", "content-length", "transfer-encoding", "connection", "accept-encoding")
_CODINGS = ("content-encoding", "transfer-encoding", "content-length")


class _Stream(httpx.AsyncByteStream):
    def __init__(self, exchange: Exchange, wait: float, request: httpx.Request) -> None:
        self._exchange = exchange
        self._wait = wait
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while piece := await self._exchange.piece(self._wait):
                yield piece
        except TransportError as error:
            raise _translated(error, self._request) from error

    async def aclose(self) -> None:
        self._exchange.close()


_KINDS: dict[type[TransportError], type[httpx.TransportError]] = {
    ConnectFailed: httpx.ConnectError,
    TimedOut: httpx.ReadTimeout,
    BrokenOff: httpx.RemoteProtocolError,
}


def _translated(error: TransportError, request: httpx.Request) -> httpx.TransportError:
    return _KINDS.get(type(error), httpx.TransportError)(str(error), request=request)
