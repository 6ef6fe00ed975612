"""The table of bad input, row by row, over raw sockets against a real worker: every answer is a JSON error that says
where the fault is, none is a 5xx, and the worker goes on serving."""

import asyncio
import gzip
import socket
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from gateway.serve_home import take_first_key
from tests import empty_database
from tests.flow.edge_fields import CHAT, COMPLETE, ROWS, Row
from tests.flow.edge_process import ask_patiently, ending, spawn
from tests.flow.edge_rig import Answer, Client, ask, connected, decode, post

LIMIT = 1 << 20
HI = [{"role": "user", "content": "hi"}]
encode = msgspec.json.encode


class Gateway(NamedTuple):
    """Where the real application answers, and a key for it."""

    port: int
    key: str
    admin: Path

    def request(self, body: bytes, *headers: str, path: str = CHAT, version: str = "1.1") -> bytes:
        return post(body, f"authorization: Bearer {self.key}", *headers, path=path, version=version)

    async def chat(self, body: Any, path: str = CHAT) -> Answer:
        raw = body if isinstance(body, bytes) else encode(body)
        return await ask(self.port, self.request(raw, path=path))

    async def get(self, path: str, *headers: str, method: str = "GET") -> Answer:
        lines = [f"{method} {path} HTTP/1.1", "host: t", f"authorization: Bearer {self.key}", *headers]
        return await ask(self.port, "\r\n".join(lines).encode() + b"\r\n\r\n")


@pytest.fixture(scope="module", params=["uvicorn", "granian"])
def gateway(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    home: Path = tmp_path_factory.mktemp("rows")
    variables = {
        "NEARHIT_SERVER__PORT": "0",
        "NEARHIT_SERVER__SERVER": request.param,
        "NEARHIT_SERVER__MAX_BODY": str(LIMIT),
        "NEARHIT_ENGINES": '{"local": {"model": "sim"}}',
        "NEARHIT_CACHE__MODE": "exact",
        "NEARHIT_LEDGER__DURABILITY": "off",
    }
    (home / "run").mkdir()
    empty_database.put(home / "nearhit.db")
    with socket.create_server(("127.0.0.1", 0), backlog=512) as sock:
        arguments = ["-m", "gateway.server", "--fd", str(sock.fileno()), "--admin", str(home / "run" / "admin.sock")]
        with ending(spawn(arguments, home, variables, (sock.fileno(),))) as process:
            port = sock.getsockname()[1]
            asyncio.run(ask_patiently(port, b"GET /health/live HTTP/1.1\r\nhost: t\r\n\r\n", process))
            key = take_first_key(home)
            assert key is not None, "the worker left no first key"
            yield Gateway(port, key, home / "run" / "admin.sock")


async def test_an_ordinary_request_is_answered(gateway: Gateway) -> None:
    """Otherwise every refusal below proves nothing."""
    answer = await gateway.chat({"model": "chat", "messages": HI})
    assert answer.status == 200, answer.body
    assert decode(answer.body)["object"] == "chat.completion"
    assert "x-request-id" in answer.headers


BODIES: list[tuple[str, bytes, set[int]]] = [
    ("malformed JSON", b'{"model": ', {400}),
    ("empty body", b"", {400}),
    ("JSON array", b"[1]", {400}),
    ("JSON string", b'"x"', {400}),
    ("null", b"null", {400}),
    ("trailing garbage", b'{"model":"chat","messages":[]} x', {400}),
    ("invalid UTF-8", b'{"model":"chat","messages":[{"role":"user","content":"\xff"}]}', {400}),
    ("UTF-16", '{"model":"chat"}'.encode("utf-16"), {400}),
    ("NaN", b'{"model":"chat","messages":[{"role":"user","content":"x"}],"temperature":NaN}', {400}),
    ("200k deep", b'{"a":' + b"[" * 200_000, {400}),
    ("6000 digits", b'{"model":"chat","seed":' + b"9" * 6000 + b"}", {400}),
    ("duplicate key", b'{"model":"zzz","model":"chat","messages":[{"role":"user","content":"x"}]}', {200}),
    ("BOM", b"\xef\xbb\xbf" + encode({"model": "chat", "messages": HI}), {200}),
    ("lone surrogate", rb'{"model":"chat","messages":[{"role":"user","content":"\ud800"}]}', {200}),
    ("NUL", rb'{"model":"chat","messages":[{"role":"user","content":"a\u0000b"}]}', {200}),
    ("unknown field", encode({"model": "chat", "messages": HI, "zzz": 1}), {200}),
    ("null fields", encode({"model": "chat", "messages": HI, "temperature": None, "stop": None, "n": None}), {200}),
    ("over the limit", b"x" * (LIMIT + 1), {413}),
    ("unknown model", encode({"model": "nope", "messages": HI}), {404}),
    ("CRLF in model", encode({"model": "chat\r\nx-evil: 1", "messages": HI}), {400, 404}),
    ("100 KB model name", encode({"model": "m" * 100_000, "messages": HI}), {400, 404}),
    ("huge max_tokens", encode({"model": "chat", "messages": HI, "max_tokens": 10**9}), {200, 400}),
    (
        "image to a text model",
        encode(
            {
                "model": "chat",
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}],
                    }
                ],
            }
        ),
        {400},
    ),
    ("stream of a bad request", encode({"model": "chat", "messages": [], "stream": True}), {400}),
    ("stream of an unknown model", encode({"model": "nope", "messages": HI, "stream": True}), {404}),
]


@pytest.mark.parametrize(("body", "expected"), [pytest.param(*row[1:], id=row[0]) for row in BODIES])
async def test_bodies(gateway: Gateway, body: bytes, expected: set[int]) -> None:
    """Groups A and B: what the body is."""
    began = time.monotonic()
    answer = await gateway.chat(body)
    assert answer.status in expected, answer.body[:500]
    assert time.monotonic() - began < 60
    assert "x-request-id" in answer.headers
    assert "x-evil" not in answer.headers
    if answer.status != 200:
        assert answer.code is None or answer.code
        assert len(answer.body) < 8_000
        assert answer.headers["content-type"].startswith("application/json")


@pytest.mark.parametrize("row", [pytest.param(row, id=f"row {row.number}") for row in ROWS])
async def test_fields(gateway: Gateway, row: Row) -> None:
    """Groups B and C: 400, `param` says where, and the connection is as good as before."""
    async with connected(gateway.port) as client:
        await client.send(gateway.request(encode(row.body), path=row.path))
        answer = await client.answer()
        error = decode(answer.body)["error"]
        assert (answer.status, error["type"], error["param"]) == (400, "invalid_request_error", row.param)
        assert error["code"] in {"invalid_value", "invalid_type", "missing_required_parameter"}
        assert error["message"]
        await client.send(f"GET /v1/models HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {gateway.key}\r\n\r\n".encode())
        assert (await client.answer()).status == 200


async def test_the_operation_of_the_past_says_where_too(gateway: Gateway) -> None:
    """The checks of legacy completions are others."""
    answer = await gateway.chat({"model": "chat", "prompt": {}}, COMPLETE)
    assert (answer.status, decode(answer.body)["error"]["param"]) == (400, "prompt")


async def test_no_content_type_is_taken_for_json(gateway: Gateway) -> None:
    """Row 115: hand-written clients leave it out."""
    request = gateway.request(encode({"model": "chat", "messages": HI}))
    answer = await ask(gateway.port, request.replace(b"content-type: application/json\r\n", b""))
    assert (answer.status, decode(answer.body)["object"]) == (200, "chat.completion")


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("x: y", {401}),
        ("authorization: Bearer sk-wrong", {401}),
        ("authorization: Bearer sk-nh-aaaaaaaa-" + "b" * 43 + "cccccc", {401}),
        ("authorization: Basic eDp5", {401}),
        ("authorization: Bearer k\xe9y", {400, 401}),
        ("authorization: Bearer " + "k" * 16_384, {400, 401, 431}),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else "",
)
async def test_keys(gateway: Gateway, header: str, expected: set[int]) -> None:
    """Group E: refused without an echo of what was sent."""
    for path, request in (
        (CHAT, post(encode({"model": "chat", "messages": HI}), header, path=CHAT)),
        ("/v1/models", None),
    ):
        raw = request or f"GET {path} HTTP/1.1\r\nhost: t\r\n{header}\r\n\r\n".encode("latin-1")
        answer = await ask(gateway.port, raw)
        assert answer.status in expected
        assert answer.code is None or answer.code
        assert b"kkkk" not in answer.body
        assert b"sk-wrong" not in answer.body


async def test_the_scheme_may_be_written_in_any_case(gateway: Gateway) -> None:
    """Portkey answered 401 to 'bearer'."""
    body = encode({"model": "chat", "messages": HI})
    answer = await ask(gateway.port, post(body, f"authorization: bearer {gateway.key}", path=CHAT))
    assert answer.status == 200


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/nope", {404}),
        ("/chat/completions", {200}),
        ("/v1/chat/completions?beta=true&api-version=1", {200}),
        ("/v1/chat/completions/", {200, 404}),
        ("//v1//chat/completions", {200, 400, 404}),
        ("/v1/files/..%2f..%2fetc%2fpasswd", {400, 401, 404, 405}),
        ("/%", {400, 404}),
    ],
)
async def test_paths(gateway: Gateway, path: str, expected: set[int]) -> None:
    """Group F: no redirect that drops a body, no framework's own error body."""
    answer = await gateway.chat({"model": "chat", "messages": HI}, path)
    assert answer.status in expected
    assert answer.status == 200 or answer.code is None or answer.code


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", CHAT, {405}),
        ("DELETE", CHAT, {405}),
        ("FOO", CHAT, {400, 404, 405, 501}),
        ("GET", "/v1/models/chat", {200}),
        ("GET", "/v1/models/nope", {404}),
        ("GET", "/v1/models/%F0%9F%98%80", {404}),
        ("OPTIONS", CHAT, {200, 204, 403, 404, 405}),
    ],
)
async def test_methods(gateway: Gateway, method: str, path: str, expected: set[int]) -> None:
    """Group F: every refusal is one of ours."""
    answer = await gateway.get(path, method=method)
    assert answer.status in expected
    assert "x-request-id" in answer.headers
    if answer.status >= 400:
        assert answer.code is None or answer.code


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/chat", "/metrics", "/docs", "/ui/login", "/api/v1/nothing"])
async def test_head_has_no_body(gateway: Gateway, path: str) -> None:
    """A client that probes learns what a GET would answer, and must not wait for bytes that do not come."""
    async with connected(gateway.port) as client:
        await client.send(
            b"HEAD " + path.encode() + b" HTTP/1.1\r\nhost: t\r\nconnection: close\r\n"
            b"authorization: Bearer " + gateway.key.encode() + b"\r\n\r\n"
        )
        told = await client.closed()
    assert int(told.split(b" ")[1]) == (await gateway.get(path)).status
    assert told.endswith(b"\r\n\r\n")


@cache
def bomb() -> bytes:
    """Packed when it is sent, not by every process that collects this file: it takes a second."""
    return gzip.compress(bytes(200 << 20), 1, mtime=0)


@pytest.mark.parametrize(
    ("headers", "packed", "expected"),
    [
        (["content-type: text/plain"], None, {200, 400, 415}),
        (["content-type: application/x-www-form-urlencoded"], None, {400, 415}),
        (["content-type: application/json; charset=utf-8"], None, {200}),
        (["content-encoding: gzip"], gzip.compress(encode({"model": "chat", "messages": HI}), mtime=0), {200}),
        (["content-encoding: gzip"], bomb, {413}),
        (["content-encoding: gzip"], b"corrupt", {400}),
        (["content-encoding: br"], None, {415}),
        (["x-request-id: " + "r" * 10_000], None, {200}),
        (["x-request-id: a%0d%0ax-evil: 1"], None, {200}),
        (["x-nearhit-max-cost-usd: lots"], None, {400}),
    ],
)
async def test_headers(
    gateway: Gateway, headers: list[str], packed: bytes | Callable[[], bytes] | None, expected: set[int]
) -> None:
    """Group G: media types, encodings, and ids that are not reflected."""
    packed = packed() if callable(packed) else packed
    body = packed if packed is not None else encode({"model": "chat", "messages": HI})
    lines = post(body, *headers, f"authorization: Bearer {gateway.key}", path=CHAT).split(b"\r\n", 3)
    if any(line.startswith("content-type") for line in headers):
        lines.remove(b"content-type: application/json")
    answer = await ask(gateway.port, b"\r\n".join(lines))
    assert answer.status in expected, answer.body[:300]
    assert "x-evil" not in answer.headers
    assert len(answer.headers["x-request-id"]) <= 512
    assert answer.status == 200 or answer.code


async def test_http_1_0_unary_and_streamed(gateway: Gateway) -> None:
    """By length, and up to the end of the connection; never in chunks."""
    unary = await ask(gateway.port, gateway.request(encode({"model": "chat", "messages": HI}), version="1.0"))
    assert (unary.status, "transfer-encoding" in unary.headers) == (200, False)
    body = encode({"model": "chat", "messages": HI, "stream": True})
    streamed = await ask(gateway.port, gateway.request(body, version="1.0"))
    assert "transfer-encoding" not in streamed.headers
    assert streamed.body.endswith(b"data: [DONE]\n\n")


async def test_a_connection_survives_refusals(gateway: Gateway) -> None:
    """400, 401, 404 and then a good one, all on one connection."""
    async with connected(gateway.port) as client:
        for request, status in (
            (gateway.request(b"nonsense"), 400),
            (post(b"{}", path=CHAT), 401),
            (gateway.request(b"{}", path="/v1/nope"), 404),
            (gateway.request(encode({"model": "chat", "messages": HI})), 200),
        ):
            await client.send(request)
            assert (await client.answer()).status == status


async def test_the_control_planes_socket_needs_no_key(gateway: Gateway) -> None:
    """Its file is the owner's alone; over TCP the same call is refused, even with a key of an application."""
    request = b"GET /api/v1/keys HTTP/1.1\r\nhost: t\r\n\r\n"
    reader, writer = await asyncio.open_unix_connection(str(gateway.admin))
    client = Client(reader, writer)
    await client.send(request)
    assert (await client.answer()).status == 200
    writer.transport.abort()
    assert (await ask(gateway.port, request)).status == 401
    assert (await gateway.get("/api/v1/keys")).status == 403


async def test_resets_in_mid_stream_leave_the_worker_serving(gateway: Gateway) -> None:
    """Five tabs closed."""
    body = encode({"model": "chat", "messages": HI, "stream": True})
    for _ in range(5):
        async with connected(gateway.port) as client:
            await client.send(gateway.request(body))
            await client.reader.readuntil(b"data: ")
    assert (await gateway.chat({"model": "chat", "messages": HI})).status == 200
