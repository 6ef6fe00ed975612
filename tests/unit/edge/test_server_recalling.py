"""A head that comes again is compared instead of read: what is answered must not differ by a byte."""

import asyncio
import re
from typing import Any

import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from gateway.server_heads import known_of
from gateway.server_limits import Limits
from gateway.server_protocol import LET_IN, Protocol
from gateway.server_recalling import Recalling
from gateway.server_socket import protocol
from tests.proofs import examples
from tests.unit.edge.edge_wire import Wire

_ID = re.compile(rb"(x-request-id: [0-9a-f-]{36}|date: [^\r]*)\r\n")
HEAD = b"POST /a?q=%20 HTTP/1.1\r\nHost: t\r\nX-Name: one \r\nContent-Length: "
HELLO = HEAD + b"5\r\nAccept: */*\r\n\r\nhello"
OTHER = HEAD + b"11\r\nAccept: */*\r\n\r\nhello again"
EMPTY = HEAD + b"0\r\nAccept: */*\r\n\r\n"
LIKE = [
    HELLO.replace(b": 5", b":5"),
    HELLO.replace(b": 5", b": 05"),
    HELLO.replace(b": 5", b": 5 "),
    HELLO.replace(b": 5", b": +5"),
    HELLO.replace(b": 5", b": 5x"),
    HELLO.replace(b"*/*", b"*/* "),
    HELLO.replace(b"one", b"two"),
    HELLO.replace(b"POST", b"PUT"),
    HELLO.replace(b"HTTP/1.1", b"HTTP/1.0"),
    HELLO.replace(b"Accept: */*", b"Connection: close"),
    HELLO.replace(b"Accept: */*", b"Content-Length: 5"),
    HELLO.replace(b"Accept: */*", b"Expect: 100-continue"),
    HELLO.replace(b"Accept: */*", b"Upgrade: h2c\r\nConnection: upgrade"),
    HELLO.replace(b"Accept: */*", b"Transfer-Encoding: chunked"),
    HELLO.replace(b"Host: t\r\n", b""),
    HELLO.replace(b"\r\nX-Name", b"\nX-Name"),
    HELLO.replace(b"X-Name: one", b"X-Name: one\r\n more"),
    HEAD.replace(b"\r\n", b"\n") + b"16\n\nab\r\n\r\nPOST /b\r\n\r\n",
    b"POST /a HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
    b"GET /a HTTP/1.1\r\nHost: t\r\n\r\n",
    b"POST /a HTTP/1.1\r\nHost: t\r\n\r\n",
    b"\r\n",
]


async def told(scope: Any, receive: Any, send: Any) -> None:
    """Answers with all that was read of a request; one that asks for /a/none before its body has come."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message.get("body", b"")
        more = message.get("more_body", False)
    shown = {**scope, "state": sorted(scope["state"])}
    payload = repr((sorted(shown.items()), body)).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(payload))]})
    scope["headers"].clear()  # what an application does with its scope is its own affair
    scope["path"] = scope["state"]["mine"] = "elsewhere"
    await send({"type": "http.response.body", "body": payload})


def speaking(kind: type[Protocol]) -> tuple[Protocol, Wire]:
    config = uvicorn.Config(told, http=kind, ws="none", log_config=None, access_log=False, interface="asgi3")
    config.load()
    made, wire = kind(config, ServerState(), {"shared": 1}), Wire()
    made.connection_made(wire)
    return made, wire


async def answers(kind: type[Protocol], pieces: list[bytes], turns: int) -> bytes:
    """What is written when the pieces come one by one, with so many turns of the loop after each."""
    connection, wire = speaking(kind)
    for piece in pieces:
        if wire.closed:
            break
        connection.data_received(piece)
        for _ in range(turns):
            await asyncio.sleep(0)
    for _ in range(40):
        await asyncio.sleep(0)
    connection.connection_lost(None)
    return _ID.sub(b"", wire.written)


def door(headers: list[tuple[bytes, bytes]]) -> tuple[int, bytes] | None:
    """Turns away what is of eleven bytes."""
    return (503, b"content-length: 2\r\n\r\nno") if (b"content-length", b"11") in headers else None


class Reading(Protocol):
    """Every head by the parser."""

    limits = Limits()
    doors = {"/a": door}


def recalling() -> type[Protocol]:
    return protocol(Limits(), {"/a": door})


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(
        st.sampled_from([HELLO, HELLO, OTHER, EMPTY, HELLO + OTHER]) | st.sampled_from(LIKE), min_size=1, max_size=6
    ),
    st.lists(st.integers(1, 400), max_size=8),
    st.integers(0, 6),
)
def test_what_is_answered_is_the_same(parts: list[bytes], cuts: list[int], turns: int) -> None:
    """Against a protocol that reads every head, whatever looks alike, wherever packets end, pipelined or not."""
    data, pieces = b"".join(parts), list[bytes]()
    if not cuts:
        pieces = parts
    for cut in cuts:
        pieces.append(data[:cut])
        data = data[cut:]
    pieces = [piece for piece in (*pieces, data if cuts else b"") if piece]
    recalled = asyncio.run(answers(recalling(), pieces, turns))
    assert recalled == asyncio.run(answers(Reading, pieces, turns))


@pytest.mark.parametrize("like", LIKE)
async def test_what_only_looks_alike_is_read(like: bytes) -> None:
    """Each after the head that it resembles and before it: two readers of one connection must never disagree."""
    for pieces in ([HELLO, like, OTHER], [like, HELLO, OTHER], [like, like, HELLO]):
        assert await answers(recalling(), pieces, 6) == await answers(Reading, pieces, 6)


async def test_who_was_let_in_once_is_asked_again() -> None:
    """A place at the gate is of one request: the next, whose door nobody asks while its client reads too slowly, has
    to be counted where it is answered."""
    written: list[bytes] = []
    for kind in (recalling(), Reading):
        connection, wire = speaking(kind)
        for paused in (False, True):
            if paused:
                connection.flow.pause_writing()
            connection.data_received(HELLO)
            connection.flow.resume_writing()
            for _ in range(6):
                await asyncio.sleep(0)
        connection.connection_lost(None)
        written.append(_ID.sub(b"", wire.written))
    assert written[0] == written[1]
    assert [LET_IN.encode() in answer for answer in written[0].split(b"HTTP/1.1 200")[1:]] == [True, False]


async def test_a_head_is_read_once() -> None:
    """Or nothing would be gained; with its body in the same packet or in others, of another length or none."""
    connection, wire = speaking(protocol(Limits()))
    read: list[bytes] = []
    whole = connection.on_header

    def noted(name: bytes, value: bytes) -> None:
        read.append(name)
        whole(name, value)

    connection.on_header = noted  # a parser looks its callbacks up when it is made
    connection.parser = connection._parser = type(connection.parser)(connection)
    for pieces in ([HELLO], [OTHER], [HELLO[:-5], b"he", b"llo"], [EMPTY]):
        for piece in pieces:
            connection.data_received(piece)
        for _ in range(6):
            await asyncio.sleep(0)
    assert len(read) == 4
    assert wire.written.count(b"HTTP/1.1 200") == 4
    connection.connection_lost(None)


async def test_a_client_that_names_each_request_is_not_remembered_for_ever() -> None:
    """What a head costs to remember is spent three times at most where it never comes again."""
    connection, _ = speaking(protocol(Limits()))
    for count in range(5):
        connection.data_received(HELLO.replace(b"one", b"%d" % count))
        for _ in range(6):
            await asyncio.sleep(0)
    assert isinstance(connection, Recalling)
    assert connection._known is None
    connection.connection_lost(None)


def test_a_large_head_is_not_remembered() -> None:
    """There may be ten thousand connections."""
    headers = [(b"host", b"t"), (b"x", b"y" * 5_000), (b"content-length", b"5")]
    head = b"POST / HTTP/1.1\r\n" + b"".join(b"%b: %b\r\n" % pair for pair in headers) + b"\r\n"
    assert known_of(head, headers, {}) is None
    assert known_of(head.replace(b"y", b""), [headers[0], (b"x", b""), headers[2]], {}) is not None
