"""granian as the HTTP server of a worker, on a socket that is open already.

Knows granian's embedded server. granian bounds slow headers by itself; slow bodies are `gateway.body`'s, as everywhere.
"""

import asyncio
import os
import socket
from typing import Any

from granian._granian import SocketHolder
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.server.embed import Server

from gateway.errors import Stopping
from gateway.ids import uuid7
from gateway.server_cycle import told
from gateway.settings import Server as ServerSettings

_BACKLOG = 2_048
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
            await self._app(scope, receive, sending)
        except asyncio.CancelledError:
            if begun:
                raise  # granian closes the connection without an end mark
            payload, headers = told(stopping := Stopping())
            await sending({"type": "http.response.start", "status": stopping.http_status, "headers": headers})
            await sending({"type": "http.response.body", "body": payload, "more_body": False})
        finally:
            self._running.discard(task)

    def cut(self) -> None:
        """Cancel what outlasts the drain, as uvicorn does; each request tells its client so."""
        for task in list(self._running):
            task.cancel()


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
