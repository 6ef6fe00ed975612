"""An upstream's error response as one of ours.

Knows: the error shapes of OpenAI and its imitators, Retry-After. Does not know: which upstream, whether to retry.
"""

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import cast

from gateway.call import Body
from gateway.errors import UpstreamFailed, UpstreamRefused
from gateway.stream import StreamGarbage, parse

LARGEST_ERROR = 64 << 10
_LONGEST_MESSAGE = 2_000
_LONGEST_WAIT = 86_400.0


def refused(name: str, status: int, headers: Mapping[str, str], raw: bytes) -> UpstreamFailed:
    """400-499 become UpstreamRefused with the upstream's own error object, all else UpstreamFailed."""
    error = _error_object(raw)
    message = _text(error.get("message"))
    if 400 <= status < 500:
        kept: Body = {key: error.get(key) for key in ("message", "type", "param", "code")}
        kept["message"] = message or f"{name} refused this request with status {status}."
        if kept["type"] is None:
            kept["type"] = "invalid_request_error"
        return UpstreamRefused(status, kept, retry_after=retry_after(headers))
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
        return cast("Body", error)
    if isinstance(error, str):
        return {"message": error}
    # vLLM's old form is the error object itself; others say `detail`.
    return {**body, "message": body.get("message") or body.get("detail")}


def _text(value: object) -> str:
    return value[:_LONGEST_MESSAGE] if isinstance(value, str) else ""
