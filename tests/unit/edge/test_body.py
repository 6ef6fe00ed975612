"""Reading and decoding a request body: every bound, every refusal."""

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.body import DEEPEST, decode_object, read_body
from gateway.errors import InvalidRequest, RequestTimeout, TooLarge, UnsupportedMedia
from tests.proofs import examples

JSON = (b"content-type", b"application/json")


def receiving(*messages: dict[str, Any]) -> Any:
    async def stream() -> AsyncIterator[dict[str, Any]]:
        for message in messages:
            yield message

    return stream().__anext__


def piece(body: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


async def read(*messages: dict[str, Any], headers: list[tuple[bytes, bytes]] | None = None, limit: int = 1000) -> bytes:
    found = [JSON] if headers is None else headers
    return await read_body(receiving(*messages), found, limit=limit, timeout=1.0, monotonic=lambda: 0.0)


async def test_a_body_in_pieces_is_joined() -> None:
    """Servers hand over a body as it arrives."""
    assert await read(piece(b'{"a"', more=True), piece(b"", more=True), piece(b":1}")) == b'{"a":1}'


async def test_a_declared_length_over_the_limit_is_refused_before_reading() -> None:
    """40 MiB must not be received to be refused."""
    with pytest.raises(TooLarge):
        await read(headers=[JSON, (b"content-length", b"1001")])


async def test_an_undeclared_length_is_cut_at_the_limit() -> None:
    """A chunked upload names no length."""
    with pytest.raises(TooLarge):
        await read(*[piece(b"x" * 100, more=True)] * 11)


async def test_exactly_the_limit_passes() -> None:
    """The limit is the largest body that is accepted."""
    assert len(await read(piece(b"x" * 1000))) == 1000


@pytest.mark.parametrize(
    "kind", [b"application/x-www-form-urlencoded", b"multipart/form-data; boundary=x", b"text/plain", b"text/html"]
)
async def test_other_content_types_are_refused(kind: bytes) -> None:
    """A form sent by mistake is told so instead of failing as JSON."""
    with pytest.raises(UnsupportedMedia) as caught:
        await read(piece(b"{}"), headers=[(b"content-type", kind)])
    assert caught.value.http_status == 415


@pytest.mark.parametrize(
    "kind",
    [
        b"application/json",
        b"application/json; charset=utf-8",
        b'application/json;charset="UTF-8"',
        b"application/x+json",
        b"",
    ],
)
async def test_json_content_types_pass(kind: bytes) -> None:
    """Clients write the charset, or nothing at all."""
    assert await read(piece(b"{}"), headers=[(b"content-type", kind)]) == b"{}"


async def test_no_content_type_passes() -> None:
    """Hand-written clients leave it out."""
    assert await read(piece(b"{}"), headers=[]) == b"{}"


async def test_another_charset_is_refused() -> None:
    """JSON in UTF-16 would be read as something else."""
    with pytest.raises(UnsupportedMedia):
        await read(piece(b"{}"), headers=[(b"content-type", b"application/json; charset=utf-16")])


@pytest.mark.parametrize(
    ("coding", "packed"),
    [
        (b"gzip", gzip.compress(b'{"a": 1}', mtime=0)),
        (b"x-gzip", gzip.compress(b'{"a"', mtime=0) + gzip.compress(b": 1}", mtime=0)),
        (b"deflate", zlib.compress(b'{"a": 1}')),
        (b"deflate", zlib.compress(b'{"a": 1}', wbits=-15)),
        (b"identity", b'{"a": 1}'),
    ],
)
async def test_known_encodings_are_undone(coding: bytes, packed: bytes) -> None:
    """Some clients compress; gzip may come in members and deflate with or without zlib's frame."""
    assert await read(piece(packed), headers=[JSON, (b"content-encoding", coding)]) == b'{"a": 1}'


async def test_an_unknown_encoding_is_refused() -> None:
    """415 says which ones are known."""
    with pytest.raises(UnsupportedMedia):
        await read(piece(b"x"), headers=[JSON, (b"content-encoding", b"br")])


@pytest.mark.parametrize(
    "bad", [b"not gzip", gzip.compress(b"x" * 500, mtime=0)[:-9], gzip.compress(b"{}", mtime=0)[:-4] + b"abcd"]
)
async def test_damaged_gzip_is_a_client_error(bad: bytes) -> None:
    """Truncated or corrupt data must end as 400, not as a 500 or an endless loop."""
    with pytest.raises(InvalidRequest) as caught:
        await read(piece(bad), headers=[JSON, (b"content-encoding", b"gzip")])
    assert caught.value.http_status == 400


async def test_a_gzip_bomb_stops_at_the_limit() -> None:
    """200 MiB of zeros fit in 200 KB."""
    bomb = gzip.compress(bytes(50_000_000), compresslevel=1)
    with pytest.raises(TooLarge):
        await read(piece(bomb), headers=[JSON, (b"content-encoding", b"gzip")], limit=300_000)


async def test_a_client_that_leaves_is_noticed() -> None:
    """A body that never completes must not be parsed."""
    with pytest.raises(InvalidRequest):
        await read(piece(b"{", more=True), {"type": "http.disconnect"})


async def test_a_body_that_stalls_times_out() -> None:
    """Slow-loris: one byte and then silence."""
    queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    queue.put_nowait(piece(b"{", more=True))
    with pytest.raises(RequestTimeout):
        await read_body(queue.get, [JSON], limit=100, timeout=0.05, monotonic=asyncio.get_running_loop().time)


async def test_a_large_body_that_keeps_coming_gets_the_time_it_needs() -> None:
    """The deadline grows with what arrives, or a phone could never send a long document."""

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0.03)
        sent.append(1)
        return piece(b"x" * 10_000, more=len(sent) < 6)

    sent: list[int] = []
    loop = asyncio.get_running_loop()
    body = await read_body(receive, [JSON], limit=100_000, timeout=0.1, monotonic=loop.time)
    assert len(body) == 60_000


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a": ',
        b"",
        b"   ",
        b"[1]",
        b'"x"',
        b"null",
        b"5",
        b'{"a":1} trailing',
        b'{"a":"\xff"}',
        b'{"a":"\xed\xa0\x80"}',
        '{"a":1}'.encode("utf-16"),
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":1e999}',
        b'{"a":' + b"9" * 6000 + b"}",
        b'{"a":18446744073709551616}',
        b'{"a":-9223372036854775809}',
        b"[" * 200_000,
        b'{"a":' + b"[" * 200_000,
        b'{"a":' * 200_000,
        b"{'a':1}",
        b'{"a":1,}',
        b'{"a":"\x01"}',
    ],
    ids=lambda raw: repr(raw[:24]),
)
def test_what_is_not_a_json_object_is_refused(raw: bytes) -> None:
    """Litestar with msgspec answered 500 to two of these."""
    with pytest.raises(InvalidRequest) as caught:
        decode_object(raw)
    assert caught.value.http_status == 400
    assert caught.value.code == "invalid_json"
    assert len(caught.value.message) < 500


def test_depth_is_bounded_exactly() -> None:
    """The bound is on levels, the outer object being the first."""
    inner = DEEPEST - 1
    assert decode_object(b'{"a":' + b"[" * inner + b"]" * inner + b"}")
    with pytest.raises(InvalidRequest):
        decode_object(b'{"a":' + b"[" * DEEPEST + b"]" * DEEPEST + b"}")


def test_the_last_of_duplicate_keys_wins() -> None:
    """What the budget check sees is what is sent on."""
    assert decode_object(b'{"model":"a","model":"b"}') == {"model": "b"}


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (rb'"\ud800"', "\ufffd"),
        (rb'"\udc00x"', "\ufffdx"),
        (rb'"\ud800\u0041"', "\ufffdA"),
        (rb'"\ud800\ud83d\ude00"', "\ufffd😀"),
        (rb'"\\ud800"', "\\ud800"),
        (rb'"\\\ud800"', "\\\ufffd"),
        (rb'"\uD83D\uDE00"', "😀"),
    ],
)
def test_lone_surrogates_are_replaced_and_nothing_else(raw: bytes, expected: str) -> None:
    """They can be neither hashed, embedded nor stored; an escaped backslash before "ud800" is not one."""
    assert decode_object(b'{"a":' + raw + rb',"b":"\ud800"}')["a"] == expected


def test_a_byte_order_mark_is_forgiven() -> None:
    """Some Windows tools write one."""
    assert decode_object(b'\xef\xbb\xbf{"a":1}') == {"a": 1}


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=examples(100), deadline=None)
@given(st.dictionaries(st.text(), json_values, max_size=5))
def test_whatever_is_a_json_object_is_decoded_as_it_is(value: dict[str, object]) -> None:
    """No legal request is changed on its way in."""
    assert decode_object(msgspec.json.encode(value)) == value


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=80) | st.text(alphabet='{}[]",:\\ud80019eE.-nulltrf ', max_size=60).map(str.encode))
def test_arbitrary_bytes_are_decoded_or_refused(raw: bytes) -> None:
    """Never anything but an object or InvalidRequest."""
    try:
        found = decode_object(raw)
    except InvalidRequest:
        return
    msgspec.json.encode(found)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"model": "m", "max_tokens": 1000000000000000000000000000000}', "max_tokens"),
        (b'{"messages": [{"a": 1}, {"b": [2, -99999999999999999999]}]}', "messages[1].b[1]"),
    ],
)
def test_an_integer_that_is_too_large_is_named(body: bytes, param: str) -> None:
    """Of all numbers that make no sense this one was told without saying which field it is."""
    with pytest.raises(InvalidRequest) as caught:
        decode_object(body)
    assert (caught.value.param, caught.value.code) == (param, "invalid_json")
