"""Which day or month a scheduled export writes next.

Knows: only days and months that are over are written, in order, none left out. Does not know: files, the clock.
"""

from datetime import UTC, date, datetime, timedelta
from typing import Literal

from policies.months import following, month_of, span

Every = Literal["day", "month"]

_MARGIN = 900  # seconds after a period's end: entries of its last requests are in the database by then


def next_due(every: Every, last: str | None, now: float) -> str | None:
    """The period to write now: `2026-10-31` or `2026-10`; None while nothing is due.

    `last` is the one that was written last. Without one it is the last period that is over: what lies before the
    first run is not made up.
    """
    over = _over(every, now - _MARGIN)
    if last is None:
        return over
    after = _after(every, last)
    return after if after <= over else None


def month_around(period: str) -> str:
    """The month of a day or month."""
    return period[:7]


def day_span(period: str) -> tuple[float, float]:
    """`2026-10-31` as `[start, end)` in seconds since the epoch."""
    day = date.fromisoformat(period)
    start = datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()
    return start, start + 86_400


def _over(every: Every, now: float) -> str:
    if every == "month":
        return month_of(span(month_of(now)).start - 1)
    return datetime.fromtimestamp(now - 86_400, UTC).strftime("%Y-%m-%d")


def _after(every: Every, last: str) -> str:
    if every == "month":
        return following(last)
    return (date.fromisoformat(last) + timedelta(days=1)).isoformat()
