"""Asking an application of this process as if it were a server, without keeping large answers in memory.

Knows: ASGI, as much of it as one request needs. Does not know: what is asked, by whom.
httpx's own transport collects the whole answer first; here a body goes into the file the request names, as it comes.
"""

import asyncio
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from litestar.types import ASGIApp

SINK = "nearhit.sink"
"""Extension of a request: a writable binary file for the body of an answer below 400."""


class InProcess(httpx.AsyncBaseTransport):
    """Calls `app` for each request; small answers as httpx does it, those with a sink piece by piece."""

    def __init__(self, app: "ASGIApp") -> None:
        self._app: Any = app
        self._collecting = httpx.ASGITransport(app=self._app)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        sink: Any = request.extensions.get(SINK)
        if sink is None:
            return await self._collecting.handle_async_request(request)
        done = asyncio.Event()
        kept = bytearray()
        status: list[int] = []
        asked = [{"type": "http.request", "body": await request.aread(), "more_body": False}]

        async def receive() -> dict[str, Any]:
            if asked:
                return asked.pop()
            await done.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                status.append(message["status"])
                return
            if status[0] < 400:
                sink.write(message.get("body", b""))
            else:
                kept.extend(message.get("body", b""))
            if not message.get("more_body"):
                done.set()

        await self._app(_scope(request), receive, send)
        return httpx.Response(status[0], content=bytes(kept), request=request)


def _scope(request: httpx.Request) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "scheme": request.url.scheme,
        "path": request.url.path,
        "raw_path": request.url.raw_path.split(b"?")[0],
        "query_string": request.url.query,
        "server": (request.url.host, request.url.port),
        "client": ("127.0.0.1", 0),
        "root_path": "",
    }
