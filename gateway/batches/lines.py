"""The lines of a batch: what stands in its input, and how its results are written.

Knows: JSON lines, OpenAI's shapes of input, output and errors. Does not know: files, SQL, how a request is answered.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import NamedTuple

import msgspec
from msgspec import Struct

from gateway.body import decode_object
from gateway.errors import GatewayError
from gateway.ids import uuid7

LARGEST_LINE = 4 << 20
MOST_ERRORS = 100  # of an input that are told
_LONGEST_ID = 512
_BOM = b"\xef\xbb\xbf"  # editors and shells of Windows begin a file with it
_encode = msgspec.json.Encoder().encode
Json = dict[str, object]


class Read(NamedTuple):
    """One line that can be run; `request`: its body as JSON."""

    number: int
    custom_id: str
    request: bytes


class Faults(Struct, kw_only=True):
    """What is wrong with an input: the first faults of it, by line."""

    found: list[Json] = []

    def add(self, line: int | None, code: str, message: str, param: str | None = None) -> None:
        if len(self.found) < MOST_ERRORS:
            self.found.append({"code": code, "line": line, "message": message, "param": param})


class _Line(Struct):
    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


_decode = msgspec.json.Decoder(_Line).decode


async def lines_of(content: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """The lines of a file that comes in pieces; one that is too long comes cut, one byte over the limit."""
    held = b""
    async for piece in content:
        *whole, held = (held + piece).split(b"\n")
        for line in whole:
            yield line
        if len(held) > LARGEST_LINE:
            held = held[: LARGEST_LINE + 1]
    if held:
        yield held


async def read(content: AsyncIterator[bytes], endpoint: str, most: int, faults: Faults) -> AsyncGenerator[Read, None]:
    """Every line in order; what is wrong is added to `faults`. Stops once there are too many lines."""
    seen: set[str] = set()
    number = 0
    async for raw in lines_of(content):
        number += 1
        text = (raw.removeprefix(_BOM) if number == 1 else raw).strip()
        if not text:
            continue
        if len(seen) >= most:
            faults.add(number, "too_many_requests", f"A batch may hold at most {most:,} requests (kept.batch_lines).")
            return
        if (line := _checked(text, number, endpoint, faults)) is None:
            continue
        if line.custom_id in seen:
            shown = line.custom_id[:100]
            faults.add(number, "duplicate_custom_id", f"The custom_id {shown!r} is used more than once.", "custom_id")
        seen.add(line.custom_id)
        yield line
    if not seen and not faults.found:
        faults.add(None, "empty_file", "The input file holds no request.")


def _checked(text: bytes, number: int, endpoint: str, faults: Faults) -> Read | None:
    if len(text) > LARGEST_LINE:
        faults.add(number, "line_too_long", f"A line may hold at most {LARGEST_LINE:,} bytes.")
        return None
    try:
        line = _decode(text)
        body = decode_object(bytes(line.body))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        faults.add(number, "invalid_json_line", f"This line is not a request as JSON: {str(error)[:200]}.")
        return None
    except GatewayError as error:
        faults.add(number, "invalid_json_line", error.message[:200], "body")
        return None
    if not 1 <= len(line.custom_id) <= _LONGEST_ID or not line.custom_id.isprintable():
        faults.add(
            number, "invalid_custom_id", f"custom_id must be 1 to {_LONGEST_ID} printable characters.", "custom_id"
        )
    elif line.method != "POST":
        faults.add(number, "invalid_method", "method must be POST.", "method")
    elif line.url != endpoint:
        faults.add(number, "mismatched_endpoint", f"url must be {endpoint}, the batch's endpoint.", "url")
    elif not isinstance(body.get("model"), str):
        faults.add(number, "missing_required_parameter", "body.model must name a model.", "body.model")
    else:
        return Read(number, line.custom_id, _encode(body))
    return None


def answered(custom_id: str, status: int, request_id: str, body: bytes) -> bytes:
    """A line of the output, or of the error file where the answer is a refusal."""
    response: Json = {"status_code": status, "request_id": request_id, "body": msgspec.Raw(body)}
    return _told(custom_id, response, None)


def unanswered(custom_id: str, code: str, message: str) -> bytes:
    """A line of the error file for a request that has no answer."""
    return _told(custom_id, None, {"code": code, "message": message})


def _told(custom_id: str, response: Json | None, error: Json | None) -> bytes:
    name = f"batch_req_{uuid7().replace('-', '')}"
    return _encode({"id": name, "custom_id": custom_id, "response": response, "error": error}) + b"\n"
