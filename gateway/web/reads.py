"""What the first page needs beyond `gateway.db.queries`: filled-up time series and the time to the first piece.

Knows: buckets of time, SQL for one percentile. Does not know: pages. Nothing here writes.
"""

import math
from datetime import UTC, datetime

from msgspec import Struct
from sqlalchemy import ColumnElement, func, select

from gateway.db.models import RequestRow
from gateway.db.queries import Queries
from gateway.db.session import Database

_HOUR, _DAY = 3_600, 86_400
_SHORT = 2 * _DAY
_LONGEST_SERIES = 400


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


_KINDS = {"exact": "exact", "semantic": "semantic", "shared": "shared", "upstream": "fresh"}


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


def _label(at: float, width: int) -> str:
    """As `gateway.db.queries` writes them."""
    form = "%Y-%m-%dT%H:00:00Z" if width == _HOUR else "%Y-%m-%d"
    return datetime.fromtimestamp(at, UTC).strftime(form)


async def first_piece(database: Database, start: float, end: float, team: str | None) -> FirstPiece:
    """The median and the 95th percentile (nearest rank) of answered requests."""
    conditions: list[ColumnElement[bool]] = [
        RequestRow.at >= start,
        RequestRow.at < end,
        RequestRow.ttft_ms.is_not(None),
        RequestRow.status < 400,
    ]
    if team is not None:
        conditions.append(RequestRow.team == team)
    async with database.read() as connection:
        members = await connection.scalar(select(func.count()).select_from(RequestRow).where(*conditions)) or 0
        ordered = select(RequestRow.ttft_ms).where(*conditions).order_by(RequestRow.ttft_ms).limit(1)
        found: list[float | None] = []
        for share in (50, 95):
            place = max(0, -(-members * share // 100) - 1)
            found.append(await connection.scalar(ordered.offset(place)) if members else None)
    return FirstPiece(*found)
