"""Reads a request's body off the wire and decodes it once, with every bound in place.

Knows ASGI's receive(), HTTP's content headers and JSON. Does not know what a request means: `gateway.wire` does.
"""

import asyncio
import re
import zlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, cast

import msgspec

from gateway.errors import InvalidRequest, RequestTimeout, TooLarge, UnsupportedMedia

Receive = Callable[[], Awaitable[Any]]  # ASGI messages are plain dicts; the servers type them each in their own way
Headers = Iterable[tuple[bytes, bytes]]

DEEPEST = 64
SLOWEST_BYTES_PER_SECOND = 65_536  # a body may take its time-out plus what it needs at this pace

_decode = msgspec.json.Decoder(dict[str, object]).decode
_pack = msgspec.msgpack.Encoder().encode
_BOM = b"\xef\xbb\xbf"
_WRONG_TYPE = re.compile(r"got `(\w+)`")
# Every escape is consumed in turn, so that an escaped backslash before "ud800" is never taken for a surrogate.
_ESCAPE = re.compile(
    rb"\\(?:u([dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}|u([dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
_OF_THE_BODY = frozenset((b"content-type", b"content-length", b"content-encoding"))
_UTF8 = frozenset((b"utf-8", b"utf8", b"us-ascii", b"ascii"))
_INFLATE_STEP = 1 << 16
_LONGEST_PATH = 200  # characters of it that are told back
_CONTAINERS = frozenset((dict, list))


async def read_body(
    receive: Receive,
    headers: Headers,
    *,
    limit: int,
    timeout: float,
    monotonic: Callable[[], float],
) -> bytes:
    """The whole body, decompressed, at most `limit` bytes long (both before and after decompression).

    `timeout` seconds bound the upload; a body that keeps arriving at 64 KiB/s or faster gets the time it needs.
    Raises UnsupportedMedia (not JSON, unknown content-encoding), TooLarge, RequestTimeout, InvalidRequest.
    """
    encoding = _check_headers(headers, limit)
    raw = await _receive_all(receive, limit, timeout, monotonic)
    return raw if encoding is None else await _inflated(raw, encoding, limit)


async def arrived_body(raw: bytes, headers: Headers, *, limit: int) -> bytes:
    """The same of a body that the server has whole already. Raises UnsupportedMedia, TooLarge, InvalidRequest."""
    encoding = _check_headers(headers, limit)
    if len(raw) > limit:
        raise _too_large(limit)
    return raw if encoding is None else await _inflated(raw, encoding, limit)


def decode_object(raw: bytes) -> dict[str, object]:
    """The JSON object in `raw`: strict UTF-8, at most 64 levels, numbers in range, the last of duplicate keys.

    A lone surrogate becomes U+FFFD (it could be neither hashed, embedded nor stored). Raises InvalidRequest.
    """
    found = _decode_strict(raw)
    # Few brackets cannot nest deeply: counting them is quicker than walking.
    if raw.count(b"{") + raw.count(b"[") > DEEPEST and _too_deep(found):
        raise InvalidRequest(f"The request body is nested more than {DEEPEST} levels deep.", code="invalid_json")
    try:
        _pack(found)  # the cheapest walk over all numbers: msgpack has no integer beyond 64 bits
    except OverflowError:
        param = _beyond(found)[:_LONGEST_PATH]
        why = f"Invalid value for '{param}': an integer beyond 64 bits."
        raise InvalidRequest(why, param=param, code="invalid_json") from None
    return found


def _beyond(value: object, path: str = "") -> str:
    """Where the first integer stands that 64 bits cannot hold, as a JSON path; empty where there is none."""
    parts: list[tuple[str, object]] = []
    if isinstance(value, dict):
        parts = [(f"{path}.{name}" if path else name, item) for name, item in cast("dict[str, object]", value).items()]
    elif isinstance(value, list):
        parts = [(f"{path}[{at}]", item) for at, item in enumerate(cast("list[object]", value))]
    elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        return path
    return next((where for place, item in parts if (where := _beyond(item, place))), "")


def _check_headers(headers: Headers, limit: int) -> bytes | None:
    """The content-encoding to undo, None for none."""
    encoding = None
    for name, value in headers:
        if name not in _OF_THE_BODY:
            continue
        if name == b"content-type":
            if value != b"application/json":
                _check_content_type(value)
        elif name == b"content-length":
            if value.isdigit() and int(value[:20]) > limit:
                raise _too_large(limit)
        else:
            coding = value.strip().lower()
            if coding not in (b"gzip", b"x-gzip", b"deflate", b"identity", b""):
                raise UnsupportedMedia("Unsupported content-encoding: send the body plain, or as gzip or deflate.")
            encoding = coding if coding not in (b"identity", b"") else None
    return encoding


def _check_content_type(value: bytes) -> None:
    media, _, parameters = value.partition(b";")
    media = media.strip().lower()
    if media not in (b"application/json", b"") and not media.endswith(b"+json"):
        shown = media[:100].decode("latin-1")
        raise UnsupportedMedia(f"Unsupported content-type {shown!r}: send the request as application/json.")
    if b"charset" in parameters.lower():
        charset = parameters.lower().partition(b"charset")[2].partition(b";")[0].strip(b" =\"'")
        if charset not in _UTF8:
            raise UnsupportedMedia("Unsupported charset: JSON is sent as UTF-8.")


async def _receive_all(receive: Receive, limit: int, timeout: float, monotonic: Callable[[], float]) -> bytes:
    began = monotonic()
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(timeout) as bound:
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise InvalidRequest("The connection was closed before the request body was complete.")
                pieces.append(message.get("body", b""))
                size += len(pieces[-1])
                if size > limit:
                    raise _too_large(limit)
                if not message.get("more_body", False):
                    return b"".join(pieces)
                left = timeout + size / SLOWEST_BYTES_PER_SECOND - (monotonic() - began)
                bound.reschedule(asyncio.get_running_loop().time() + left)
    except TimeoutError:
        raise RequestTimeout(f"The request body did not arrive within {timeout:g} s.") from None


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"The request body is larger than the {limit:,} bytes this server accepts (server.max_body).")


async def _inflated(raw: bytes, encoding: bytes, limit: int) -> bytes:
    """Inflating 16 MiB takes tens of milliseconds: too long for the event loop."""
    return await asyncio.to_thread(_inflate, raw, encoding, limit)


def _inflate(raw: bytes, encoding: bytes, limit: int) -> bytes:
    """Undo gzip (several members too) or deflate; never holds more than `limit` plus one step of output."""
    # 31: gzip; "deflate" is zlib's format by the RFC and raw deflate in the wild, told apart by the first byte.
    bits = 31 if encoding != b"deflate" else (zlib.MAX_WBITS if raw[:1] == b"\x78" else -zlib.MAX_WBITS)
    out = bytearray()
    rest = raw
    try:
        while rest:
            engine = zlib.decompressobj(bits)
            while not engine.eof:
                step = engine.decompress(rest, _INFLATE_STEP)
                out += step
                if len(out) > limit:
                    raise _too_large(limit)
                rest = engine.unconsumed_tail
                if not step and not rest and not engine.eof:
                    raise InvalidRequest("The compressed request body ends too early.", code="invalid_encoding")
            rest = engine.unused_data.lstrip(b"\0")
    except zlib.error:
        raise InvalidRequest(
            "The request body is not valid in its content-encoding.", code="invalid_encoding"
        ) from None
    return bytes(out)


def _decode_strict(raw: bytes) -> dict[str, object]:
    try:
        return _decode(raw)
    except UnicodeDecodeError:
        raise InvalidRequest("The request body is not valid UTF-8.", code="invalid_json") from None
    except RecursionError:
        raise InvalidRequest(
            f"The request body is nested more than {DEEPEST} levels deep.", code="invalid_json"
        ) from None
    except msgspec.ValidationError as error:
        raise _not_an_object(str(error)) from None
    except msgspec.DecodeError as error:
        mended = _mend(raw)
        if mended == raw:
            raise InvalidRequest(_malformed(raw, str(error)), code="invalid_json") from None
    return _decode_strict(mended)


def _mend(raw: bytes) -> bytes:
    """Without a byte order mark and without lone surrogates: the two faults that are forgiven."""
    return _ESCAPE.sub(_whole_or_replaced, raw.removeprefix(_BOM))


def _whole_or_replaced(found: re.Match[bytes]) -> bytes:
    return b"\\ufffd" if found[2] else found[0]


def _malformed(raw: bytes, why: str) -> str:
    if not raw.strip():
        return "The request body is empty: send a JSON object."
    return f"The request body is not valid JSON: {why.removeprefix('JSON is malformed: ')}."


def _not_an_object(why: str) -> InvalidRequest:
    if "out of range" in why:
        return InvalidRequest("The request body holds a number out of range.", code="invalid_json")
    got = _WRONG_TYPE.search(why)
    return InvalidRequest(
        f"The request body must be a JSON object, not {got[1] if got else 'another type'}.", code="invalid_json"
    )


def _too_deep(found: dict[str, object]) -> bool:
    level: list[Any] = [found]
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if outer.__class__ is dict else outer)
            if inner.__class__ in _CONTAINERS
        ]
        if not level:
            return False
    return True
