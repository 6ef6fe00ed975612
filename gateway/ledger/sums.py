"""Sums of days, made of what their hours and rows say; and proof that every stored sum is what it should be.

Knows: that hours follow from rows as far back as rows are kept, and days from hours and rows. Does not know: when it is
time, how to tell anybody. One day at a time, so neither memory nor the time that writers wait grows with the ledger.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import structlog
from sqlalchemy import delete, func, or_, select, text, update
from sqlalchemy.engine import Connection

from gateway.db.models import RequestRow, SavingCorrection, Setting, UsageDay, UsageHour, UsageWho
from gateway.db.session import Database
from gateway.db.sums import (
    DAY,
    DAYS_TO,
    FIRST,
    HOURS,
    HOURS_FROM,
    SUMMED,
    Key,
    Row,
    Sums,
    Who,
    by_day,
    by_hour,
    by_label,
    merge,
)
from gateway.ledger.balances import parameters, table
from gateway.ledger.request_rows import RequestRows, days_to, plain, rows_from

log = structlog.get_logger("nearhit.ledger")

_PAGE = 500
_PATIENCE = 30.0
_TRIES = 3
_MISSING = "usage_sums"
_LOCKED_MS = 60_000


After = tuple[float, str]
"""Instant and id of the row before the next one."""


class _Changed(Exception):
    """Something was counted meanwhile in the day that is being made."""


async def ensure(database: Database) -> None:
    """Add up the requests of before the sums were there, if this database has any. Raises as the database does."""
    wanted = select(Setting.value).where(Setting.name == _MISSING)
    async with database.read() as connection:
        missing = await connection.scalar(wanted) is not None
    if missing:
        log.warning("adding up the requests that are there; this is done once, after an upgrade")
        await rebuild(database)
        async with database.begin() as connection:
            await connection.execute(delete(Setting).where(Setting.name == _MISSING))


async def make_days(database: Database, now: float) -> int:
    """Make the sums of every day (UTC) that is over; answers how many. Each is made once, in order, and then kept up.

    Rows are read and added up aside; the transaction that writes a day looks at its end whether anything was counted in
    the day meanwhile, and only for that look lets nobody else count.
    """
    first = await _first_to_make(database, now)
    for day in range(first, int(now) // DAY):
        for _ in range(_TRIES):
            hours, labels = await _added_up(database, day)
            try:
                await database.transact(_put_day, day, hours, labels)
                break
            except _Changed:
                log.info("a day is added up again: something was counted in it meanwhile", day=day)
        else:
            log.error("a day's sums do not follow from its rows: nearhit ledger verify", day=day)
            return day - first
    return max(0, int(now) // DAY - first)


async def _first_to_make(database: Database, now: float) -> int:
    """The day to go on with; before the first one of all, the first day that has anything."""
    async with database.read(patience=_PATIENCE) as connection:
        made = await connection.run_sync(days_to)
        if made:
            return made
        hour = await connection.scalar(select(func.min(UsageHour.starts)).where(UsageHour.facet == ""))
    return int(now) // DAY if hour is None else hour // 24


async def _added_up(database: Database, day: int) -> tuple[Sums, Sums]:
    """The hours and the labels of one day, as its rows have them. Away from the event loop: requests go first."""
    hours: Sums = {}
    labels: Sums = {}
    after: After | None = (float(day * DAY), "")
    while after is not None:
        async with database.read(patience=_PATIENCE) as connection:
            rows, corrected = await connection.run_sync(_page, day, after)
        merge(hours, await asyncio.to_thread(by_hour, rows, corrected))
        merge(labels, await asyncio.to_thread(by_label, rows, corrected))
        after = _last(rows)
    return hours, labels


def _put_day(connection: Connection, day: int, hours: Sums, labels: Sums) -> None:
    """Raises _Changed, and leaves nothing behind, when the stored hours are not those that the rows had."""
    _be_patient(connection)
    connection.execute(text(f"INSERT INTO setting (name, value) VALUES ('{DAYS_TO}', '0') ON CONFLICT DO NOTHING"))  # noqa: S608 - a name of our own
    mine = select(Setting.value).where(Setting.name == DAYS_TO).with_for_update()
    if int(connection.execute(mine).scalar_one()) > day:
        return  # another process has made it
    _forget(connection, UsageDay, range(day, day + 1))
    RequestRows(connection.dialect.name).put(connection, UsageDay, by_day(hours) | labels)
    _lock(connection)
    sums = [func.coalesce(func.sum(table(UsageHour).c[name]), 0) for name in SUMMED]
    inside = (UsageHour.facet == "", UsageHour.starts >= day * 24, UsageHour.starts < day * 24 + 24)
    stored = [int(value) for value in connection.execute(select(*sums).where(*inside)).one()]
    counted = [line[:-1] for (facet, _, _), line in hours.items() if facet == ""]
    if stored != [sum(column) for column in zip([0] * len(SUMMED), *counted, strict=True)]:
        raise _Changed
    connection.execute(update(Setting).where(Setting.name == DAYS_TO).values(value=str(day + 1)))


async def rebuild(database: Database) -> int:
    """Make the sums of every day whose rows are kept anew; answers how many days. Others may write meanwhile."""
    span = await database.transact(_days, with_pruned=False)
    for day in span:
        await database.transact(_rebuild_day, day)
    return len(span)


def _rebuild_day(connection: Connection, day: int) -> None:
    """In one transaction that no other writer's counting can overlap.

    Writers insert rows first and count them afterwards, the hours before the days. On PostgreSQL whoever has counted
    is waited for by the lock, so its rows are seen below; whoever has not yet is not seen and counts its rows later.
    """
    _be_patient(connection)
    _lock(connection)
    rows = RequestRows(connection.dialect.name)
    hours, labels = _folded(connection, day)
    _forget(connection, UsageHour, range(day * 24, day * 24 + 24))
    rows.put(connection, UsageHour, hours)
    if day < days_to(connection):
        _forget(connection, UsageDay, range(day, day + 1))
        rows.put(connection, UsageDay, by_day(hours) | labels)


def _be_patient(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        connection.execute(text(f"SET LOCAL lock_timeout = {_LOCKED_MS}"))


def _lock(connection: Connection) -> None:
    """Until the end of the transaction nobody else counts. On SQLite nobody else writes anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("LOCK TABLE usage_hour IN SHARE ROW EXCLUSIVE MODE"))


def _forget(connection: Connection, of: type[UsageHour] | type[UsageDay], span: range) -> None:
    facets = connection.execute(select(of.facet).distinct()).scalars().all()
    connection.execute(delete(of).where(of.facet.in_(facets), of.starts >= span.start, of.starts < span.stop))


def _folded(connection: Connection, day: int) -> tuple[Sums, Sums]:
    """The hours and the labels of one day, as its rows have them."""
    hours: Sums = {}
    labels: Sums = {}
    after: After | None = (float(day * DAY), "")
    while after is not None:
        rows, corrected = _page(connection, day, after)
        merge(hours, by_hour(rows, corrected))
        merge(labels, by_label(rows, corrected))
        after = _last(rows)
    return hours, labels


def _page(connection: Connection, day: int, after: After) -> tuple[list[Row], dict[str, int]]:
    """The next rows of a day, and the corrections of their savings."""
    row = RequestRow
    later = or_(row.at > after[0], (row.at == after[0]) & (row.id > after[1]))
    wanted = select(*table(row).columns).where(row.at >= after[0], row.at < (day + 1) * DAY, later)
    rows = [plain(found) for found in connection.execute(wanted.order_by(row.at, row.id).limit(_PAGE))]
    corrected = connection.execute(_CORRECTED, {"names": [found[0] for found in rows]}) if rows else ()
    return rows, {name: int(amount) for name, amount in corrected}


def _last(rows: list[Row]) -> After | None:
    return (rows[-1][1], rows[-1][0]) if len(rows) == _PAGE else None


async def differences(database: Database, most: int = 100) -> list[str]:
    """Every sum that is not what it should be, each in a sentence; empty when all is right."""
    found: list[str] = []
    async with database.snapshot() as connection:
        for day in await connection.run_sync(_days, with_pruned=True):
            found += await connection.run_sync(_wrong_in, day)
            if len(found) >= most:
                break
    return found[:most]


def _days(connection: Connection, *, with_pruned: bool) -> range:
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


def _wrong_in(connection: Connection, day: int) -> list[str]:
    """The differences of one day."""
    hours = _stored(connection, UsageHour, range(day * 24, day * 24 + 24))
    days = _stored(connection, UsageDay, range(day, day + 1))
    if day * DAY >= rows_from(connection):
        right, labels = _folded(connection, day)
        made = by_day(right) | labels if day < days_to(connection) else {}
        return [*_compared("hour", hours, right), *_compared("day", days, made)]
    floor = connection.execute(select(Setting.value).where(Setting.name == HOURS_FROM)).scalar()
    if day * DAY < int(floor or 0):
        return []  # the days are all that is left
    return [*_compared("day", {key: sums for key, sums in days.items() if key[0] in ("", FIRST)}, by_day(hours))]


def _stored(connection: Connection, of: type[UsageHour] | type[UsageDay], span: range) -> Sums:
    facets = connection.execute(select(of.facet).distinct()).scalars().all()
    who, columns = table(UsageWho).columns, table(of).columns
    numbers = SUMMED if of is UsageHour else (*SUMMED, HOURS)
    wanted = select(of.facet, of.starts, *(who[name] for name in Who._fields), *(columns[name] for name in numbers))
    wanted = wanted.outerjoin(UsageWho, UsageWho.id == of.who)
    mine = wanted.where(of.facet.in_(facets), of.starts >= span.start, of.starts < span.stop)
    found = {_key(row): list(row[2 + len(Who._fields) :]) for row in connection.execute(mine)}
    if of is UsageHour:
        for (_, hour, _), numbers in found.items():
            numbers.append(1 << hour % 24)
    return found


def _key(row: Any) -> Key:
    return (row[0], row[1], tuple(row[2 : 2 + len(Who._fields)]))


def _compared(kind: str, stored: Sums, right: Sums) -> Iterator[str]:
    none = [0] * (len(SUMMED) + 1)
    for key in sorted(stored.keys() | right.keys(), key=repr):
        have, want = stored.get(key, none), right.get(key, none)
        have[-1] &= want[-1]  # hours too many only cost a look
        if have != want:
            pairs = zip((*SUMMED, HOURS), have, want, strict=True)
            wrong = [f"{name} is {a} and should be {b}" for name, a, b in pairs if a != b]
            facet, starts, who = key
            yield f"the sum of {kind} {starts} ({facet or 'all'}, {'/'.join(map(str, who))}): {', '.join(wrong[:4])}"


_CORRECTED = (
    select(SavingCorrection.request_id, func.sum(SavingCorrection.amount_nano))
    .where(SavingCorrection.request_id.in_(parameters("names")))
    .group_by(SavingCorrection.request_id)
)
