"""An upstream of another language over a real socket: paced, failing and cut as it is told to.

Knows: HTTP/1.1, who left early, which requests came. Does not know: any language; one is handed in (`tests.languages`).
It is not a model: every word comes from a hash of the request.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from hashlib import blake2b
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from gateway.tasks import Tasks

decode = msgspec.json.Decoder().decode


class Request(Struct):
    """One request as it arrived."""

    line: str
    headers: dict[str, str]
    body: Any

    @property
    def path(self) -> str:
        return self.line.split()[1]


class Answer(Struct, kw_only=True):
    """A response: either one `body`, or `opening` (up to the first word) at once and `events` one by one."""

    status: str = "200 OK"
    headers: tuple[str, ...] = ()
    body: bytes = b""
    opening: bytes = b""
    events: list[bytes] | None = None


class Language(Protocol):
    """What a service of that kind answers."""

    async def answer(self, asked: Request) -> Answer: ...

    def failure(self) -> Answer: ...


class Manner(Struct, frozen=True, kw_only=True):
    """`cut`: the connection breaks in the middle of an answer; `fails`: it is refused before it begins."""

    ttft_ms: float = 0.0
    tpot_ms: float = 0.0
    fails: bool = False
    cut: bool = False


class WireUpstream:
    """`heard` are all requests; `in_flight` answers are being sent; `closed_early` were left by the client."""

    def __init__(self, language: Language, manner: Manner) -> None:
        self.language = language
        self.manner = manner
        self.heard: list[Request] = []
        self.in_flight = 0
        self.closed_early = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while not writer.is_closing():
                asked = await _read(reader)
                self.heard.append(asked)
                self.in_flight += 1
                try:
                    await self._tell(asked, reader, writer)
                finally:
                    self.in_flight -= 1
        writer.close()

    async def _tell(self, asked: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        manner = self.manner
        answer = self.language.failure() if manner.fails else await self.language.answer(asked)
        if not await self._pause(manner.ttft_ms, reader, writer):
            return
        if answer.events is None:
            length = len(answer.body)
            head = [f"HTTP/1.1 {answer.status}", f"content-length: {length}", *answer.headers, "", ""]
            writer.write("\r\n".join(head).encode() + (answer.body[: length // 2] if manner.cut else answer.body))
        else:
            head = [f"HTTP/1.1 {answer.status}", "transfer-encoding: chunked", *answer.headers, "", ""]
            writer.write("\r\n".join(head).encode())
            events = answer.events[: len(answer.events) // 2] if manner.cut else answer.events
            for number, event in enumerate([answer.opening, *events]):
                if number and not await self._pause(manner.tpot_ms, reader, writer):
                    return
                writer.write(b"%x\r\n%b\r\n" % (len(event), event))
                await writer.drain()
            if not manner.cut:
                writer.write(b"0\r\n\r\n")
        await writer.drain()
        if manner.cut:
            writer.close()

    async def _pause(self, ms: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the client is still there afterwards. Clients never pipeline, so a byte would be a fault too."""
        if not ms:
            return True
        try:
            async with asyncio.timeout(ms / 1000):
                await reader.read(1)
        except TimeoutError:
            return True
        except ConnectionError:
            pass
        self.closed_early += 1
        writer.close()
        return False


@asynccontextmanager
async def wire_upstream(language: Language, manner: Manner) -> AsyncGenerator[WireUpstream]:
    """Serves until left."""
    upstream, tasks = WireUpstream(language, manner), Tasks()
    writers: list[asyncio.StreamWriter] = []

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        tasks.spawn(upstream.serve(reader, writer), "connection")

    server = await asyncio.start_server(accept, "127.0.0.1", 0, limit=1 << 20)
    upstream.port = server.sockets[0].getsockname()[1]
    try:
        yield upstream
    finally:
        server.close()
        for writer in writers:
            writer.close()
        await tasks.finish(0.0)


async def _read(reader: asyncio.StreamReader) -> Request:
    line, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (item.partition(":") for item in lines if item)}
    raw = await reader.readexactly(int(headers.get("content-length", "0")))
    lines_of_json = headers.get("content-type") == "application/jsonl"
    return Request(line, headers, raw if lines_of_json else decode(raw) if raw else None)


def words(prompt: object, count: int) -> list[str]:
    """That many words, decided by the prompt alone; together they are the answer."""
    seed = blake2b(msgspec.json.encode(prompt), digest_size=4).hexdigest()
    return [f"{seed}-{number} " for number in range(count)]


def count(prompt: object) -> int:
    return max(1, len(msgspec.json.encode(prompt)) // 4)
