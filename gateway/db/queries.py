"""Every SELECT the pages, the control plane and the command line need.

Knows: SQL for both dialects, through SQLAlchemy's expressions. Does not know: who may see what (callers pass the team
that limits the answer), formatting, writing. Nothing here writes.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeVar, cast
from zoneinfo import ZoneInfo

import msgspec
from msgspec.structs import replace
from sqlalchemy import Row, select
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db.kept import kept_from
from gateway.db.listing import EVER, PAGE, Wanted, newest, page
from gateway.db.models import (
    BudgetAlert,
    BudgetRow,
    BudgetWindow,
    Entry,
    Explain,
    PriceVersion,
    RequestRow,
    Setting,
    UsageHour,
)
from gateway.db.rows import BudgetState, EntryLine, Overview, PriceLine, RequestDetail, RequestLine, UsageRow
from gateway.db.session import Database
from gateway.db.sums import (
    BLOCKS_FROM,
    BLOCKS_TO,
    BUCKETS,
    COSTS_FROM,
    DAYS_TO,
    GATHER,
    HOUR,
    HOURS_FROM,
    LABELS_TO,
    MEASURES,
    MISSING,
    ROWS_FROM,
    percentile,
)
from gateway.db.usage import DIMENSIONS, SPANS, statement
from gateway.db.usage_cut import COST, Asked, Reach, cut, facet_of
from gateway.errors import InvalidRequest
from policies.budget import Budget, Mode, Period, WindowKind, period, runs_out, window_id

__all__ = ["DIMENSIONS", "Pruned", "Queries", "budget_of"]

T = TypeVar("T")

_FORMS = {"minute": "%Y-%m-%dT%H:%M:00Z", "hour": "%Y-%m-%dT%H:00:00Z", "day": "%Y-%m-%d"}
_MOST_BUCKETS = 400
_MOST_ROWS = 1_001  # a page of a thousand, and the row that says there are more
_SHORT = 2 * 86_400
_PATIENCE = 30.0
_REACH = (DAYS_TO, LABELS_TO, BLOCKS_TO, HOURS_FROM, ROWS_FROM, BLOCKS_FROM, COSTS_FROM)
_SETTINGS = select(Setting.name, Setting.value).where(Setting.name.in_((*_REACH, MISSING)))
_NOTHING = dict.fromkeys(MEASURES, 0)
_strings = msgspec.json.Decoder(list[str]).decode


class Pruned(InvalidRequest):
    """The answer rests on rows or hours that are not kept any more. The message says since when they are."""

    code = "pruned"


class Queries:
    """All methods are reads, each one consistent in itself. Times are `[start, end)`, seconds since the epoch."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def usage(
        self,
        group_by: Sequence[str] = (),
        start: float = 0.0,
        end: float = 1e11,
        where: Mapping[str, str] | None = None,
        latencies: bool = True,
        measures: tuple[str, ...] = MEASURES,
    ) -> list[UsageRow]:
        """Totals per group, dearest first (in order of time when grouped by it). `where`: dimension -> wanted value.

        `measures`: the numbers that are wanted; the others are left at 0, and each left out makes it quicker.

        Exact, also at the edges of the span; "" as a value of `user` or a tag means requests without one. Dimensions
        are `DIMENSIONS`; raises ValueError that lists them for any other, and Pruned where single rows were needed (a
        span that cuts hours, or days by user or tag; minutes; two of user and tags) that are not kept any more.
        """
        asked = Asked(
            group_by=tuple(group_by),
            buckets=[(start, end)],
            where=where or {},
            durations=latencies,
            measures=measures,
        )
        (rows,) = await self._totals(asked, of_nothing=not group_by)
        return rows

    async def require_kept(self, start: float, since: float | None = None) -> None:
        """Raises Pruned where even sums of days went that lay after `start`: what is left is less than was spent.

        `since`: from when on they are kept, where that was read already.
        """
        since = await kept_from(self._database) if since is None else since
        if start < since:
            raise Pruned(f"Sums of days are kept since {_day(since)}. Statements and FOCUS tell what was spent before.")

    async def series(
        self, bounds: Sequence[float], group_by: Sequence[str] = (), where: Mapping[str, str] | None = None
    ) -> list[list[UsageRow]]:
        """Totals per group in each `[bounds[i], bounds[i + 1])`, without latencies; empty where nothing happened.

        Days of a zone that is whole hours from UTC, and anything made of such days, are read from sums alone. At most
        400 buckets: ValueError beyond. Raises as `usage` does.
        """
        buckets = _buckets(bounds)
        asked = Asked(group_by=tuple(group_by), buckets=buckets, where=where or {}, durations=False)
        return await self._totals(asked) if buckets else []

    async def costs(
        self,
        bounds: Sequence[float],
        group_by: Sequence[str] = (),
        where: Mapping[str, str] | None = None,
        among: Sequence[str] | None = None,
    ) -> list[dict[tuple[str, ...], int]]:
        """Nano-USD per group in each `[bounds[i], bounds[i + 1])`: as `series`, and quicker.

        `among`: values of the first dimension, no others are told. At most `MOST_GROUPS` groups in all, dearest first.
        """
        buckets = _buckets(bounds)
        found: list[dict[tuple[str, ...], int]] = [{} for _ in buckets]
        if not buckets or (among is not None and not among):
            return found
        names = tuple(group_by)
        asked = Asked(
            group_by=names,
            buckets=buckets,
            where=where or {},
            durations=False,
            measures=COST,
            among=None if among is None else tuple(among),
        )
        for line in await self._added_up(asked):
            group = tuple(_shown(name, value) for name, value in zip(names, line[1:-1], strict=True))
            found[int(line[0])][group] = line[-1]
        return found

    async def first_piece(
        self, start: float, end: float, where: Mapping[str, str]
    ) -> tuple[float | None, float | None]:
        """The median and the 95th percentile of the time to the first piece of answered requests, in ms.

        Read off a histogram, see `gateway.db.sums.EDGES`; None without any request.
        """
        asked = Asked(group_by=(), buckets=[(start, end)], where=where, first=True)
        (found,) = await self._added_up(asked)
        counts = [int(count) for count in found[-len(BUCKETS) :]]
        return percentile(counts, 50), percentile(counts, 95)

    async def _totals(self, asked: Asked, *, of_nothing: bool = False) -> list[list[UsageRow]]:
        found = await self._added_up(asked)
        totals: list[list[UsageRow]] = [[] for _ in asked.buckets]
        first, last = 1 + len(asked.group_by), 1 + len(asked.group_by) + len(asked.measures)
        for line in found:
            if of_nothing or any(line[first:last]):
                totals[int(line[0])].append(usage_row(line, asked))
        if any(name in SPANS or name == "month" for name in asked.group_by):
            for rows in totals:
                rows.sort(key=lambda row: list(row.group.values()))
        return totals

    async def _added_up(self, asked: Asked) -> Sequence[Row[Any]]:
        """To put a statement together takes 10 to 60 ms, in which no request is to wait: SQLite does all of it in the
        thread of its connection; PostgreSQL's driver belongs to the event loop, which compiles it. Once per shape.
        """
        if self._database.dialect == "sqlite":
            return await self._database.examine(_PATIENCE, _read, asked)
        async with self._database.read(patience=_PATIENCE) as connection:
            placed = await connection.run_sync(_placed, asked)
            return (await connection.execute(*await asyncio.to_thread(statement, "postgresql", placed))).all()

    async def overview(self, start: float, end: float, team: str | None = None) -> Overview:
        """One period at a glance, of everyone or of one team."""
        where = {} if team is None else {"team": team}
        total = await self.usage((), start, end, where)
        return Overview(
            start=start,
            end=end,
            total=total[0],
            series=await self.usage(["hour" if end - start <= _SHORT else "day"], start, end, where, latencies=False),
            teams=await self.usage(["team"], start, end, where, latencies=False),
            models=await self.usage(["model"], start, end, where, latencies=False),
            sources=await self.usage(["source"], start, end, where, latencies=False),
        )

    async def recent_requests(
        self,
        limit: int = 50,
        before: str | None = None,
        where: Mapping[str, str] | None = None,
        failed: bool = False,
        span: tuple[float, float] = EVER,
    ) -> list[RequestLine]:
        """Newest first. `before`: the last id of the page before. `failed`: only those answered with 400 or more."""
        wanted = Wanted(limit=min(limit, _MOST_ROWS), before=before, where=where or {}, failed=failed, span=span)
        async with self._database.read(patience=_PATIENCE) as connection:
            return [_line(RequestLine, row) for row in await newest(connection, self._database.dialect, wanted)]

    async def export(
        self, start: float, end: float, where: Mapping[str, str] | None = None
    ) -> AsyncGenerator[list[RequestLine], None]:
        """Every request of a span in order of time, some hundreds at once, each page a short read of its own."""
        after: tuple[float, str] | None = (start, "")
        while after is not None:
            async with self._database.read(patience=_PATIENCE) as connection:
                rows = await page(connection, self._database.dialect, (after, end), where or {})
            if rows:
                yield [_line(RequestLine, row) for row in rows]
            after = (rows[-1]["at"], rows[-1]["id"]) if len(rows) == PAGE else None

    async def request(self, request_id: str) -> RequestDetail | None:
        """One request with its cost lines, their prices and its explanation; None when there is no trace of it."""
        async with self._database.read() as connection:
            wanted = select(RequestRow).where(RequestRow.id == request_id)
            found = (await connection.execute(wanted)).mappings().first()
            entries = await _entries(connection, request_id)
            told = await connection.scalar(select(Explain.data).where(Explain.request_id == request_id))
            prices = await _prices(connection, {entry.price for entry in entries})
        if found is None and not entries:
            return None
        line = None if found is None else _line(RequestLine, found)
        return RequestDetail(request=line, entries=entries, prices=prices, explain=told)

    async def explain(self, request_id: str) -> dict[str, object] | None:
        """Why the request went the way it went; None when nothing is known (any more)."""
        async with self._database.read() as connection:
            return await connection.scalar(select(Explain.data).where(Explain.request_id == request_id))

    async def budgets(self, now: float) -> list[BudgetState]:
        """Every budget in force with the balance of its current window, in order of scope."""
        async with self._database.read() as connection:
            wanted = select(BudgetRow).where(BudgetRow.retired.is_(None)).order_by(BudgetRow.scope)
            rows = (await connection.execute(wanted)).mappings().all()
            windows = select(BudgetWindow).where(BudgetWindow.ends > now)
            balances = {row["id"]: row for row in (await connection.execute(windows)).mappings()}
            alerts: dict[str, list[float]] = {}
            open_windows = select(BudgetWindow.id).where(BudgetWindow.ends > now)
            for window, threshold in await connection.execute(
                select(BudgetAlert.window_id, BudgetAlert.threshold)
                .where(BudgetAlert.window_id.in_(open_windows))
                .order_by(BudgetAlert.threshold)
            ):
                alerts.setdefault(window, []).append(threshold)
        return [_budget_state(row, balances, alerts, now) for row in rows]


def _buckets(bounds: Sequence[float]) -> list[tuple[float, float]]:
    found = list(pairwise(bounds))
    if len(found) > _MOST_BUCKETS:
        raise ValueError(f"{len(found)} buckets are too many: at most {_MOST_BUCKETS}")
    return found


def _read(connection: Connection, asked: Asked) -> Sequence[Row[Any]]:
    return connection.execute(*statement("sqlite", _placed(connection, asked))).all()


def _placed(connection: Connection, asked: Asked) -> Asked:
    """With how far the sums reach. Raises Pruned when what the answer rests on is not there any more."""
    reach = reach_of({row[0]: row[1] for row in connection.execute(_SETTINGS)})
    asked, rows, hours = replace(asked, reach=reach), reach.rows_from, reach.hours_from
    found = cut(asked, facet_of(asked))
    if any(part.start < rows for part in found.rows):
        raise Pruned(
            f"Single requests are kept since {_day(rows)}. Before that, ask for whole hours in UTC, "
            "for whole days by user or by one tag, and not by minute."
        )
    if any(part.start * HOUR < hours for part in found.stored.get(UsageHour, ())):
        raise Pruned(f"Hours are kept since {_day(hours)}. Before that, ask for whole days in UTC, and not by hour.")
    return asked


def reach_of(settings: Mapping[str, str]) -> Reach:
    """How far sums can be read, of what is written down of them."""
    reach = msgspec.convert({name: int(settings[name]) for name in _REACH if name in settings}, Reach)
    reach = replace(reach, gathered=settings.get(MISSING) != GATHER)
    if reach.labels_to < reach.days_to * 24:  # the version before made days that know no owner: hours say them
        reach = replace(reach, days_to=reach.labels_to // 24, labels_to=0)
    return replace(reach, labels_to=max(reach.labels_to if reach.gathered else 0, reach.days_to * 24))


def _day(instant: float) -> str:
    return datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%d")


def usage_row(line: Sequence[Any], asked: Asked) -> UsageRow:
    """By place: there may be thousands."""
    grouped, measured = 1 + len(asked.group_by), 1 + len(asked.group_by) + len(asked.measures)
    numbers = line[grouped:measured]
    group = {name: _shown(name, value) for name, value in zip(asked.group_by, line[1:grouped], strict=True)}
    row = UsageRow(group=group, **_NOTHING | dict(zip(asked.measures, numbers, strict=True)))
    if asked.durations:
        p50, p95, p99 = (percentile(line[measured:], share) for share in (50, 95, 99))
        return replace(row, p50_ms=p50, p95_ms=p95, p99_ms=p99)
    return row


def _shown(name: str, value: Any) -> str:
    if name in SPANS:
        return _instant(name, int(value))
    return "" if value is None else str(value)


@lru_cache(maxsize=4_096)
def _instant(name: str, number: int) -> str:
    return datetime.fromtimestamp(number * SPANS[name], UTC).strftime(_FORMS[name])


def _line(kind: type[T], row: Any) -> T:
    return msgspec.convert(dict(row), kind)


async def _entries(connection: AsyncConnection, request_id: str) -> list[EntryLine]:
    wanted = select(Entry).where(Entry.request_id == request_id).order_by(Entry.at, Entry.id)
    rows = (await connection.execute(wanted)).mappings()
    return [_line(EntryLine, {**row, "windows": _strings(row["windows"])}) for row in rows]


async def _prices(connection: AsyncConnection, ids: set[str]) -> dict[str, PriceLine]:
    if not ids:
        return {}
    wanted = select(PriceVersion).where(PriceVersion.id.in_(ids))
    return {row["id"]: _line(PriceLine, row) for row in (await connection.execute(wanted)).mappings()}


def _budget_state(row: Any, balances: Mapping[str, Any], alerts: Mapping[str, list[float]], now: float) -> BudgetState:
    budget = budget_of(row)
    span = period(budget.window, ZoneInfo(budget.timezone), now)
    name = window_id(budget, span)
    balance = balances.get(name)
    spent, estimated, held = (0, 0, 0)
    if balance is not None:
        spent, estimated, held = balance["spent_nano"], balance["estimated_nano"], balance["held_nano"]
    opening = 0 if balance is None else balance["opening_nano"]
    # A window that never ends began with nobody knows what: its pace is that since the budget was set.
    paced = (Period(int(row["created"]), span.end), opening) if budget.window == "total" else (span, 0)
    return BudgetState(
        scope=budget.scope,
        limit_nano=budget.limit_nano,
        window=budget.window,
        timezone=budget.timezone,
        mode=budget.mode,
        alerts=list(budget.alerts),
        version=budget.version,
        actor=row["actor"],
        updated=row["updated"],
        spent_nano=spent,
        confirmed_nano=spent - estimated,
        estimated_nano=estimated,
        held_nano=held,
        remaining_nano=max(0, budget.limit_nano - spent - held),
        starts=span.start,
        ends=span.end,
        runs_out=runs_out(paced[0], budget.limit_nano, spent, now, paced[1]),
        alerted=alerts.get(name, []),
        opening_nano=opening,
        degrade_to=budget.degrade_to,
        degrade_at=budget.degrade_at,
    )


def budget_of(row: Any) -> Budget:
    """A row of `budget` as the policies know it."""
    return Budget(
        scope=row["scope"],
        limit_nano=row["limit_nano"],
        window=cast("WindowKind", row["window"]),
        timezone=row["timezone"],
        mode=cast("Mode", row["mode"]),
        alerts=tuple(row["alerts"]),
        version=row["version"],
        degrade_to=row["degrade_to"],
        degrade_at=row["degrade_at"],
    )
