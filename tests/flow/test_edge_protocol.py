"""HTTP itself over real sockets: what is malformed, oversized, slow or unusual, and what must go on working."""

import asyncio
import gzip
import logging
import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gateway.server_limits import Limits
from tests.flow.edge_rig import MAX_BODY, Client, Server, ask, connected, decode, post, serving
from tests.waiting import until

QUICK = Limits(header_timeout=0.3, body_timeout=0.5, write_timeout=0.5)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[Server, None]:
    async with serving(tmp_path, QUICK) as running:
        yield running


async def alive(server: Server) -> None:
    answer = await ask(server.port, post())
    assert (answer.status, decode(answer.body)["body"]) == (200, {"a": 1})


async def test_an_ordinary_request_is_answered(server: Server) -> None:
    """The bounds are for the others; and the server does not name itself."""
    answer = await ask(server.port, post())
    assert answer.status == 200
    assert "server" not in answer.headers
    assert "date" in answer.headers


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GARBAGE\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),
        (b"FOO / HTTP/1.1\r\nhost: t\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\nhost: t\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: t\r\nx: a\x00b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: t\r\nx : a\r\n\r\n", 400),
        (b"GET /\xff\xfe HTTP/1.1\r\nhost: t\r\n\r\n", 400),
        (b"GET http:// HTTP/1.1\r\nhost: t\r\n\r\n", 400),
        (post(b"abc", "content-length: 3", "transfer-encoding: chunked"), 400),
        (post(b"abc", "transfer-encoding: chunked", "content-length: 3"), 400),
        (post(b"abc", "content-length: 3", "content-length: 4"), 400),
        (post(b"abc", "content-length: 3", "content-length: 3"), 400),
        (post(b"abc", "content-length: -3"), 400),
        (post(b"abc", "content-length: 3x"), 400),
        (post(b"abc", "content-length: 99999999999999999999999"), 400),
        (post(b"0\r\n\r\n", "transfer-encoding: gzip"), 400),
        (post(b"0\r\n\r\n", "transfer-encoding: xchunked"), 400),
        (post(b"0\r\n\r\n", "transfer-encoding: chunked", version="1.0"), 400),
        (post(b"zz\r\nabc\r\n0\r\n\r\n", "transfer-encoding: chunked"), 400),
        (post(b"3;\x00\r\nabc\r\n0\r\n\r\n", "transfer-encoding: chunked"), 400),
        (b"GET / HTTP/1.1\r\nhost: t\r\nx: " + b"a" * 70_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nhost: t\r\n" + b"x: y\r\n" * 2_000 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nhost: t\r\n" + b"a" * 300_000, 431),
        (b"GET /?" + b"q" * 100_000 + b" HTTP/1.1\r\nhost: t\r\n\r\n", 414),
    ],
    ids=lambda value: repr(value[:40]) if isinstance(value, bytes) else "",
)
async def test_what_is_not_http_is_refused_in_the_errors_own_shape(
    server: Server, request_bytes: bytes, status: int
) -> None:
    """Smuggling, floods and plain nonsense: told why, then closed, and nobody else is the worse for it."""
    async with connected(server.port) as client:
        await client.send(request_bytes)
        answer = await client.answer()
        assert answer.status == status
        assert answer.code
        assert answer.headers["connection"] == "close"
        assert len(answer.headers["x-request-id"]) == 36
        client.writer.close()
    await alive(server)


async def test_nothing_after_a_refusal_is_taken_for_a_request(server: Server) -> None:
    """The second request of a smuggling attempt must not be answered."""
    async with connected(server.port) as client:
        await client.send(post(b"0\r\n\r\n", "content-length: 4", "transfer-encoding: chunked") + post())
        answer = await client.answer()
        assert answer.status == 400
        assert await client.closed() == b""


@pytest.mark.parametrize("fold", [b"x: a\r\n b\r\n", b"x: a\r\n\tb\r\n", b"x: a\nb: c\r\n"])
async def test_folded_and_bare_line_feeds_never_break_the_server(server: Server, fold: bytes) -> None:
    """Two ways of writing one header that proxies disagree about: refused, or read as one request."""
    answer = await ask(server.port, b"GET / HTTP/1.1\r\nhost: t\r\n" + fold + b"\r\n")
    assert answer.status in (200, 400)
    await alive(server)


async def test_half_sent_headers_are_cut_off(server: Server) -> None:
    """Slow-loris: one line and then a byte now and then; the deadline counts from the start."""
    async with connected(server.port) as client:
        await client.send(b"GET / HTTP/1.1\r\nhost: t\r\n")
        began = asyncio.get_running_loop().time()
        dripping = asyncio.ensure_future(_drip(client))  # noqa: TID251 - a test's own client
        answer = await client.answer()
        dripping.cancel()
        assert answer.status == 408
        assert asyncio.get_running_loop().time() - began < 30
        client.writer.close()


async def _drip(client: Client) -> None:
    while True:
        await client.send(b"x: y\r\n")
        await asyncio.sleep(0.05)


async def test_a_connection_that_never_speaks_is_closed(server: Server) -> None:
    """It has nothing to be answered."""
    async with connected(server.port) as client:
        assert await client.closed() == b""


async def test_empty_lines_do_not_keep_an_idle_connection(server: Server) -> None:
    """Each one used to stop the keep-alive timer for good."""
    async with connected(server.port) as client:
        await client.send(post())
        await client.answer()
        await client.send(b"\r\n")
        assert await client.closed() == b""


async def test_a_stalled_body_is_answered_408(server: Server) -> None:
    """The reader's own deadline comes first and tells most."""
    async with connected(server.port) as client:
        await client.send(post(b'{"a"', "content-length: 100"))
        answer = await client.answer()
        assert (answer.status, answer.code) == (408, "request_timeout")


async def test_a_body_nobody_reads_ends_too(server: Server) -> None:
    """A handler that answers without reading must not leave a client dripping for ever."""
    async with connected(server.port) as client:
        await client.send(post(b"x", "content-length: 100", path="/stream?1,30,1"))
        await client.reader.readuntil(b"data: 0\n\n")
        waiting = [each for each in server.connections if each.cycle is not None]
        assert len(waiting) == 1
        await until(lambda: waiting[0].cycle.keep_alive is False)


async def test_a_client_that_stops_reading_is_cut_off(server: Server) -> None:
    """Its answer would be held in memory for as long as it likes."""
    async with connected(server.port) as client:
        client.writer.transport.pause_reading()  # pyright: ignore[reportAttributeAccessIssue] - a read transport
        await client.send(b"GET /stream?10000,0,10000 HTTP/1.1\r\nhost: t\r\n\r\n")
        await until(lambda: not server.connections)
    await alive(server)


async def test_a_connection_survives_a_400(server: Server) -> None:
    """A bad request is no reason for a new handshake."""
    async with connected(server.port) as client:
        await client.send(post(b"nonsense"))
        assert (await client.answer()).status == 400
        await client.send(post())
        assert (await client.answer()).status == 200


async def test_pipelined_requests_are_answered_in_order(server: Server) -> None:
    """Two, and also many, in one packet."""
    async with connected(server.port) as client:
        await client.send(b"".join(post(b'{"n": %d}' % number) for number in range(20)))
        answers = [decode((await client.answer()).body)["body"]["n"] for _ in range(20)]
        assert answers == list(range(20))


async def test_nonsense_after_a_request_does_not_spoil_its_answer(server: Server) -> None:
    """A refusal written into the middle of a stream would be read as part of it."""
    async with connected(server.port) as client:
        await client.send(b"GET /stream?3,0.05,1 HTTP/1.1\r\nhost: t\r\n\r\n" + b"NONSENSE\r\n\r\n")
        answer = await client.answer()
        assert answer.body.endswith(b"data: [DONE]\n\n")
        assert await client.closed() == b""


async def test_too_many_pipelined_requests_are_cut(server: Server) -> None:
    """A packet of thousands of tiny requests must not become thousands of tasks."""
    async with connected(server.port) as client:
        await client.send(b"GET / HTTP/1.1\r\nhost: t\r\n\r\n" * 1_000)
        answered = (await client.closed()).count(b"HTTP/1.1 200")
        assert 1 <= answered <= QUICK.pipelined + 1
    await alive(server)


async def test_chunked_uploads_are_read(server: Server) -> None:
    """Clients that stream a body name no length; extensions and trailers are legal."""
    body = b'4;x=y\r\n{"a"\r\n4\r\n: 1}\r\n0\r\nx-admin: yes\r\n\r\n'
    answer = await ask(server.port, post(body, "transfer-encoding: chunked", "trailer: x-admin"))
    found = decode(answer.body)
    assert found["body"] == {"a": 1}
    assert found["headers"] == 4, "a trailer became a header"


async def test_http_1_0_is_answered_by_length(server: Server) -> None:
    """It knows no chunks."""
    answer = await ask(server.port, post(version="1.0"))
    assert answer.status == 200
    assert "transfer-encoding" not in answer.headers
    assert answer.headers["connection"] == "close"


async def test_http_1_0_streams_end_with_the_connection(server: Server) -> None:
    """Chunk sizes would be read as part of the events."""
    answer = await ask(server.port, b"GET /stream HTTP/1.0\r\n\r\n")
    assert "transfer-encoding" not in answer.headers
    assert answer.body == b"data: 0\n\ndata: 1\n\ndata: 2\n\ndata: [DONE]\n\n"


async def test_http_1_1_streams_are_chunked_and_keep_the_connection(server: Server) -> None:
    """The usual case."""
    async with connected(server.port) as client:
        await client.send(b"GET /stream HTTP/1.1\r\nhost: t\r\n\r\n")
        assert (await client.answer()).body.endswith(b"[DONE]\n\n")
        await client.send(post())
        assert (await client.answer()).status == 200


async def test_head_has_no_body(server: Server) -> None:
    """Health checks use it."""
    async with connected(server.port) as client:
        await client.send(b"HEAD / HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n")
        assert (await client.closed()).endswith(b"\r\n\r\n")


async def test_expect_100_continue_is_granted(server: Server) -> None:
    """curl waits for it before a large body."""
    async with connected(server.port) as client:
        await client.send(post(b"", "expect: 100-continue", "content-length: 8"))
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(b'{"a": 1}')
        assert (await client.answer()).status == 200


async def test_a_refusal_before_100_continue_closes(server: Server) -> None:
    """Whether the body still comes cannot be known, so what follows cannot be told from it."""
    async with connected(server.port) as client:
        await client.send(post(b"", "expect: 100-continue", f"content-length: {MAX_BODY + 1}"))
        answer = await client.answer()
        assert answer.status == 413
        assert answer.headers["connection"] == "close"
        assert await client.closed() == b""


async def test_a_body_over_the_limit_is_refused_and_the_connection_goes_on(server: Server) -> None:
    """The client may still be sending when it is told."""
    async with connected(server.port) as client:
        await client.send(post(b"x" * (MAX_BODY + 1)))
        assert (await client.answer()).status == 413
        await client.send(post())
        assert (await client.answer()).status == 200


@pytest.mark.parametrize(("version", "header"), [("1.1", "x-a: b"), ("1.1", "connection: close"), ("1.0", "x-a: b")])
async def test_who_sends_all_before_reading_is_told(server: Server, version: str, header: str) -> None:
    """Python's urllib does, and asks to close: it got a reset connection in place of the 413."""
    # Made before it connects: who connects and is silent for longer than the deadline for headers is hung up on.
    request = post(b"x" * (16 * MAX_BODY), header, version=version)

    def send_all() -> bytes:
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
            client.sendall(request)
            return client.recv(12)

    assert (await asyncio.to_thread(send_all)).endswith(b" 413")


async def test_an_endless_chunked_body_is_refused(server: Server) -> None:
    """The bound holds while it streams in."""
    async with connected(server.port) as client:
        await client.send(post(b"", "transfer-encoding: chunked"))
        for _ in range(40):
            await client.send(b"8000\r\n" + b"x" * 0x8000 + b"\r\n")
        assert (await client.answer()).status == 413


async def test_a_gzip_body_is_read_and_a_bomb_is_not(server: Server) -> None:
    """Compression is for the wire, not a way around the limit."""
    good = await ask(server.port, post(gzip.compress(b'{"a": 1}'), "content-encoding: gzip"))
    assert decode(good.body)["body"] == {"a": 1}
    bomb = await ask(server.port, post(gzip.compress(bytes(50 << 20), 1), "content-encoding: gzip"))
    assert bomb.status == 413
    corrupt = await ask(server.port, post(b"no gzip", "content-encoding: gzip"))
    assert corrupt.status == 400


async def test_a_body_shorter_than_declared_then_close_is_survived(server: Server) -> None:
    """The handler must not wait for what cannot come."""
    for _ in range(5):
        async with connected(server.port) as client:
            await client.send(post(b"{", "content-length: 100"))
    await alive(server)


async def test_resets_in_the_middle_of_streams_are_survived(server: Server) -> None:
    """Every closed browser tab is one."""
    for _ in range(5):
        async with connected(server.port) as client:
            await client.send(b"GET /stream?1000,0.01,1 HTTP/1.1\r\nhost: t\r\n\r\n")
            await client.reader.readuntil(b"data: 1\n\n")
    await alive(server)


async def test_half_open_connections_do_not_hinder_others(server: Server) -> None:
    """200 clients that connect and send half a line."""
    idle = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(200)]
    for _, writer in idle:
        writer.write(b"POST / HT")
    await alive(server)
    for _, writer in idle:
        writer.transport.abort()


async def test_an_upgrade_is_answered_as_the_request_it_is(server: Server) -> None:
    """Some clients offer h2c or websockets first, Java's with the body of its first request; then they go on."""
    offer = ("connection: upgrade, http2-settings", "upgrade: h2c", "http2-settings: AAMAAABkAAQBAAAAAAIAAAAA")
    async with connected(server.port) as client:
        await client.send(b"GET / HTTP/1.1\r\nhost: t\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
        assert (await client.answer()).status == 200
        for _ in range(2):
            await client.send(post(b'{"a": 1}', *offer))
            answer = await client.answer()
            assert (answer.status, decode(answer.body)["body"]) == (200, {"a": 1})
    async with connected(server.port) as client:
        await client.send(b"CONNECT t:1 HTTP/1.1\r\nhost: t\r\n\r\nnobody reads this")
        assert (await client.answer()).status >= 400
        assert await client.closed() == b""


async def test_a_crash_is_told_in_the_errors_own_shape(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """The last line behind the application's own handlers."""
    with caplog.at_level(logging.CRITICAL):
        answer = await ask(server.port, b"GET /crash HTTP/1.1\r\nhost: t\r\n\r\n")
    assert (answer.status, answer.code) == (500, "internal_error")


async def test_the_unix_socket_is_told_apart(server: Server) -> None:
    """Only it makes an administrator of whoever connects; nothing a TCP client sends looks like it."""
    reader, writer = await asyncio.open_unix_connection(str(server.unix))
    client = Client(reader, writer)
    await client.send(post())
    assert decode((await client.answer()).body)["unix"] is True
    writer.transport.abort()
    forged = await ask(server.port, post(b"{}", "x-unix-socket: true", "unix_socket: true"))
    assert decode(forged.body)["unix"] is False


async def test_more_connections_than_allowed_are_turned_away(tmp_path: Path) -> None:
    """A bound of our own, below the one of the operating system, so that it can be told."""
    async with (
        serving(tmp_path, Limits(connections=2)) as server,
        connected(server.port),
        connected(server.port),
        connected(server.port) as third,
    ):
        answer = await third.answer()
        assert (answer.status, answer.code) == (503, "overloaded")


async def test_those_turned_away_hold_no_more_than_there_is_to_spare(tmp_path: Path) -> None:
    """Each is listened to until it has read why, up to a minute: without a bound two a second took every open file."""
    async with serving(tmp_path, Limits(connections=2, surplus=3)) as server, AsyncExitStack() as held:
        many = [await held.enter_async_context(connected(server.port)) for _ in range(20)]
        answers = [(await each.answer()).status for each in many[2:5]]
        assert answers == [503] * 3
        await until(lambda: len(server.connections) <= 5)
        await many[0].send(post())
        assert (await many[0].answer()).status == 200


async def test_an_idle_connection_is_kept_for_a_while_and_then_closed(tmp_path: Path) -> None:
    """Clients pool connections; servers bound them."""
    async with serving(tmp_path, QUICK, keep_alive=1) as server, connected(server.port) as client:
        await client.send(post())
        await client.answer()
        await asyncio.sleep(0.5)  # longer than the deadline for headers
        await client.send(post())
        await client.answer()
        assert await client.closed() == b""
