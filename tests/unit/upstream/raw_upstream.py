"""An upstream that sends exactly the bytes a test wants, over a real socket."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from msgspec import Struct

from gateway.tasks import Tasks

Answer = Callable[[asyncio.StreamWriter, "Heard"], Awaitable[None]]


class Heard(Struct):
    """One request as it arrived. `connection`: the how-manieth connection it came on, from 1."""

    line: str
    headers: dict[str, str]
    body: bytes
    connection: int


class RawUpstream(Struct):
    """`gone` counts connections the client closed while an answer was still being written."""

    port: int
    heard: list[Heard]
    gone: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"


@asynccontextmanager
async def raw_upstream(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncGenerator[RawUpstream]:
    """Serves until left. `answer` writes a whole HTTP response, or whatever it likes; closing is its business too."""
    state = RawUpstream(0, [])
    connections = 0
    tasks = Tasks()
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        number = connections
        writers.append(writer)
        try:
            while not writer.is_closing():
                heard = await _request(reader, number)
                state.heard.append(heard)
                await answer(writer, heard)
                await writer.drain()
        except asyncio.IncompleteReadError:
            pass
        except ConnectionError:
            state.gone += 1
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.spawn(serve(reader, writer), "connection")

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
    state.port = server.sockets[0].getsockname()[1]
    try:
        yield state
    finally:
        server.close()
        for writer in writers:
            writer.close()
        await tasks.finish(0.0)
        await asyncio.sleep(0.01)  # clients of the same loop hear that their connections have ended


async def _request(reader: asyncio.StreamReader, number: int) -> Heard:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = dict(_header(line) for line in head[1:] if line)
    length = int(headers.get("content-length", "0"))
    return Heard(head[0], headers, await reader.readexactly(length), number)


def _header(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.lower(), value.strip()


def fixed(raw: bytes, *, close: bool = False) -> Answer:
    """The same bytes to everybody."""

    async def answer(writer: asyncio.StreamWriter, _: Heard) -> None:
        writer.write(raw)
        if close:
            writer.close()

    return answer


def response(status: str, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def events(*bodies: bytes, done: bool = True, whole: bool = True) -> bytes:
    """A chunked event stream. `whole`: with the last chunk of HTTP's own."""
    raw = b"".join(b"data: " + body + b"\n\n" for body in bodies) + (b"data: [DONE]\n\n" if done else b"")
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    body = b"%x\r\n%b\r\n" % (len(raw), raw) if raw else b""
    return head + body + (b"0\r\n\r\n" if whole else b"")


def until_closed(raw: bytes) -> bytes:
    """An event stream without a length: only the end of the connection ends it."""
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n" + raw
