"""What the first page needs beyond `gateway.db.queries`: filled-up time series and the time to the first piece.

Knows: buckets of time. Does not know: SQL, pages. Nothing here writes.
"""

import math
from datetime import UTC, datetime

from msgspec import Struct

from gateway.db.queries import Pruned, Queries
from policies.budget import period
from policies.forecast import Forecast, forecast

_HOUR, _DAY = 3_600, 86_400
_SHORT = 2 * _DAY
_LONGEST_SERIES = 400
_LOOKED_BACK = 28


class Bucket(Struct, kw_only=True):
    """Requests of one hour or day by what answered. `fresh`: an upstream or an engine; `refused`: nobody."""

    start: float
    label: str
    exact: int = 0
    semantic: int = 0
    shared: int = 0
    fresh: int = 0
    refused: int = 0
    cost_nano: int = 0
    saved_nano: int = 0

    @property
    def total(self) -> int:
        return self.exact + self.semantic + self.shared + self.fresh + self.refused


class FirstPiece(Struct, frozen=True):
    """Milliseconds from a request's arrival to the first piece of its answer; None without any request."""

    p50: float | None
    p95: float | None


_KINDS = {"exact": "exact", "semantic": "semantic", "shared": "shared", "replayed": "shared", "upstream": "fresh"}


async def series(queries: Queries, start: float, end: float, where: dict[str, str]) -> list[Bucket]:
    """One bucket per hour up to two days, per day beyond that; buckets without requests are there, empty."""
    width = _HOUR if end - start <= _SHORT else _DAY
    name = "hour" if width == _HOUR else "day"
    first = int(start // width) * width
    starts = range(first, math.ceil(end / width) * width, width)[:_LONGEST_SERIES]
    buckets = {_label(at, width): Bucket(start=at, label=_label(at, width)) for at in starts}
    for row in await queries.usage([name, "source"], start, end, where, latencies=False):
        bucket = buckets.get(row.group[name])
        if bucket is not None:
            kind = _KINDS.get(row.group["source"], "refused")
            setattr(bucket, kind, getattr(bucket, kind) + row.requests)
            bucket.cost_nano += row.cost_nano
            bucket.saved_nano += row.saved_nano
    return list(buckets.values())


async def month_forecast(queries: Queries, now: float, where: dict[str, str]) -> Forecast | None:
    """What this UTC month will have cost at its end; None while there are too few days to tell, or kept.

    It rests on the whole days before today, four weeks of them at most, from the first on that saw a request.
    """
    today = int(now // _DAY) * _DAY
    days = await queries.series([today - n * _DAY for n in range(_LOOKED_BACK, -1, -1)], (), where)
    spent = [sum(row.cost_nano for row in rows) for rows in days]
    seen = next((n for n, rows in enumerate(days) if any(row.requests for row in rows)), len(days))
    month = period("month", UTC, now)
    try:
        await queries.require_kept(month.start)
    except Pruned:
        return None  # what is left of it is less than was spent
    so_far = (await queries.usage((), month.start, now + 1, where, latencies=False))[0].cost_nano
    return forecast(spent[seen:], _DAY, so_far, None, now, month.end)


def _label(at: float, width: int) -> str:
    """As `gateway.db.queries` writes them."""
    form = "%Y-%m-%dT%H:00:00Z" if width == _HOUR else "%Y-%m-%d"
    return datetime.fromtimestamp(at, UTC).strftime(form)


async def first_piece(queries: Queries, start: float, end: float, where: dict[str, str]) -> FirstPiece:
    """The median and the 95th percentile of answered requests, read off a histogram."""
    return FirstPiece(*await queries.first_piece(start, end, where))
