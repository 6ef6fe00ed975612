"""Every SELECT the pages, the control plane and the command line need.

Knows: SQL for both dialects, through SQLAlchemy's expressions. Does not know: who may see what (callers pass the team
that limits the answer), formatting, writing. Nothing here writes.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar, cast
from zoneinfo import ZoneInfo

import msgspec
from sqlalchemy import BigInteger, ColumnElement, Select, Text, and_, case, func, select
from sqlalchemy import cast as sql_cast
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db.models import (
    BudgetAlert,
    BudgetRow,
    BudgetWindow,
    Entry,
    Explain,
    PriceVersion,
    RequestRow,
    SavingCorrection,
)
from gateway.db.rows import BudgetState, EntryLine, Overview, PriceLine, RequestDetail, RequestLine, UsageRow
from gateway.db.session import Database, Dialect
from policies.budget import Budget, Mode, WindowKind, period, runs_out, window_id

T = TypeVar("T")

_COLUMNS: dict[str, Any] = {
    "team": RequestRow.team,
    "project": RequestRow.project,
    "key": RequestRow.key_id,
    "user": RequestRow.user,
    "model": RequestRow.model,
    "model_used": RequestRow.model_used,
    "provider": RequestRow.provider,
    "operation": RequestRow.operation,
    "source": RequestRow.source,
    "cache": RequestRow.cache,
    "status": RequestRow.status,
}
_SPANS = {"minute": 60, "hour": 3_600, "day": 86_400}
_FORMS = {"minute": "%Y-%m-%dT%H:%M:00Z", "hour": "%Y-%m-%dT%H:00:00Z", "day": "%Y-%m-%d"}
_HITS = ("exact", "semantic", "shared")
_MOST_GROUPS = 10_000
_MOST_ROWS = 1_000
_SHORT = 2 * 86_400
_PATIENCE = 30.0
_strings = msgspec.json.Decoder(list[str]).decode

DIMENSIONS = (*_COLUMNS, *_SPANS, "month", "tag:<name>")


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
    ) -> list[UsageRow]:
        """Totals per group, dearest first (in order of time when grouped by it). `where`: dimension -> wanted value.

        Dimensions are `DIMENSIONS`; raises ValueError that lists them for any other.
        """
        statement = _usage(self._database.dialect, list(group_by), (start, end), where or {}, latencies)
        async with self._database.read(patience=_PATIENCE) as connection:
            found = (await connection.execute(statement)).mappings().all()
        rows = [_usage_row(row, group_by) for row in found]
        if any(name in _SPANS or name == "month" for name in group_by):
            rows.sort(key=lambda row: list(row.group.values()))
        return rows

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
    ) -> list[RequestLine]:
        """Newest first. `before`: the last id of the page before. `failed`: only those answered with 400 or more."""
        statement = select(RequestRow).order_by(RequestRow.id.desc()).limit(min(limit, _MOST_ROWS))
        statement = statement.where(*_conditions(self._database.dialect, where or {}))
        if before is not None:
            statement = statement.where(RequestRow.id < before)
        if failed:
            statement = statement.where(RequestRow.status >= 400)
        async with self._database.read() as connection:
            return [_line(RequestLine, row) for row in (await connection.execute(statement)).mappings()]

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


def _usage(
    dialect: Dialect, group_by: list[str], span: tuple[float, float], where: Mapping[str, str], latencies: bool
) -> Select[Any]:
    """Sums per group; percentiles by numbering each group's rows in order of duration (both dialects can)."""
    groups = [_dimension(dialect, name).label(f"g{i}") for i, name in enumerate(group_by)]
    row = RequestRow
    own = case((row.cache == "audit", 1), else_=0)  # the gateway's own: they cost, and are nobody's requests
    hit = case((row.source.in_(_HITS), 1), else_=0)
    failed = case((and_(row.status >= 400, row.cache != "audit"), 1), else_=0)
    taken_back = (
        select(SavingCorrection.request_id, func.sum(SavingCorrection.amount_nano).label("amount"))
        .group_by(SavingCorrection.request_id)
        .subquery()
    )
    guessed = case((row.cost_status == "estimated", row.cost_nano), else_=0)
    inner = select(
        *groups,
        hit.label("hit"),
        failed.label("failed"),
        guessed.label("guessed"),
        own.label("own"),
        case((row.cache == "audit", row.cost_nano), else_=0).label("audit"),
        func.coalesce(taken_back.c.amount, 0).label("corrected"),
        *(getattr(row, name) for name in (*_TOKENS, "cost_nano", "saved_nano", "total_ms")),
    ).outerjoin(taken_back, taken_back.c.request_id == row.id)
    inner = inner.where(row.at >= span[0], row.at < span[1], *_conditions(dialect, where))
    if latencies:
        partition: list[Any] = [*groups, own]
        inner = inner.add_columns(
            func.row_number().over(partition_by=partition, order_by=row.total_ms).label("place"),
            func.count().over(partition_by=partition).label("members"),
        )
    rows = inner.subquery()
    keys = [rows.c[f"g{i}"] for i in range(len(groups))]
    sums = [func.coalesce(func.sum(rows.c[name]), 0).label(name) for name in (*_TOKENS, "cost_nano", "saved_nano")]
    totals = [
        (func.count() - func.coalesce(func.sum(rows.c.own), 0)).label("requests"),
        *(func.coalesce(func.sum(rows.c[name]), 0).label(name) for name in _SUMMED),
        *sums,
    ]
    if latencies:
        totals += [
            func.min(
                case((and_(rows.c.own == 0, rows.c.place * 100 >= share * rows.c.members), rows.c.total_ms))
            ).label(f"p{share}")
            for share in (50, 95, 99)
        ]
    return select(*keys, *totals).group_by(*keys).order_by(sums[-2].desc(), *keys).limit(_MOST_GROUPS)


_SUMMED = ("hit", "failed", "guessed", "audit", "corrected")
_TOKENS = ("prompt", "cached", "cache_write", "completion", "reasoning")


def _usage_row(row: Any, group_by: Sequence[str]) -> UsageRow:
    group = {name: _shown(name, row[f"g{i}"]) for i, name in enumerate(group_by)}
    return UsageRow(
        group=group,
        requests=int(row["requests"]),
        hits=int(row["hit"]),
        errors=int(row["failed"]),
        prompt=int(row["prompt"]),
        cached=int(row["cached"]),
        cache_write=int(row["cache_write"]),
        completion=int(row["completion"]),
        reasoning=int(row["reasoning"]),
        cost_nano=int(row["cost_nano"]),
        estimated_nano=int(row["guessed"]),
        saved_nano=int(row["saved_nano"]),
        p50_ms=row.get("p50"),
        p95_ms=row.get("p95"),
        p99_ms=row.get("p99"),
        audit_nano=int(row["audit"]),
        corrected_nano=int(row["corrected"]),
    )


def _shown(name: str, value: Any) -> str:
    if name in _SPANS:
        return datetime.fromtimestamp(int(value) * _SPANS[name], UTC).strftime(_FORMS[name])
    return "" if value is None else str(value)


def _conditions(dialect: Dialect, where: Mapping[str, str]) -> list[ColumnElement[bool]]:
    return [_dimension(dialect, name) == (int(value) if name == "status" else value) for name, value in where.items()]


def _dimension(dialect: Dialect, name: str) -> ColumnElement[Any]:
    if name in _COLUMNS:
        return cast("ColumnElement[Any]", _COLUMNS[name])
    if name in _SPANS:
        return _whole(dialect, RequestRow.at / _SPANS[name])
    if name == "month":
        if dialect == "sqlite":
            return func.strftime("%Y-%m", RequestRow.at, "unixepoch")
        return func.to_char(func.timezone("UTC", func.to_timestamp(RequestRow.at)), "YYYY-MM")
    if name.startswith("tag:"):
        tags = cast("Any", RequestRow.tags)
        return sql_cast(tags[name.removeprefix("tag:")].as_string(), Text)
    raise ValueError(f"unknown dimension {name[:60]!r}. Known: {', '.join(DIMENSIONS)}")


def _whole(dialect: Dialect, value: ColumnElement[float]) -> ColumnElement[int]:
    """Rounded down; SQLite's cast does, PostgreSQL's rounds to the nearest."""
    return sql_cast(value if dialect == "sqlite" else func.floor(value), BigInteger)


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
        runs_out=runs_out(span, budget.limit_nano, spent, now),
        alerted=alerts.get(name, []),
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
    )
