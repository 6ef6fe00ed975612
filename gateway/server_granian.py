"""granian as the HTTP server of a worker, on a socket that is open already.

Knows granian's embedded server. granian bounds slow headers by itself; slow bodies are `gateway.body`'s, as everywhere.
What it lets through and our own protocol refuses is refused here; its own refusals have no body (docs/decisions.md).
"""

import asyncio
import os
import socket
from typing import Any

from granian._granian import SocketHolder
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.server.embed import Server

from gateway.errors import GatewayError, InvalidRequest, Stopping
from gateway.ids import uuid7
from gateway.server_cycle import HeadersTooLarge, told
from gateway.server_limits import Limits
from gateway.settings import Server as ServerSettings

_BACKLOG = 2_048
_CLOSE = (b"connection", b"close")
_HEADER_BYTES = Limits().header_bytes
_HOLDER: Any = SocketHolder  # (fd, is a Unix socket, backlog); its stub leaves the constructor out


class Named:
    """`app` with what our own protocol sees to: `x-request-id` on every answer, no server's name, a word at the end."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._running: set[asyncio.Task[Any]] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """ASGI."""
        begun = False

        async def sending(message: Any) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers = [*message.get("headers", ()), (b"server", b"nearhit")]
                if not any(name == b"x-request-id" for name, _ in headers):
                    headers.append((b"x-request-id", uuid7().encode("ascii")))
                message = {**message, "headers": headers}
            await send(message)

        task = asyncio.current_task()
        if task is None:  # granian runs every request as one
            raise RuntimeError("a request outside of a task")
        self._running.add(task)
        try:
            if (fault := _fault_of(scope)) is None:
                await self._app(scope, receive, sending)
            else:
                await _refuse(fault, sending)
        except asyncio.CancelledError:
            if begun:
                raise  # granian closes the connection without an end mark
            await _refuse(Stopping(), sending)
        finally:
            self._running.discard(task)

    def cut(self) -> None:
        """Cancel what outlasts the drain, as uvicorn does; each request tells its client so."""
        for task in list(self._running):
            task.cancel()


def _fault_of(scope: Any) -> GatewayError | None:
    """Two hosts are two requests to two parsers (none comes as an empty one), and heads are bounded."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    if scope["http_version"] == "1.1" and sum(name == b"host" for name, _ in headers) != 1:
        return InvalidRequest("A request must have exactly one Host header.", code="malformed_request")
    if sum(len(name) + len(value) for name, value in headers) > _HEADER_BYTES:
        return HeadersTooLarge(f"The request's headers exceed {_HEADER_BYTES:,} bytes.")
    return None


async def _refuse(fault: GatewayError, send: Any) -> None:
    payload, headers = told(fault)
    await send({"type": "http.response.start", "status": fault.http_status, "headers": [*headers, _CLOSE]})
    await send({"type": "http.response.body", "body": payload, "more_body": False})


class OnSocket(Server):
    """granian opens its own socket otherwise; ours is shared with the other workers and outlives them."""

    def __init__(self, sock: socket.socket, app: Named, **options: Any) -> None:
        super().__init__(target=app, **options)
        self._handed = sock
        self.cut = app.cut

    def _init_shared_socket(self) -> None:
        self._ssp = None
        # The fd is granian's to close: it gets one of its own.
        self._sfd = os.dup(self._handed.fileno())
        self._shd = _HOLDER(self._sfd, False, _BACKLOG)


def on_socket(app: Any, sock: socket.socket, settings: ServerSettings) -> OnSocket:
    """A server for `app` without its lifespan: `await serve()`, then `stop()`; `cut()` ends what that waits for."""
    return OnSocket(
        sock,
        Named(app),
        interface=Interfaces.ASGINL,
        http=HTTPModes.http1,
        websockets=False,
        backlog=_BACKLOG,
        backpressure=settings.max_in_flight,
        http1_settings=HTTP1Settings(header_read_timeout=int(settings.header_timeout * 1000)),
        log_enabled=False,
    )
