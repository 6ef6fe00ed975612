"""One contract for both transports: HTTP in every form an upstream may send it, and what must never be passed off.

The last test is differential: the same bytes in the same packets must mean the same to both.
"""

import asyncio
import ssl
import subprocess
from collections.abc import AsyncGenerator
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.transport import BrokenOff, ConnectFailed, Exchange, TimedOut, Transport, TransportError
from gateway.transport.aiohttp import AiohttpTransport
from gateway.transport.direct import DirectTransport
from gateway.transport.seam import HttpxSeam
from tests.services import program
from tests.unit.upstream.raw_upstream import Answer, Heard, fixed, raw_upstream, response

KINDS = [AiohttpTransport, DirectTransport]
IDENTITY = {"Accept-Encoding": "identity"}


@pytest.fixture(params=KINDS)
async def transport(request: pytest.FixtureRequest) -> AsyncGenerator[Transport]:
    made: Transport = request.param()
    yield made
    await made.close()


async def get(transport: Transport, url: str, timeout: float = 5.0) -> Exchange:
    return await transport.open("POST", url, IDENTITY, b"{}", timeout)


async def fetch(transport: Transport, url: str, limit: int = 1 << 20, timeout: float = 5.0) -> tuple[int, bytes]:
    exchange = await get(transport, url, timeout)
    try:
        return exchange.status, await exchange.whole(limit, timeout)
    finally:
        exchange.close()


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
WHOLE = [
    ("with a length", response("200 OK", b"hello"), b"hello"),
    ("empty", response("200 OK", b""), b""),
    ("in chunks", CHUNKED + b"2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n", b"hello"),
    ("in chunks with trailers", CHUNKED + b"5\r\nhello\r\n0\r\nx-sum: 1\r\n\r\n", b"hello"),
    ("until the end of the connection", b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nhello", b"hello"),
    ("by HTTP/1.0", b"HTTP/1.0 200 OK\r\n\r\nhello", b"hello"),
    ("after 100 Continue", b"HTTP/1.1 100 Continue\r\n\r\n" + response("200 OK", b"hello"), b"hello"),
    ("after 103 Early Hints", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + response("200 OK", b"hello"), b"hello"),
    ("with no content", b"HTTP/1.1 204 No Content\r\n\r\n", b""),
]


@pytest.mark.parametrize(("raw", "body"), [case[1:] for case in WHOLE], ids=[case[0] for case in WHOLE])
async def test_a_body_in_every_legal_form(raw: bytes, body: bytes, transport: Transport) -> None:
    """Servers use all of them, some within one conversation."""
    async with raw_upstream(fixed(raw, close=True)) as up:
        status, found = await fetch(transport, up.url)
    assert status in (200, 204)
    assert found == body


CUT = [
    ("inside its length", response("200 OK", b"hello")[:-1]),
    ("inside a chunk", CHUNKED + b"5\r\nhel"),
    ("before the last chunk", CHUNKED + b"5\r\nhello\r\n"),
    ("inside the headers", b"HTTP/1.1 200 OK\r\ncontent-le"),
    ("before anything", b""),
    ("with nonsense for a chunk size", CHUNKED + b"zz\r\nhello\r\n0\r\n\r\n"),
    ("with nonsense for a length", b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\nhello"),
    ("with two lengths", b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 2\r\n\r\nhello"),
    ("with endless headers", b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 200_000),
    ("with a line that is no status", b"nonsense\r\n\r\n"),
]


@pytest.mark.parametrize("raw", [case[1] for case in CUT], ids=[case[0] for case in CUT])
async def test_a_cut_or_garbled_response_is_never_whole(raw: bytes, transport: Transport) -> None:
    """Truncation that goes unnoticed ends in caches and bills."""
    async with raw_upstream(fixed(raw, close=True)) as up:
        with pytest.raises(BrokenOff):
            await fetch(transport, up.url)


LONG = [f"x-{n}: {'y' * 1_000}" for n in range(60)]


async def test_a_long_head_that_comes_with_a_large_body_is_no_attack(transport: Transport) -> None:
    """Heads are counted only once so much has come that they may be too long: a body that came along is no part."""
    body = b"z" * 200_000
    async with raw_upstream(fixed(response("200 OK", body, *LONG[:5]))) as up:
        assert await fetch(transport, up.url) == (200, body)


async def test_a_head_beyond_its_bound_is_given_up_however_it_comes() -> None:
    """An upstream that never ends its head would fill the memory: many headers at once, or one without an end."""
    for raw in (response("200 OK", b"", *LONG, *LONG), b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000):
        transport = DirectTransport()
        async with raw_upstream(fixed(raw)) as up:
            with pytest.raises(BrokenOff, match="headers longer"):
                await fetch(transport, up.url)
        await transport.close()


async def test_a_content_coding_that_nobody_asked_for_is_no_answer() -> None:
    """Its bytes would be handed on, read for usage and kept as if they were JSON."""
    transport = DirectTransport()
    async with raw_upstream(fixed(response("200 OK", b"\x1f\x8b", "Content-Encoding: gzip"))) as up:
        with pytest.raises(BrokenOff):
            await fetch(transport, up.url)
    async with raw_upstream(fixed(response("200 OK", b"plain", "Content-Encoding: identity"))) as up:
        assert await fetch(transport, up.url) == (200, b"plain")
    await transport.close()


async def test_what_was_sent_arrives_as_it_is(transport: Transport) -> None:
    """Method, path, query, headers and a body of several megabytes."""
    async with raw_upstream(fixed(response("200 OK", b""))) as up:
        body = bytes(range(256)) * 16_384
        headers = {"X-One": "1", **IDENTITY}
        exchange = await transport.open("POST", f"{up.url}/a?b=c%20d", headers, body, 5.0)
        exchange.close()
        heard = up.heard[0]
    assert heard.line == "POST /v1/a?b=c%20d HTTP/1.1"
    assert heard.headers["x-one"] == "1"
    assert heard.headers["host"].startswith("127.0.0.1:")
    assert heard.body == body


async def test_headers_are_found_in_lower_case(transport: Transport) -> None:
    """Retry-After comes in every spelling."""
    async with raw_upstream(fixed(response("429 No", b"", "ReTry-AfTer: 3", "set-cookie: a=b"))) as up:
        exchange = await get(transport, up.url)
        assert exchange.headers.get("retry-after") == "3"
        exchange.close()
        # and no cookie goes back, ever
        (await get(transport, up.url)).close()
        assert "cookie" not in up.heard[1].headers


async def test_connections_are_reused_one_at_a_time(transport: Transport) -> None:
    """A new connection for every call costs more than the call; two calls on one would mix their answers."""

    async def slow(writer: asyncio.StreamWriter, heard: Heard) -> None:
        await asyncio.sleep(0.03)
        writer.write(response("200 OK", str(heard.connection).encode()))

    async with raw_upstream(slow) as up:
        for _ in range(3):
            assert (await fetch(transport, up.url))[1] == b"1"
        together = await asyncio.gather(*(fetch(transport, up.url) for _ in range(4)))
        assert len({body for _, body in together}) == 4
        again = await asyncio.gather(*(fetch(transport, up.url) for _ in range(4)))
        assert {body for _, body in again} == {body for _, body in together}


NOT_AGAIN = [
    ("the server said close", response("200 OK", b"x", "connection: close")),
    ("there was more than the answer", response("200 OK", b"x") + b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil"),
    ("the body was not read", response("200 OK", b"x" * 100)[:-1]),
    ("it was HTTP/1.0", b"HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\nx"),
]


@pytest.mark.parametrize("raw", [case[1] for case in NOT_AGAIN], ids=[case[0] for case in NOT_AGAIN])
async def test_a_connection_in_doubt_is_not_used_again(raw: bytes, transport: Transport) -> None:
    """The next caller would read the rest of somebody else's answer."""
    async with raw_upstream(fixed(raw)) as up:
        for number in (1, 2):
            exchange = await get(transport, up.url)
            assert await exchange.piece(1.0)
            exchange.close()
            await asyncio.sleep(0.02)
            assert up.heard[-1].connection == number


async def test_a_connection_the_server_closed_meanwhile_is_replaced(transport: Transport) -> None:
    """Servers drop idle connections all the time; nobody must notice."""
    writers: list[asyncio.StreamWriter] = []

    async def answer(writer: asyncio.StreamWriter, _: Heard) -> None:
        writers.append(writer)
        writer.write(response("200 OK", b"x"))

    async with raw_upstream(answer) as up:
        assert (await fetch(transport, up.url))[1] == b"x"
        writers[0].close()
        await asyncio.sleep(0.03)
        assert (await fetch(transport, up.url))[1] == b"x"
        assert [heard.connection for heard in up.heard] == [1, 2]


async def test_waits_are_bounded(transport: Transport) -> None:
    """For the head, for a piece and for the whole: each by its own limit."""

    async def stall(writer: asyncio.StreamWriter, heard: Heard) -> None:
        if b"head" in heard.body:
            writer.write(CHUNKED + b"2\r\nhe\r\n")
        await asyncio.sleep(30)

    async with raw_upstream(stall) as up:
        with pytest.raises(TimedOut):
            await transport.open("POST", up.url, IDENTITY, b"{}", 0.4)
        exchange = await transport.open("POST", up.url, IDENTITY, b"head", 60.0)
        assert await exchange.piece(60.0) == b"he"
        with pytest.raises(TimedOut):
            await exchange.piece(0.4)
        exchange.close()
        exchange = await transport.open("POST", up.url, IDENTITY, b"head", 60.0)
        with pytest.raises(TimedOut):
            await exchange.whole(100, 0.4)
        exchange.close()


async def test_steady_drops_are_no_silence(transport: Transport) -> None:
    """The silence timer starts again with every piece, the timer of the whole does not."""

    async def drip(writer: asyncio.StreamWriter, heard: Heard) -> None:
        writer.write(CHUNKED)
        for _ in range(12):
            await asyncio.sleep(0.03)
            writer.write(b"1\r\nx\r\n")
        writer.write(b"0\r\n\r\n")

    async with raw_upstream(drip) as up:
        exchange = await get(transport, up.url)
        pieces = b""
        while piece := await exchange.piece(0.2):
            pieces += piece
        assert pieces == b"x" * 12
        exchange.close()
        exchange = await get(transport, up.url)
        with pytest.raises(TimedOut):
            await exchange.whole(100, 0.15)
        exchange.close()


async def test_a_body_beyond_its_limit_is_refused(transport: Transport) -> None:
    """Bounded memory, whatever the upstream sends."""
    async with raw_upstream(fixed(response("200 OK", b"x" * 100_000))) as up:
        with pytest.raises(BrokenOff):
            await fetch(transport, up.url, limit=99_999)
        assert len((await fetch(transport, up.url, limit=100_000))[1]) == 100_000


async def test_a_slow_reader_slows_the_upstream(transport: Transport) -> None:
    """Back-pressure: what nobody reads must wait at the sender, not in our memory."""
    sent = 0

    async def flood(writer: asyncio.StreamWriter, heard: Heard) -> None:
        nonlocal sent
        writer.write(CHUNKED)
        for _ in range(1_000):
            writer.write(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
            await writer.drain()
            sent += 65_536
        writer.write(b"0\r\n\r\n")

    async with raw_upstream(flood) as up:
        exchange = await get(transport, up.url)
        await asyncio.sleep(0.3)
        assert sent < 32 << 20
        read = 0
        while piece := await exchange.piece(2.0):
            read += len(piece)
        exchange.close()
    assert read == 65_536_000


async def test_nothing_listens_there(transport: Transport) -> None:
    """Nothing was sent, and whoever pays must be able to tell."""
    async with raw_upstream(fixed(b"")) as up:
        url = up.url
    with pytest.raises(ConnectFailed, match="refused") as told:
        await get(transport, url)
    assert "127.0.0.1" not in str(told.value), "clients read this, and the address is the operator's"


async def test_a_name_nobody_has(transport: Transport) -> None:
    """The reason is told, the name is not."""
    with pytest.raises(ConnectFailed) as told:
        await get(transport, "http://inside.invalid/v1")
    assert "inside" not in str(told.value)


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/", "http:///v1", "http://127.0.0.1:99999/", "nonsense"])
async def test_an_address_that_is_none(url: str, transport: Transport) -> None:
    """From a configuration, so it is told and not raised as something else."""
    with pytest.raises(TransportError):
        await get(transport, url)


async def test_cancelling_closes_the_connection(transport: Transport) -> None:
    """A connection on which an answer is still to come can serve nobody else."""

    async def slow(writer: asyncio.StreamWriter, _: Heard) -> None:
        await asyncio.sleep(0.1)
        writer.write(response("200 OK", b"late"))

    async with raw_upstream(slow) as up:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.03):
                await get(transport, up.url)
        await asyncio.sleep(0.12)
        assert (await fetch(transport, up.url))[1] == b"late"
        assert up.heard[-1].connection == 2


async def test_a_header_cannot_smuggle_another(transport: Transport) -> None:
    """Ids and configured headers are ours, but a line break in one must still never reach the wire."""
    async with raw_upstream(fixed(response("200 OK", b""))) as up:
        with pytest.raises((TransportError, ValueError)):
            await transport.open("POST", up.url, {"x-request-id": "a\r\nx-evil: 1"}, b"", 1.0)
        assert up.heard == []


async def test_a_closed_transport_opens_nothing(transport: Transport) -> None:
    """After shutdown has begun no new call may leave."""
    async with raw_upstream(fixed(response("200 OK", b""))) as up:
        (await get(transport, up.url)).close()
        await transport.close()
        with pytest.raises(TransportError):
            await get(transport, up.url)
        assert len(up.heard) == 1


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate for localhost in one file, signed by itself."""
    folder = tmp_path_factory.mktemp("tls")
    made = folder / "both.pem"
    command = [str(program("openssl")), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    command += ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(command, check=True, capture_output=True)
    made.write_bytes((folder / "key.pem").read_bytes() + (folder / "cert.pem").read_bytes())
    return made


@pytest.mark.parametrize("kind", KINDS)
async def test_tls_is_checked(kind: type[AiohttpTransport] | type[DirectTransport], certificate: Path) -> None:
    """A certificate nobody vouches for, or one for another name, is no connection; a trusted one is."""
    here = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    here.load_cert_chain(certificate)
    async with raw_upstream(fixed(response("200 OK", b"secret")), tls=here) as up:
        port = up.port
        trusting = ssl.create_default_context(cafile=str(certificate))
        for trust, host, fine in (
            (None, "localhost", False),
            (trusting, "localhost", True),
            (trusting, "127.0.0.1", False),
        ):
            transport = kind(trust=trust)
            try:
                url = f"https://{host}:{port}/v1"
                if fine:
                    assert await fetch(transport, url) == (200, b"secret")
                    assert await fetch(transport, url) == (200, b"secret")
                else:
                    with pytest.raises(ConnectFailed, match="certificate is not trusted") as told:
                        await get(transport, url)
                    assert host not in str(told.value)
            finally:
                await transport.close()
        assert {heard.connection for heard in up.heard} == {up.heard[0].connection}


async def test_httpx_runs_on_top(transport: Transport) -> None:
    """Code that wants httpx's client gets our pool beneath it, and httpx's errors above."""
    async with (
        raw_upstream(fixed(response("200 OK", b'{"a": 1}', "x-a: b"))) as up,
        httpx.AsyncClient(transport=HttpxSeam(transport), trust_env=False) as client,
    ):
        answer = await client.post(up.url, json={"x": 1}, headers={"authorization": "Bearer x"})
        assert answer.json() == {"a": 1}
        assert answer.headers["x-a"] == "b"
        assert up.heard[0].body == b'{"x":1}'
        assert up.heard[0].headers["authorization"] == "Bearer x"
        async with client.stream("GET", up.url) as streamed:
            assert b"".join([piece async for piece in streamed.aiter_bytes()]) == b'{"a": 1}'
        url = up.url
    async with httpx.AsyncClient(transport=HttpxSeam(transport), trust_env=False) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(url)


RESPONSES = [case[1] for case in [*WHOLE, *CUT] if len(case[1]) < 1_000] + [case[1] for case in NOT_AGAIN]


def in_packets(raw: bytes, cuts: list[int]) -> Answer:
    places = sorted({min(cut, len(raw)) for cut in cuts} | {0, len(raw)})

    async def answer(writer: asyncio.StreamWriter, _: Heard) -> None:
        for start, end in pairwise(places):
            writer.write(raw[start:end])
            await writer.drain()
            await asyncio.sleep(0.001)
        writer.close()

    return answer


async def outcome(kind: type[AiohttpTransport] | type[DirectTransport], raw: bytes, cuts: list[int]) -> object:
    transport = kind()
    try:
        async with raw_upstream(in_packets(raw, cuts)) as up:
            return await fetch(transport, up.url, timeout=0.4)
    except TransportError:
        # aiohttp finds some broken bodies only by its timeout, so how it was found is not compared.
        return "not whole"
    finally:
        await transport.close()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(RESPONSES), st.lists(st.integers(1, 120), max_size=3))
def test_both_transports_read_the_same_in_any_packets(raw: bytes, cuts: list[int]) -> None:
    """The quick one may take the other's place only where nobody can tell them apart."""

    async def compare() -> None:
        expected, found = await asyncio.gather(*(outcome(kind, raw, cuts) for kind in KINDS))
        assert found == expected

    asyncio.run(compare())
