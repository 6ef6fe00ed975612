"""Stored sums by day and what the rows of a day say: read, forgotten, and who may change them when.

Knows: SQL of both dialects, the lock under which nobody counts. Does not know: what is made when, what is right.
Blocking code that runs inside `Database.transact` or `Database.examine`. Statements are put together once: that took
half of the time of a day's sums.
"""

from functools import cache
from typing import Any

from sqlalchemy import Delete, Float, Select, bindparam, delete, func, or_, select, text, update
from sqlalchemy.engine import Connection

from gateway.db.models import RequestRow, SavingCorrection, Setting, UsageDay, UsageHour, UsageWho
from gateway.db.sums import (
    COSTS,
    DAY,
    DAYS_TO,
    HOUR,
    HOURS,
    LABELS_TO,
    SUMMED,
    Key,
    Row,
    Sums,
    Who,
    by_hour,
    by_label,
    merge,
)
from gateway.ledger.balances import parameters, table
from gateway.ledger.request_rows import Summed, plain, rows_from

_PAGE = 500
_LOCKED_MS = 60_000

After = tuple[float, str]
"""Instant and id of the row before the next one."""


class Changed(Exception):
    """Something was counted meanwhile in what is being made."""


def be_patient(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        connection.execute(text(f"SET LOCAL lock_timeout = {_LOCKED_MS}"))


def lock(connection: Connection) -> None:
    """Until the end of the transaction nobody else counts. On SQLite nobody else writes anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("LOCK TABLE usage_hour IN SHARE ROW EXCLUSIVE MODE"))


def hold(connection: Connection) -> None:
    """Until the end of the transaction nobody else makes a day, or counts. Whoever makes one (the version before asks
    for `DAYS_TO` alone) has changed it before it asks for the lock: who had that already would wait in a circle.
    """
    turn(connection, LABELS_TO)
    turn(connection, DAYS_TO)
    lock(connection)


def turn(connection: Connection, name: str) -> int:
    """The number of a setting; until the end of the transaction nobody else changes it."""
    connection.execute(_THERE, {"name": name})
    return int(connection.execute(_LOCKED, {"of": name}).scalar_one())


def keep(connection: Connection, name: str, number: int) -> None:
    """Write the number of a setting that is there."""
    connection.execute(_KEPT, {"of": name, "to": str(number)})


def setting(connection: Connection, name: str) -> str:
    """Empty where it is not there."""
    return connection.execute(_SETTING, {"of": name}).scalar() or ""


def facets_of(connection: Connection, of: Summed) -> list[str]:
    """One step in the key for each: the table has thousands of sums of every facet."""
    return [row[0] for row in connection.execute(_steps(of))]


def forget(connection: Connection, of: Summed, span: range, facets: list[str] | None = None) -> None:
    """Of all facets, or of some."""
    those = facets_of(connection, of) if facets is None else facets
    connection.execute(_forgotten(of), {"facets": those, **bounds(span)})


def bounds(span: range) -> dict[str, int]:
    """For statements over `inside`."""
    return {"start": span.start, "stop": span.stop}


def inside(of: Summed) -> tuple[Any, Any]:
    """From `start` and before `stop`."""
    return of.starts >= bindparam("start"), of.starts < bindparam("stop")


def folded(connection: Connection, day: int, labels_to: int) -> tuple[Sums, Sums]:
    """The hours of one day, and the labels of those before `labels_to`, as its rows have them."""
    hours: Sums = {}
    labels: Sums = {}
    after: After | None = (float(day * DAY), "")
    while after is not None:
        rows, corrected = page(connection, (day + 1) * DAY, after)
        merge(hours, by_hour(rows, corrected))
        merge(labels, by_label((row for row in rows if row[1] < labels_to * HOUR), corrected))
        after = following(rows)
    return hours, labels


def page(connection: Connection, end: int, after: After) -> tuple[list[Row], dict[str, int]]:
    """The next rows before `end`, and the corrections of their savings."""
    asked = {"at": after[0], "id": after[1], "end": end}
    rows = [plain(found) for found in connection.execute(_following(), asked)]
    corrected = connection.execute(_CORRECTED, {"names": [found[0] for found in rows]}) if rows else ()
    return rows, {name: int(amount) for name, amount in corrected}


def following(rows: list[Row]) -> After | None:
    """Where the page after this one begins; None after the last."""
    return (rows[-1][1], rows[-1][0]) if len(rows) == _PAGE else None


def days_there(connection: Connection, *, with_pruned: bool) -> range:
    """The days that have anything. Without `with_pruned` only those whose rows are kept."""
    rows = connection.execute(select(func.min(RequestRow.at), func.max(RequestRow.at))).one()
    days = connection.execute(select(func.min(UsageDay.starts), func.max(UsageDay.starts))).one()
    hours = connection.execute(select(func.min(UsageHour.starts), func.max(UsageHour.starts))).one()
    known = [int(at) // DAY for at in rows if at is not None]
    known += [day for day in days if day is not None] + [hour // 24 for hour in hours if hour is not None]
    if not known:
        return range(0)
    first = 0 if with_pruned else int(rows_from(connection)) // DAY
    return range(max(first, min(known)), max(known) + 1)


def stored(connection: Connection, of: Summed, span: range) -> Sums:
    """Sums of some hours, days or blocks of days, as `gateway.db.sums` has them; those of hours and days with bits."""
    asked = {"facets": facets_of(connection, of), **bounds(span)}
    found = {_key(row): list(row[2 + len(Who._fields) :]) for row in connection.execute(_stored(of), asked)}
    if of is UsageHour:
        for (_, hour, _), line in found.items():
            line.append(1 << hour % 24)
    return found


def _key(row: Any) -> Key:
    return (row[0], row[1], tuple(row[2 : 2 + len(Who._fields)]))


@cache
def _steps(of: Summed) -> Select[Any]:
    """Every facet, each found from the one before it."""
    first = select(func.min(of.facet).label("facet")).cte("step", recursive=True)
    after = select(func.min(of.facet)).where(of.facet > first.c.facet).scalar_subquery()
    steps = first.union_all(select(after).where(first.c.facet.is_not(None)))
    return select(steps.c.facet).where(steps.c.facet.is_not(None))


@cache
def _forgotten(of: Summed) -> Delete:
    return delete(of).where(of.facet.in_(bindparam("facets", expanding=True)), *inside(of))


@cache
def _stored(of: Summed) -> Select[Any]:
    who, columns = table(UsageWho).columns, table(of).columns
    numbers = (*SUMMED, *COSTS, HOURS) if of is UsageDay else SUMMED
    wanted = select(of.facet, of.starts, *(who[name] for name in Who._fields), *(columns[name] for name in numbers))
    wanted = wanted.outerjoin(UsageWho, UsageWho.id == of.who)
    return wanted.where(of.facet.in_(bindparam("facets", expanding=True)), *inside(of))


@cache
def _following() -> Select[Any]:
    row, at = RequestRow, bindparam("at", type_=Float)
    later = or_(row.at > at, (row.at == at) & (row.id > bindparam("id")))
    wanted = select(*table(row).columns).where(row.at >= at, row.at < bindparam("end"), later)
    return wanted.order_by(row.at, row.id).limit(_PAGE)


_SETTING = select(Setting.value).where(Setting.name == bindparam("of"))
_LOCKED = _SETTING.with_for_update()
_THERE = text("INSERT INTO setting (name, value) VALUES (:name, '0') ON CONFLICT DO NOTHING")
_KEPT = update(Setting).where(Setting.name == bindparam("of")).values(value=bindparam("to"))
_CORRECTED = (
    select(SavingCorrection.request_id, func.sum(SavingCorrection.amount_nano))
    .where(SavingCorrection.request_id.in_(parameters("names")))
    .group_by(SavingCorrection.request_id)
)
