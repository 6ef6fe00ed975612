"""How times, names and amounts are read and written in the control plane's JSON.

Knows: RFC 3339, durations like `30d`, what a team may be called. Does not know: routes, the database.
"""

import math
import re
import unicodedata
from datetime import UTC, datetime

from gateway.errors import InvalidRequest

_NAME = re.compile(r"^\w[\w. -]{0,62}\w$|^\w$")
_DURATION = re.compile(r"^(\d{1,6})(m|h|d|w)$")
_SECONDS = {"m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_LONGEST_LABEL = 100
_JOINERS = re.compile("[\u200c\u200d]")  # parts of words in Persian and Hindi, and of emoji; shown as nothing else
_FIRST = datetime(1, 1, 1, tzinfo=UTC).timestamp()
_LAST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()
_DIGITS = 18


def moment(at: float | None) -> str | None:
    """Seconds since the epoch as RFC 3339 in UTC, milliseconds kept."""
    if at is None:
        return None
    text = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z").replace(".000Z", "Z")


def instant(value: str | float, *, now: float, param: str) -> float:
    """RFC 3339, a date, a duration from now (`30d`) or seconds since the epoch -> seconds since the epoch.

    A time without a zone is UTC. Raises InvalidRequest, also for what no calendar here has.
    """
    at = _instant(value, now=now, param=param)
    if not _FIRST <= at <= _LAST:
        raise InvalidRequest(f"`{param}` must lie between the years 1 and 9999.", param=param)
    return at


def _instant(value: str | float, *, now: float, param: str) -> float:
    if isinstance(value, int | float):
        return _seconds(value)
    text = value.strip()
    if found := _DURATION.match(text):
        return now + int(found[1]) * _SECONDS[found[2]]
    if text.isascii() and text.isdigit():
        return _seconds(int(text)) if len(text) <= _DIGITS else math.inf
    try:
        at = datetime.fromisoformat(text)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except ValueError as error:
        raise InvalidRequest(
            f"`{param}` must be a time such as 2027-01-31T00:00:00Z, a date or a duration such as 30d.", param=param
        ) from error


def _seconds(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return math.inf


def duration(value: str, *, param: str) -> float:
    """`30m`, `24h`, `7d`, `2w` -> seconds. Raises InvalidRequest."""
    if (found := _DURATION.match(value.strip())) is None:
        raise InvalidRequest(f"`{param}` must be a duration such as 30m, 24h or 7d.", param=param)
    return float(int(found[1]) * _SECONDS[found[2]])


def is_duration(text: str) -> bool:
    return _DURATION.match(text.strip()) is not None


def name(value: str, *, param: str) -> str:
    """A team's or project's name: letters, digits, `_ . -` and inner spaces, 1 to 64 of them. Raises InvalidRequest."""
    text = unicodedata.normalize("NFC", value.strip())
    if not _NAME.match(text):
        raise InvalidRequest(
            f"`{param}` must be 1 to 64 letters, digits, dots, dashes or underscores (no `/` and no `:`).", param=param
        )
    return text


def label(value: str, *, param: str) -> str:
    """Free text for people: 1 to 100 printable characters. Raises InvalidRequest."""
    text = unicodedata.normalize("NFC", value.strip())
    if not text or len(text) > _LONGEST_LABEL or not _JOINERS.sub("", text).isprintable():
        raise InvalidRequest(f"`{param}` must be 1 to {_LONGEST_LABEL} printable characters.", param=param)
    return text
