"""Requests that were answered without asking anyone, by day: from the sums of usage, or as a closed month keeps them.

Knows: what is told of them, how they are sealed and read again. Does not know: who closes a month, what they become.

Sums of usage are pruned and take back what feedback says later; a closed month must go on saying what it said. So its
hits are written beside its lines, under the same guard, and their digest stands among the facts that its seal covers.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, cast

import msgspec
from msgspec import Struct, structs
from sqlalchemy import Select, delete, insert, select
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db.models import MonthHit, MonthSeal
from gateway.db.queries import Queries
from gateway.db.session import Database
from gateway.db.sums import DAY, HITS
from gateway.db.usage import MOST_GROUPS
from gateway.ledger.balances import CHUNK
from gateway.ledger.grouping import TooMany
from policies.months import span

_BY = ("team", "project", "key", "model")
_MOST = 300_000  # in a month
_encode = msgspec.json.Encoder().encode


class Hits(Struct, frozen=True, order=True):
    """Requests of a day (whole days since the epoch, UTC) that cost nothing. `kind`: exact, semantic or shared.

    `avoided_nano`: what they would have cost, less what feedback has taken back.
    """

    day: int
    team: str
    project: str
    key_id: str
    model: str
    kind: str
    requests: int
    avoided_nano: int


_COLUMNS = Hits.__struct_fields__


class MonthHits:
    """The hits of one month, day by day. `team`: of that one only."""

    def __init__(self, database: Database, month: str, team: str | None = None) -> None:
        its = span(month)
        self._queries = Queries(database)
        self._month = month
        self._where = {} if team is None else {"team": team}
        self._bounds = [*range(its.start, its.end, DAY), its.end]
        self._kinds: dict[int, list[str]] | None = None
        self._sealed: bool | None = None

    async def of_day(self, connection: AsyncConnection, day: int) -> list[Hits]:
        """In order. Those of a month that was sealed with its hits are as they were then.

        Raises TooMany where one answer does not hold all combinations of a day.
        """
        if self._sealed is None:
            self._sealed = await _are_sealed(connection, self._month)
        if self._sealed:
            wanted = _stored(self._month).where(MonthHit.day == day)
            if self._where:
                wanted = wanted.where(MonthHit.team == self._where["team"])
            return [Hits(*row) for row in await connection.execute(wanted)]
        return await self._added_up(day)

    async def all(self) -> list[Hits]:
        """As the sums have them now. Raises TooMany where a seal could not keep so many."""
        found: list[Hits] = []
        for start in self._bounds[:-1]:
            found += await self._added_up(start // DAY)
            if len(found) > _MOST:
                raise TooMany(f"more than {_MOST} combinations of day, team, project, key and model hit the cache")
        return found

    async def _added_up(self, day: int) -> list[Hits]:
        if self._kinds is None:
            self._kinds = await self._by_day()
        found: list[Hits] = []
        for kind in self._kinds[day]:
            where = {**self._where, "source": kind}
            rows = await self._queries.usage(_BY, day * DAY, (day + 1) * DAY, where, latencies=False)
            if len(rows) >= MOST_GROUPS:
                raise TooMany(
                    f"more than {MOST_GROUPS} combinations of team, project, key and model hit the cache in a day"
                )
            found += [
                Hits(
                    day=day,
                    team=row.group["team"],
                    project=row.group["project"],
                    key_id=row.group["key"],
                    model=row.group["model"],
                    kind=kind,
                    requests=row.requests,
                    avoided_nano=row.saved_nano + row.corrected_nano,
                )
                for row in rows
                if row.requests
            ]
        return sorted(found)

    async def _by_day(self) -> dict[int, list[str]]:
        """In which ways there were hits: a month has many days without."""
        days = await self._queries.series(self._bounds, ("source",), self._where)
        return {
            start // DAY: [kind for kind in HITS if any(row.group["source"] == kind for row in rows)]
            for start, rows in zip(self._bounds, days, strict=False)
        }


async def _are_sealed(connection: AsyncConnection, month: str) -> bool:
    """Not of an open month, nor of one that was closed before hits were kept, or had too many."""
    wanted = select(MonthSeal.facts).where(MonthSeal.month == month, MonthSeal.digest.is_not(None))
    facts: dict[str, Any] = await connection.scalar(wanted) or {}
    return facts.get("hits") is not None


async def stored_digest(connection: AsyncConnection, month: str) -> str:
    """Of the hits as they are stored now."""
    made = hashlib.sha256()
    async for row in await connection.stream(_stored(month)):
        made.update(_encode(tuple(row)))
    return made.hexdigest()


def digest_of(hits: Sequence[Hits]) -> str:
    made = hashlib.sha256()
    for one in hits:
        made.update(_encode(structs.astuple(one)))
    return made.hexdigest()


def write(connection: Connection, month: str, some: Sequence[Hits], place: int) -> None:
    """The `place`-th chunk of a month's hits."""
    rows = [{"month": month, "number": place * CHUNK + i, **structs.asdict(one)} for i, one in enumerate(some)]
    connection.execute(insert(MonthHit), rows)


def forget(connection: Connection, month: str) -> int:
    """Delete some hits of a try to close that broke off; answers how many."""
    key = MonthHit.number
    some = select(key).where(MonthHit.month == month).order_by(MonthHit.day, key).limit(CHUNK)
    return connection.execute(delete(MonthHit).where(MonthHit.month == month, key.in_(some.scalar_subquery()))).rowcount


def _stored(month: str) -> Select[Any]:
    columns: list[Any] = [getattr(MonthHit, name) for name in _COLUMNS]
    wanted = cast("Select[Any]", select(*columns))
    return wanted.where(MonthHit.month == month).order_by(MonthHit.day, MonthHit.number)
