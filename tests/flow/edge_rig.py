"""A small application around the gateway's body reader, on the gateway's own HTTP protocol, and a raw client.

What it answers is beside the point: it stands in for the data plane where only HTTP itself is looked at.
"""

import asyncio
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import uvicorn

from gateway.body import decode_object, read_body
from gateway.errors import GatewayError
from gateway.server import Worker
from gateway.server_limits import Limits
from gateway.server_protocol import ADMIN_SOCKET
from gateway.server_socket import protocol
from gateway.settings import Settings

MAX_BODY = 1 << 20
decode = msgspec.json.Decoder().decode


async def app(scope: Any, receive: Any, send: Any) -> None:
    """`/stream` streams without a length, `/crash` raises, `/never` waits, the rest echoes what was posted."""
    if scope["type"] == "lifespan":
        await _lifespan(receive, send)
        return
    path = scope["path"]
    if path == "/crash":
        raise LookupError("on purpose")
    if path == "/never":
        await asyncio.Event().wait()
    if path == "/health/ready":
        await _answer(send, 200, b'{"status":"ready","waiting_for":{}}')
        return
    if path == "/stream":
        await _stream(scope, send)
        return
    try:
        raw = await read_body(receive, scope["headers"], limit=MAX_BODY, timeout=1.0, monotonic=time.monotonic)
        body = decode_object(raw) if scope["method"] == "POST" else {}
        found = {"body": body, "unix": scope.get(ADMIN_SOCKET, False), "headers": len(scope["headers"])}
        await _answer(send, 200, msgspec.json.encode(found))
    except GatewayError as error:
        await _answer(send, error.http_status, error.body())


async def _answer(send: Any, status: int, payload: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(payload))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": payload})


async def _stream(scope: Any, send: Any) -> None:
    count, pause, size = (scope["query_string"] or b"3,0,1").split(b",")
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    for number in range(int(count)):
        await send(
            {
                "type": "http.response.body",
                "body": b"data: %d%s\n\n" % (number, b" " * (int(size) - 1)),
                "more_body": True,
            }
        )
        await asyncio.sleep(float(pause))
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


async def _lifespan(receive: Any, send: Any) -> None:
    while (await receive())["type"] != "lifespan.shutdown":
        await send({"type": "lifespan.startup.complete"})
    await send({"type": "lifespan.shutdown.complete"})


class Full:
    """An application that finds no room for its schema at the start."""

    def __init__(self) -> None:
        # It brings SQLAlchemy along, without which the processes of all other tests start twice as fast.
        from gateway.start_trouble import StartTrouble

        self.trouble = StartTrouble()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        from gateway.db.migrate import NoRoom

        try:
            with self.trouble.noted():
                raise NoRoom("there is no room")
        except NoRoom:
            await self.trouble.told(send)({"type": "lifespan.startup.failed", "message": "a trace"})


def create(settings: Settings, rereading: object = None) -> Any:
    """A factory as `gateway.server --app` takes it."""
    if settings.server.max_in_flight == 13:
        raise ValueError("server.max_in_flight: 13 brings bad luck")
    if settings.server.max_in_flight == 14:
        raise LookupError("a bug")
    return Full() if settings.server.max_in_flight == 15 else app


class Server(NamedTuple):
    """Where it listens, and the live connections."""

    port: int
    connections: set[Any]
    unix: Path


@asynccontextmanager
async def serving(folder: Path, limits: Limits, *, keep_alive: int = 5) -> AsyncGenerator[Server, None]:
    """The application in this event loop, on a TCP port and on a Unix socket."""
    config = uvicorn.Config(
        app,
        http=protocol(limits),
        ws="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=keep_alive,
        timeout_graceful_shutdown=1,
    )
    config.load()
    tcp = socket.create_server(("127.0.0.1", 0))
    server = Worker(config, [tcp])
    server.lifespan = config.lifespan_class(config)
    unix = socket.socket(socket.AF_UNIX)
    path = folder / "s"
    unix.bind(str(path))
    await server.startup(sockets=[unix])
    await server.on_tick(0)
    try:
        yield Server(tcp.getsockname()[1], server.server_state.connections, path)
    finally:
        server.force_exit = True  # the clients of a test are not waited for
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        await server.shutdown(sockets=[unix])


class Answer(NamedTuple):
    """One HTTP answer; header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        error = decode(self.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error["code"]


class Client:
    """One connection on which anything can be written."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> Answer:
        """The next answer on this connection, its body by length, by chunks or up to the end."""
        head = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 60)).decode("latin-1")
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if "content-length" in headers:
            body = await self.reader.readexactly(int(headers["content-length"]))
        elif headers.get("transfer-encoding") == "chunked":
            body = await self._chunks()
        else:
            body = await asyncio.wait_for(self.reader.read(), 60)
        return Answer(int(first.split(" ")[1]), headers, body)

    async def _chunks(self) -> bytes:
        body = b""
        while size := int(await self.reader.readline(), 16):
            body += await self.reader.readexactly(size)
            await self.reader.readline()
        await self.reader.readline()
        return body

    async def closed(self, within: float = 60.0) -> bytes:
        """What still comes until the server closes. Raises TimeoutError when it does not."""
        try:
            return await asyncio.wait_for(self.reader.read(), within)
        except ConnectionResetError:
            return b""


@asynccontextmanager
async def connected(port: int) -> AsyncGenerator[Client, None]:
    """A client connection that is closed without ado."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


def post(body: bytes = b'{"a": 1}', *headers: str, path: str = "/echo", version: str = "1.1") -> bytes:
    """A POST with an honest length, as bytes."""
    lines = [f"POST {path} HTTP/{version}", "host: t", "content-type: application/json", *headers]
    if not any(line.lower().startswith(("content-length", "transfer-encoding")) for line in headers):
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


async def ask(port: int, request: bytes) -> Answer:
    """Send `request` on a connection of its own and read one answer."""
    async with connected(port) as client:
        await client.send(request)
        return await client.answer()
