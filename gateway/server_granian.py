"""granian as the HTTP server of a worker, on a socket that is open already.

Knows granian's embedded server. granian bounds slow headers by itself; slow bodies are `gateway.body`'s, as everywhere.
"""

import os
import socket
from typing import Any

from granian._granian import SocketHolder
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.server.embed import Server

from gateway.ids import uuid7
from gateway.settings import Server as ServerSettings

_BACKLOG = 2_048
_HOLDER: Any = SocketHolder  # (fd, is a Unix socket, backlog); its stub leaves the constructor out


class OnSocket(Server):
    """granian opens its own socket otherwise; ours is shared with the other workers and outlives them."""

    def __init__(self, sock: socket.socket, **options: Any) -> None:
        super().__init__(**options)
        self._handed = sock

    def _init_shared_socket(self) -> None:
        self._ssp = None
        # The fd is granian's to close: it gets one of its own.
        self._sfd = os.dup(self._handed.fileno())
        self._shd = _HOLDER(self._sfd, False, _BACKLOG)


def _named(app: Any) -> Any:
    """`app` with the two headers that our own protocol sees to: `x-request-id` on every answer, no server's name."""

    async def named(scope: Any, receive: Any, send: Any) -> None:
        async def sending(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ()), (b"server", b"nearhit")]
                if not any(name == b"x-request-id" for name, _ in headers):
                    headers.append((b"x-request-id", uuid7().encode("ascii")))
                message = {**message, "headers": headers}
            await send(message)

        await app(scope, receive, sending)

    return named


def on_socket(app: Any, sock: socket.socket, settings: ServerSettings) -> OnSocket:
    """A server for `app` without its lifespan: `await serve()`, then `stop()`."""
    return OnSocket(
        sock,
        target=_named(app),
        interface=Interfaces.ASGINL,
        http=HTTPModes.http1,
        websockets=False,
        backlog=_BACKLOG,
        backpressure=settings.max_in_flight,
        http1_settings=HTTP1Settings(header_read_timeout=int(settings.header_timeout * 1000)),
        log_enabled=False,
    )
