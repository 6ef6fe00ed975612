"""Requests that are passed on as they are, JSON or forms, and what their answers say was used.

Knows: forms (RFC 7578), the usage of moderations, images, speech and transcriptions. Does not know: addresses,
credentials, money.
"""

from collections.abc import Sequence
from typing import cast

import msgspec
from msgspec import structs

from gateway.call import HEARD, PAINTED, PASSED, Body, Chunk, Native, Operation
from gateway.dialects.passed import FILES, MEDIA_TYPE, PAYLOAD
from gateway.errors import InvalidRequest
from gateway.ids import uuid7
from gateway.providers import Sending
from gateway.stream import StreamGarbage, parse
from policies.money import Usage

_encode = msgspec.json.Encoder().encode
WORDS: dict[Operation, str] = {
    "chat": "chat completions",
    "completion": "legacy completions",
    "embedding": "embeddings",
    "moderation": "moderations",
    "image": "images",
    "image_edit": "edits of images",
    "image_variation": "variations of images",
    "speech": "speech",
    "transcription": "transcriptions",
    "translation": "translations of speech",
}
_MOST = 1 << 40
File = tuple[str, str, str, bytes]


def refuse_passed(name: str, sending: Sending) -> None:
    """Raises InvalidRequest where an operation would have to be passed on by a provider that has none of them."""
    if sending.operation in PASSED:
        raise InvalidRequest(
            f"{name} makes no {WORDS[sending.operation]}: ask for a model of a provider that does.",
            param="model",
            code="unsupported_operation",
        )


def cannot(operation: Operation, body: Body, native: Native | None) -> str:  # noqa: ARG001 - every provider is asked alike
    """What of a request a provider with models of its own does not do, as `gateway.providers` says."""
    return operation if operation in PASSED else ""


def content_of(sending: Sending) -> tuple[str, bytes]:
    """Content type and body of the request."""
    body: Body = {**sending.body, "model": sending.model}
    files = cast("list[File] | None", body.pop(FILES, None))
    return ("application/json", _encode(body)) if files is None else form(body, files)


def form(fields: Body, files: Sequence[File]) -> tuple[str, bytes]:
    """Content type and body of a form."""
    boundary = uuid7()
    parts: list[bytes] = []
    for name, value in fields.items():
        several = cast("list[object]", value) if isinstance(value, list) else [value]
        parts += [_part(boundary, name, str(item).encode()) for item in several]
    for name, filename, kind, data in files:
        parts.append(_part(boundary, name, data, filename, kind or "application/octet-stream"))
    return f"multipart/form-data; boundary={boundary}", b"".join([*parts, f"--{boundary}--\r\n".encode()])


def _part(boundary: str, name: str, data: bytes, filename: str | None = None, kind: str = "") -> bytes:
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="{_quoted(name)}"'
    if filename is not None:
        head += f'; filename="{_quoted(filename)}"\r\nContent-Type: {_quoted(kind)}'
    return f"{head}\r\n\r\n".encode() + data + b"\r\n"


def _quoted(text: str) -> str:
    """As browsers write names in forms."""
    return text.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")


def answer_of(sending: Sending, media_type: str, raw: bytes) -> Chunk:
    """Raises StreamGarbage for JSON that is none."""
    told: Body = {}
    if media_type.partition(";")[0].strip().lower() == "application/json":
        told = parse(raw)
        if told.get("error"):
            raise StreamGarbage("answered with an error")
    body: Body = {PAYLOAD: raw, MEDIA_TYPE: media_type or "application/octet-stream"}
    return Chunk(body, _usage(sending, told), "stop", final=True)


def _usage(sending: Sending, told: Body) -> Usage | None:
    """Tokens where they are told; of speech the characters, of a transcription the seconds, as input."""
    given = told.get("usage")
    usage = cast("Body", given) if isinstance(given, dict) else {}
    if sending.operation == "speech":
        return Usage(prompt=len(str(sending.body.get("input") or "")))
    seconds = usage.get("seconds")
    if sending.operation in HEARD and not usage:
        seconds = told.get("duration")
    if isinstance(seconds, int | float) and 0 <= seconds < _MOST:
        return Usage(prompt=int(-(-seconds // 1)))
    prompt, made = _count(usage, "input_tokens"), _count(usage, "output_tokens")
    if prompt is None:
        return None
    details = usage.get("input_tokens_details") or usage.get("input_token_details")
    parts = cast("Body", details) if isinstance(details, dict) else {}
    found = Usage(prompt=prompt, completion=made or 0)
    image, audio = _count(parts, "image_tokens") or 0, _count(parts, "audio_tokens") or 0
    if image + audio <= prompt:
        found = structs.replace(found, image_in=image, audio_in=audio)
    return structs.replace(found, image_out=made or 0) if sending.operation in PAINTED else found


def _count(usage: Body, name: str) -> int | None:
    value = usage.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST else None
