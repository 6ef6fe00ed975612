"""Answers as they are written: framing by the rules, and nothing of the application's mistakes on the wire."""

import asyncio
import logging
from typing import Any

import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from gateway.server_cycle import Cycle, lines_of
from tests.unit.edge.edge_wire import Wire


def cycle(wire: Wire, *, method: str = "POST", version: str = "1.1") -> Cycle:
    scope: Any = {"type": "http", "method": method, "http_version": version}
    quiet = logging.getLogger("test.silent")
    quiet.setLevel(logging.CRITICAL + 1)
    return Cycle(
        scope=scope,
        transport=wire,
        flow=FlowControl(wire),
        logger=quiet,
        access_logger=quiet,
        access_log=False,
        default_headers=[(b"date", b"today")],
        message_event=asyncio.Event(),
        expect_100_continue=False,
        keep_alive=True,
        on_response=lambda: None,
    )


def start(*headers: tuple[bytes, bytes], status: int = 200) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def body(data: bytes = b"", *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


def lengthed(data: bytes) -> tuple[bytes, bytes]:
    return (b"content-length", b"%d" % len(data))


async def sent(*messages: dict[str, Any], method: str = "POST", version: str = "1.1") -> Wire:
    wire = Wire()
    answering = cycle(wire, method=method, version=version)
    for message in messages:
        await answering.send(message)
    return wire


async def test_every_answer_has_an_id_of_its_own() -> None:
    """SDKs show it to whoever reports a problem; the application's own one stands."""
    without = await sent(start(lengthed(b"")), body())
    assert without.written.count(b"x-request-id: ") == 1
    given = await sent(start(lengthed(b""), (b"X-Request-Id", b"mine")), body())
    assert given.written.count(b"x-request-id: ") == 1
    assert b"x-request-id: mine\r\n" in given.written


async def test_a_body_without_a_length_is_chunked() -> None:
    """One write per event; an empty piece in the middle must not end the body."""
    wire = await sent(start(), body(b"ab", more=True), body(more=True), body(b"c"))
    assert wire.written.endswith(b"\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n")
    assert not wire.closed


async def test_http_1_0_gets_a_body_that_ends_with_the_connection() -> None:
    """No chunk sizes between the events."""
    wire = await sent(start(), body(b"ab", more=True), body(b"c"), version="1.0")
    assert wire.written.endswith(b"connection: close\r\n\r\nabc")
    assert wire.closed


@pytest.mark.parametrize("status", [204, 304])
async def test_answers_without_a_body_are_not_framed(status: int) -> None:
    """A chunk after 304 would be the start of the next answer."""
    wire = await sent(start(status=status), body())
    assert b"transfer-encoding" not in wire.written
    assert wire.written.endswith(b"\r\n\r\n")


async def test_head_keeps_the_length_and_drops_the_body() -> None:
    """RFC 9110: the headers of GET, nothing after them."""
    wire = await sent(start(lengthed(b"abc")), body(b"abc"), method="HEAD")
    assert b"content-length: 3\r\n" in wire.written
    assert wire.written.endswith(b"\r\n\r\n")


async def test_the_application_may_close() -> None:
    """`connection: close` is said once and done."""
    wire = await sent(start(lengthed(b""), (b"connection", b"Close")), body())
    assert wire.written.lower().count(b"connection: close") == 1
    assert wire.closed


@pytest.mark.parametrize(
    "header",
    [
        (b"x", b"a\r\nx-evil: 1"),
        (b"x", b"a\nb"),
        (b"x", b"a\0"),
        (b"x y", b"a"),
        (b"x\r\ny", b"a"),
        (b"", b"a"),
    ],
)
async def test_a_header_that_is_none_never_reaches_the_wire(header: tuple[bytes, bytes]) -> None:
    """Header injection by way of something we relay; twice, as names that passed are remembered."""
    for _ in range(2):
        wire = Wire()
        with pytest.raises(RuntimeError, match="header"):
            await cycle(wire).send(start(header))
        assert wire.written == b""


async def test_a_tab_is_legal_in_a_value() -> None:
    """The one control character that is."""
    assert b"x: a\tb\r\n" in (await sent(start((b"x", b"a\tb")), body())).written


@pytest.mark.parametrize(
    "messages",
    [
        [body()],
        [start(), start()],
        [start(lengthed(b"a")), body(b"ab")],
        [start(lengthed(b"ab")), body(b"a")],
        [start(lengthed(b"")), body(), body()],
    ],
)
async def test_messages_out_of_order_are_refused(messages: list[dict[str, Any]]) -> None:
    """A bug of the application must show here, not as a broken answer."""
    with pytest.raises(RuntimeError):
        await sent(*messages)


async def test_a_head_that_fails_is_followed_by_a_whole_500() -> None:
    """What the failed head left behind must not frame the next."""
    wire = Wire()
    answering = cycle(wire)

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send(start(lengthed(b"0123456789"), (b"x", b"a\r\nb")))

    await answering.run_asgi(application)
    head, _, payload = wire.written.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 500 ")
    assert b"content-length: %d" % len(payload) in head
    assert b"server_error" in payload


def test_the_servers_own_headers_are_those_of_now() -> None:
    """Their lines are kept between requests: a list that was made anew has another date."""
    first = [(b"date", b"one"), (b"server", b"nearhit")]
    assert lines_of(first) == lines_of(first) == b"date: one\r\nserver: nearhit\r\n"
    assert lines_of([(b"date", b"two")]) == b"date: two\r\n"
