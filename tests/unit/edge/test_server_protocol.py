"""The protocol fed by hand: however bytes are cut the answers are the same, and no bytes bring it down."""

import asyncio
import logging
import re
from typing import Any

import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from gateway.server_limits import Limits
from gateway.server_protocol import Protocol
from gateway.server_socket import protocol
from tests.proofs import examples
from tests.unit.edge.edge_wire import Wire

_ID = re.compile(rb"x-request-id: [0-9a-f-]{36}")

LENGTH = b"POST /a HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"POST /b HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nx-t: 1\r\n\r\n"
PLAIN = b"GET /c?d=%20e HTTP/1.1\r\nhost: t\r\naccept: */*\r\n\r\n"
_OFFER = b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQBAAAAAAIAAAAA\r\n"
OFFERED = [request.replace(b"\r\n", b"\r\n" + _OFFER, 1) for request in (LENGTH, CHUNKED, PLAIN)]


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the method, the path, how many headers came, and the body."""
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body", False):
            break
    told = (
        f"{scope['method']} {scope['path']} {scope['query_string'].decode()} {len(scope['headers'])} ".encode() + body
    )
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(told))]})
    await send({"type": "http.response.body", "body": told})


def fresh(limits: Limits | None = None) -> tuple[Protocol, Wire]:
    chosen = protocol(limits or Limits())
    config = uvicorn.Config(
        echo, http=chosen, ws="none", log_config=None, access_log=False, interface="asgi3", proxy_headers=False
    )
    config.load()
    speaking, wire = chosen(config, ServerState(), {}), Wire()
    speaking.connection_made(wire)
    return speaking, wire


async def fed(*pieces: bytes, limits: Limits | None = None) -> bytes:
    """What is written when the pieces arrive one by one; ids are left out."""
    speaking, wire = fresh(limits)
    for piece in pieces:
        if wire.closed:
            break
        speaking.data_received(piece)
        for _ in range(6):
            await asyncio.sleep(0)
    for _ in range(40):
        await asyncio.sleep(0)
    speaking.connection_lost(None)
    return _ID.sub(b"x-request-id: -", wire.written)


@pytest.mark.parametrize(
    "request_bytes", [LENGTH, CHUNKED, PLAIN, LENGTH + CHUNKED + PLAIN, *OFFERED, b"".join([*OFFERED, LENGTH])]
)
async def test_a_request_is_the_same_however_it_is_cut(request_bytes: bytes) -> None:
    """Packets end anywhere: within a name, a number, a line end."""
    whole = await fed(request_bytes)
    assert whole.count(b"HTTP/1.1 200 OK") == request_bytes.count(b" HTTP/1.1\r\n")
    for cut in range(1, len(request_bytes)):
        assert await fed(request_bytes[:cut], request_bytes[cut:]) == whole
    assert await fed(*(bytes([byte]) for byte in request_bytes)) == whole


async def test_what_is_read_is_what_was_sent() -> None:
    """Path decoded once, query as it came, trailers left out."""
    told = await fed(LENGTH + CHUNKED + PLAIN)
    assert b"POST /a  2 hello" in told
    assert b"POST /b  2 abc" in told
    assert b"GET /c d=%20e 2 " in told


async def test_an_offer_of_another_protocol_loses_nothing() -> None:
    """Java's client offers h2c with the body of its first request; it was told that it had sent none."""
    told = await fed(b"".join([*OFFERED, LENGTH]))
    assert b"POST /a  5 hello" in told
    assert b"POST /b  5 abc" in told
    assert b"GET /c d=%20e 5 " in told
    assert b"POST /a  2 hello" in told


@pytest.mark.parametrize("cut", [1, 10, 16, 40, 1_000])
async def test_bounds_hold_however_headers_are_cut(cut: int) -> None:
    """Counted on the way where it can matter, not only at the end."""
    limits = Limits(header_bytes=200, header_count=5, uri_bytes=50)
    for request_bytes, status in (
        (b"GET / HTTP/1.1\r\nhost: t\r\nx: " + b"y" * 400 + b"\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nhost: t\r\n" + b"a: b\r\n" * 6 + b"\r\n", b"431"),
        (b"GET /" + b"q" * 60 + b" HTTP/1.1\r\nhost: t\r\n\r\n", b"414"),
    ):
        pieces = [request_bytes[at : at + cut] for at in range(0, len(request_bytes), cut)]
        assert (await fed(*pieces, limits=limits)).startswith(b"HTTP/1.1 " + status)


hostile = st.lists(
    st.sampled_from(
        [
            LENGTH,
            CHUNKED,
            PLAIN,
            b"\r\n",
            b"\0",
            b"Transfer-Encoding: chunked\r\n",
            b"Content-Length: 1\r\n",
            b"GET ",
            b" HTTP/1.0\r\n",
            b"HTTP/1.1",
            b"host: t\r\n",
            b"\r\n\r\n",
            b"ffffffffffffffff\r\n",
            b"connection: upgrade\r\nupgrade: h2c\r\n",
            *OFFERED,
            b"CONNECT a:1 HTTP/1.1\r\nhost: t\r\n\r\n",
            b"OPTIONS * HTTP/1.1\r\nhost: t\r\n\r\n",
            b"expect: 100-continue\r\n",
        ]
    )
    | st.binary(max_size=12),
    min_size=1,
    max_size=8,
)


@settings(max_examples=examples(300), deadline=None)
@given(hostile, st.integers(1, 60))
def test_no_bytes_bring_it_down(parts: list[bytes], cut: int) -> None:
    """Whatever arrives, each thing written is a whole answer; nothing is our own failure, nothing is raised."""
    data = b"".join(parts)
    loud = _Loud()
    logger = logging.getLogger("nearhit.http")
    logger.addHandler(loud)
    try:
        told = asyncio.run(fed(*(data[at : at + cut] for at in range(0, len(data), cut))))
    finally:
        logger.removeHandler(loud)
    assert not loud.records
    assert told == b"" or told.startswith(b"HTTP/1.1 ")
    assert b"HTTP/1.1 500" not in told


class _Loud(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
