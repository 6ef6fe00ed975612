"""An upstream's error response as one of ours.

Knows: the error shapes of OpenAI and its imitators, Retry-After. Does not know: which upstream, its limits
(`gateway.allowance`), whether to retry.
"""

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import cast

from gateway.call import Body
from gateway.errors import UpstreamFailed, UpstreamRefused
from gateway.stream import StreamGarbage, parse

LARGEST_ERROR = 64 << 10
_LONGEST_MESSAGE = 2_000
_LONGEST_WAIT = 86_400.0
_TOO_LONG = re.compile(
    r"maximum context length|context[ _]length|exceeds? the (?:available )?context size|too large for model with"
    r"|must be <= \d+\. Given|prompt is too long",
    re.IGNORECASE,
)
_NO_MODEL = re.compile(r"\bmodel\b.*\b(?:does not exist|not found)\b|could not find (?:base )?model", re.IGNORECASE)
_NO_PATH = re.compile(r"(?:file )?not found\.?", re.IGNORECASE)  # what web frameworks say of an address, and no more
_NOT_FOUND, _NOT_IMPLEMENTED = 404, 501


def refused(name: str, status: int, headers: Mapping[str, str], raw: bytes) -> UpstreamFailed:
    """400-499 become UpstreamRefused with the upstream's own error object, all else UpstreamFailed.

    501 says that it has no such thing, whoever asks and however often: a refusal as well, and others may have it. So
    does a 404 that knows of no model: nothing of what the client wrote is wrong then.
    """
    error = _error_object(raw)
    message = _text(error.get("message"))
    if status == _NOT_FOUND and (not error or _NO_PATH.fullmatch(message)):
        nowhere = f"{name} has nothing at the address that it was asked at. Its base_url may be wrong: most end in /v1."
        astray = UpstreamRefused(
            status, {"message": nowhere, "type": "invalid_request_error", "param": None, "code": None}
        )
        astray.unwanted = True
        return astray
    if 400 <= status < 500:
        kept: Body = {key: error.get(key) for key in ("message", "type", "param", "code")}
        kept["message"] = message or f"{name} refused this request with status {status}."
        if kept["type"] is None:
            kept["type"] = "invalid_request_error"
        if kept["code"] == status:
            kept["code"] = None  # OpenAI's codes are words, or null; several servers repeat the status there
        if is_too_long(status, error, message):
            kept["code"] = "context_length_exceeded"
        elif kept["code"] is None and status == _NOT_FOUND and _NO_MODEL.search(message):
            kept["code"] = "model_not_found"
        return UpstreamRefused(status, kept, retry_after=retry_after(headers))
    if status == _NOT_IMPLEMENTED:
        lacks: Body = {"message": message or f"{name} has no such thing.", "type": "invalid_request_error"}
        unlike = UpstreamRefused(400, {**lacks, "param": None, "code": "unsupported_operation"})
        unlike.unwanted = True
        return unlike
    if 300 <= status < 400:
        return UpstreamFailed(f"{name} answered {status}, a redirect, which is never followed")
    return UpstreamFailed(f"{name} answered {status}" + (f": {message}" if message else ""))


def in_doubt(message: str) -> UpstreamFailed:
    """A failure after the request was sent: the upstream may have done the work, and may bill it."""
    error = UpstreamFailed(message)
    error.doubtful = True
    return error


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait: `retry-after-ms`, else `retry-after` (seconds, or a date against the response's own `date`)."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            seconds = float(value) * scale
        except ValueError:
            seconds = _seconds_until(value, headers.get("date"))
        # NaN fails both comparisons.
        if seconds is not None and 0 <= seconds < float("inf"):
            return min(seconds, _LONGEST_WAIT)
    return None


def is_too_long(status: int, error: Body, message: str) -> bool:
    """Whether it says that the prompt does not fit, which every server says in words of its own."""
    return status in (400, 413, 422) and bool(
        error.get("type") == "exceed_context_size_error"
        or _details(error).get("type") == "context_length"
        or _TOO_LONG.search(message)
    )


def _details(error: Body) -> Body:
    found = error.get("details")
    return cast("Body", found) if isinstance(found, dict) else {}


def told_headers(raw: bytes) -> dict[str, str]:
    """Headers told inside an error (`error.metadata.headers`), as a service does that stands before others."""
    metadata = _error_object(raw).get("metadata")
    told = cast("Body", metadata).get("headers") if isinstance(metadata, dict) else None
    rows = cast("Body", told) if isinstance(told, dict) else {}
    return {name.lower(): value for name, value in rows.items() if isinstance(value, str)}


def in_band_message(body: Body) -> str:
    """What an error that came as an event, or inside a 200, says of itself."""
    error = body.get("error")
    if isinstance(error, dict):
        error = cast("Body", error).get("message")
    return _text(error) or _text(body.get("message")) or "no answer in what it sent"


def _seconds_until(value: str, date: str | None) -> float | None:
    if date is None:
        return None
    try:
        wait = parsedate_to_datetime(value) - parsedate_to_datetime(date)
    except (ValueError, TypeError):
        return None
    return max(0.0, wait.total_seconds())


def _error_object(raw: bytes) -> Body:
    try:
        body = parse(raw)
    except StreamGarbage:
        return {}
    error = body.get("error")
    if isinstance(error, dict):
        return _with_reason(cast("Body", error))
    if isinstance(error, str):
        return {"message": error, "type": body.get("error_type"), "code": body.get("code")}
    # vLLM's old form is the error object itself; others say `detail`, as a text or as FastAPI's list of problems.
    said = body.get("message") or body.get("detail")
    if isinstance(said, dict):
        said = cast("Body", said).get("detail")
    if isinstance(said, str) and (details := _details(body)):  # Dynamo: all that it says may stand there
        said = f"{said} ({', '.join(f'{name}: {value}' for name, value in list(details.items())[:8])})"
    return {**body, "message": _problems(cast("list[object]", said)) if isinstance(said, list) else said}


def _with_reason(error: Body) -> Body:
    """OpenRouter's message may be "Provider returned error" alone, with the provider's words in `metadata.raw`."""
    metadata = error.get("metadata")
    raw = cast("Body", metadata).get("raw") if isinstance(metadata, dict) else None
    return {**error, "message": f"{_text(error.get('message'))}: {raw}"} if isinstance(raw, str) and raw else error


def _problems(rows: list[object]) -> str:
    """FastAPI's validation errors in one sentence each: where, and what."""
    told: list[str] = []
    for row in rows[:8]:
        if isinstance(row, dict):
            problem = cast("Body", row)
            where = problem.get("loc")
            place = ".".join(map(str, cast("list[object]", where))) + ": " if isinstance(where, list) else ""
            told.append(f"{place}{problem.get('msg') or ''}")
    return "; ".join(told)


def _text(value: object) -> str:
    return value[:_LONGEST_MESSAGE] if isinstance(value, str) else ""
