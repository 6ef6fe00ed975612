"""Sums of days, made of what their hours and rows say.

Knows: that a sum follows from rows as far back as rows are kept, and in which order it is made so that nothing is
counted twice or not at all. Does not know: when it is time, how to tell anybody. Some hours at a time, so neither
memory nor the time that writers wait grows with the ledger.
"""

from functools import cache
from typing import Any, NamedTuple

import structlog
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Insert,
    Integer,
    bindparam,
    case,
    cast,
    delete,
    func,
    insert,
    literal,
    select,
)
from sqlalchemy.engine import Connection

from gateway.db.models import Setting, UsageDay, UsageHour
from gateway.db.session import Database
from gateway.db.sums import (
    COSTS,
    DAY,
    DAYS_TO,
    FIRST,
    GATHER,
    HOUR,
    HOURS,
    LABELS_TO,
    MISSING,
    ROWS_FROM,
    SUMMED,
    Sums,
    made,
)
from gateway.ledger.request_rows import RequestRows, made_so_far, note_late
from gateway.ledger.sum_anew import PATIENCE, TRIES, Pruned, added_up, counted, made_anew, tell, total
from gateway.ledger.sum_blocks import put_blocks_of
from gateway.ledger.sum_gathered import gather_pruned
from gateway.ledger.sum_rows import (
    Changed,
    be_patient,
    bounds,
    days_there,
    folded,
    forget,
    hold,
    inside,
    keep,
    lock,
    setting,
    turn,
)

log = structlog.get_logger("nearhit.ledger")


class _Joining(NamedTuple):
    """Hours that join a day, the numbers of all requests in them, and their sums by owner, user and tag."""

    span: range
    numbers: list[int]
    sums: Sums
    rows: RequestRows


async def ensure(database: Database) -> None:
    """Add up the requests of before there were sums, if this database has any. Raises as the database does.

    What a version with sums did not add up is added up beside requests: `gateway.ledger.sum_upgrade`.
    """
    wanted = select(Setting.value).where(Setting.name == MISSING)
    async with database.read() as connection:
        missing = await connection.scalar(wanted)
    if missing in (None, GATHER):
        return
    log.warning("adding up the requests that are there; this is done once, after an upgrade")
    await rebuild(database)
    async with database.begin() as connection:
        await connection.execute(delete(Setting).where(Setting.name == MISSING))


async def make_days(database: Database, now: float) -> int:
    """Make the sums of every hour (by owner, user and tag) and of every day (UTC) that is over; answers how many days.

    Each is made once, in order, and then kept up. Rows are read and added up aside; the transaction that writes looks
    at its end whether anything was counted in those hours meanwhile, and only for that look lets nobody else count.
    """
    days = 0
    while True:
        while await _take_up(database):
            pass
        # Looked at anew each time: another process may have made less of a day than this one was about to.
        at = await _first_to_make(database, now)
        # Hours that join a day are written while nobody else counts: one after the other, also where many are missing.
        until = min(at + 1 if at % 24 else at + 24, int(now) // HOUR)
        if until <= at or not await _tried(database, range(at, until)):
            return days
        days += until % 24 == 0


async def _tried(database: Database, span: range) -> bool:
    """Some hours of one day; False, told in the log, when they could not be made."""
    day, told = span.start // 24, list[list[int]]()
    for _ in range(TRIES):
        hours, labels = await added_up(database, span)
        told.append(counted(hours))
        joining = _Joining(span, told[-1], made(hours, labels, 0, span.stop), RequestRows(database.dialect))
        await database.transact(_name, joining)
        joining.rows.committed()
        try:
            await database.transact(_put_hours, joining)
        except Changed:
            log.info("hours are added up again: something was counted in them meanwhile", day=day)
        else:
            return True
    tell(day, told)
    return False


async def _take_up(database: Database) -> bool:
    """Make a day anew that a process of a version before has made; whether there was one. It knew of no owners."""
    day = await database.examine(PATIENCE, _to_take_up)
    if day is None:
        return False
    log.warning("a day is added up anew: a process of an older version has made it", day=day)
    try:
        of_rows = await made_anew(database, day) or await database.transact(rebuild_day, day)
    except Pruned:
        of_rows = False
    await database.transact(_taken_up, day, of_rows)
    return True


def _to_take_up(connection: Connection) -> int | None:
    """The first day of those; on a database whose first day this version has not begun it may be the first of all."""
    days = made_so_far(connection).days
    labels = int(setting(connection, LABELS_TO) or 0)
    if labels >= days * 24:
        return None
    if labels:
        return labels // 24
    first = connection.execute(select(func.min(UsageDay.starts)).where(UsageDay.facet == "")).scalar()
    return days - 1 if first is None else min(first, days - 1)


def _taken_up(connection: Connection, day: int, of_rows: bool) -> None:
    if turn(connection, LABELS_TO) >= day * 24 + 24:
        return
    if not of_rows:
        gather_pruned(connection, day)
    keep(connection, LABELS_TO, day * 24 + 24)


async def _first_to_make(database: Database, now: float) -> int:
    """The hour to go on with; before the first one of all, the first day that has anything."""
    return await database.examine(PATIENCE, _next_hour, now)


def _next_hour(connection: Connection, now: float) -> int:
    labels = made_so_far(connection).labels
    if labels:
        return labels
    hour = connection.scalar(select(func.min(UsageHour.starts)).where(UsageHour.facet == ""))
    return int(now) // DAY * 24 if hour is None else hour // 24 * 24


def _name(connection: Connection, joining: _Joining) -> None:
    """A third of the work, and whoever counts the same new name for an earlier day need not wait for the rest."""
    be_patient(connection)
    joining.rows.name(connection, joining.sums)


def _put_hours(connection: Connection, joining: _Joining) -> None:
    """Raises Changed, and leaves nothing behind, when the stored hours are not those that the rows had.

    A day that has some hours already is added to under the lock: what comes late for those is added to the same sums
    by whoever counts it, who has counted its hours before. Other days have nobody else yet.
    """
    be_patient(connection)
    span = joining.span
    day, closing = span.start // 24, span.stop % 24 == 0
    so_far, days = turn(connection, LABELS_TO), turn(connection, DAYS_TO)  # the version before asks for the second only
    if so_far < days * 24 or (so_far and so_far != span.start):
        return  # another process has made it, or some of it; one of the version before, which is to be taken up first
    if span.start % 24 == 0:
        forget(connection, UsageDay, range(day, day + 1))
        _put_labels(connection, joining)
    if closing:
        _put_day(connection, day)
    lock(connection)
    if span.start % 24:
        _put_labels(connection, joining)
    if not so_far:
        _begin_with(connection, day)
    if total(connection, UsageHour, span) != joining.numbers:
        raise Changed
    if closing:
        _close(connection, day)
    keep(connection, LABELS_TO, span.stop)


def _close(connection: Connection, day: int) -> None:
    if total(connection, UsageHour, range(day * 24, day * 24 + 24)) != total(connection, UsageDay, range(day, day + 1)):
        raise Changed
    keep(connection, DAYS_TO, day + 1)


def _put_labels(connection: Connection, joining: _Joining) -> None:
    joining.rows.put(connection, UsageDay, joining.sums)


def _begin_with(connection: Connection, day: int) -> None:
    """Days before the first of all have nothing and count as made: what comes late for them is added to them at once.

    Raises Changed when one of them has something by now.
    """
    first = connection.scalar(select(func.min(UsageHour.starts)).where(UsageHour.facet == ""))
    if first is not None and first < day * 24:
        raise Changed
    keep(connection, DAYS_TO, day)


def _put_day(connection: Connection, day: int) -> None:
    """One day by all dimensions, of its stored hours."""
    connection.execute(_made_of_hours(), {"day": day, **bounds(range(day * 24, day * 24 + 24))})


@cache
def _made_of_hours() -> Insert:
    hour = UsageHour.starts % 24
    sums = [_whole(func.sum(getattr(UsageHour, name))) for name in SUMMED]
    costs = [_whole(func.sum(case((hour == i, UsageHour.cost_nano), else_=0))) for i in range(len(COSTS))]
    # Every hour stands once, so adding its bit puts it there.
    bits = cast(func.sum(literal(1).bitwise_lshift(hour)), Integer)
    keys = [UsageHour.facet, bindparam("day", type_=Integer), UsageHour.who]
    columns = ("facet", "starts", "who", *SUMMED, *COSTS, HOURS)
    wanted = select(*keys, *sums, *costs, bits).where(UsageHour.facet.in_(("", FIRST)), *inside(UsageHour))
    return insert(UsageDay).from_select(columns, wanted.group_by(UsageHour.facet, UsageHour.who))


def _whole(value: ColumnElement[Any]) -> ColumnElement[int]:
    return cast(value, BigInteger)


async def rebuild(database: Database) -> int:
    """Make the sums of every day whose rows are kept anew; answers how many days. Others may write meanwhile."""
    span = await database.examine(0.0, days_there, with_pruned=False)
    for day in span:
        await database.transact(rebuild_day, day)
    return len(span)


def rebuild_day(connection: Connection, day: int) -> bool:
    """In one transaction that no other writer's counting can overlap. False, and nothing is written, without its rows.

    Writers insert rows first and count them afterwards, the hours before the days. On PostgreSQL whoever has counted
    is waited for by the lock, so its rows are seen below; whoever has not yet is not seen and counts its rows later.
    """
    be_patient(connection)
    hold(connection)
    if day * DAY < turn(connection, ROWS_FROM):
        return False  # until the end of this transaction nobody prunes more
    rows, so_far = RequestRows(connection.dialect.name), made_so_far(connection)
    hours, labels = folded(connection, day, so_far.labels)
    forget(connection, UsageHour, range(day * 24, day * 24 + 24))
    rows.put(connection, UsageHour, hours)
    if day * 24 < so_far.labels:
        forget(connection, UsageDay, range(day, day + 1))
        rows.put(connection, UsageDay, made(hours, labels, so_far.days, so_far.labels))
    put_blocks_of(connection, day, so_far)
    note_late(connection)
    return True
