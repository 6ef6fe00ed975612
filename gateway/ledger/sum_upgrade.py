"""What a version before did not add up is added up beside requests, some of a day at a time; and kept right beside it.

Knows: which sums older versions do not make, how that is made up for from other sums and from rows. Does not know: when
it is time. Every transaction is short and writes down how far it came, so a process that is killed loses little.
Several processes share the days by owner; what hours cost each may add up of the same day, and who is first writes it.
Pages do not read what is not there yet (`gateway.db.usage_cut.Reach`).
"""

import asyncio
import math
import time
from typing import Any

import structlog
from sqlalchemy import BigInteger, cast, delete, func, select
from sqlalchemy.engine import Connection

from gateway.db.models import Setting, UsageDay, UsageHour
from gateway.db.session import Database
from gateway.db.sums import (
    COSTS_FROM,
    DAY,
    GATHER,
    GATHERED_TO,
    MISSING,
    OWNER,
    ROWS_FROM,
)
from gateway.ledger.request_rows import made_so_far, rows_from
from gateway.ledger.sum_anew import PATIENCE, TRIES, Pruned, made_anew
from gateway.ledger.sum_gathered import gather, gather_pruned
from gateway.ledger.sum_rows import Changed, be_patient, keep, setting, turn
from gateway.ledger.sums import rebuild_day

log = structlog.get_logger("nearhit.ledger")

_TELL_EVERY = 10
_WRITES = ("requests", "audits", "corrected_nano")  # whatever is counted changes one of them
_NONE = [0] * len(_WRITES)


async def take_along(database: Database, stopping: asyncio.Event | None = None, until: float = math.inf) -> None:
    """Everything that is missing since an upgrade, until it is there, `stopping` is set or it is `until` (monotonic).

    First what days say by owner and of all users and values, of the sums that are there: blocks and pages wait for it.
    Then what each hour of a day cost, by user and tag, which only rows know.
    """
    for step, adding in ((_gather, "days by owner"), (_cost, "what the hours of days cost, newest first")):
        count = 0
        while (left := await step(database)) is not None:
            count += 1
            if count % _TELL_EVERY == 1 or not left:
                log.info("after an upgrade sums are made beside requests", of=adding, days_left=left)
            if time.monotonic() >= until or (stopping is not None and stopping.is_set()):
                return


async def _gather(database: Database) -> int | None:
    """One day more by owner; how many are left, None when none was."""
    for _ in range(TRIES):
        try:
            return await database.transact(_gather_next)
        except Changed:
            log.info("a day is added up again: something was counted in it meanwhile")
    return None  # busy with what came late: the next turn


def _gather_next(connection: Connection) -> int | None:
    be_patient(connection)
    done_to = turn(connection, GATHERED_TO)
    if setting(connection, MISSING) != GATHER:
        return None
    days = select(func.min(UsageDay.starts), func.max(UsageDay.starts))
    days = days.where(UsageDay.facet == "", UsageDay.starts >= done_to)
    if known_from := _known_from(connection):
        days = days.where(UsageDay.starts < known_from)  # others have owners: gathered ones would hide what they lack
    found: Any = connection.execute(days).one()
    day, last = found
    if day is None:
        connection.execute(delete(Setting).where(Setting.name == MISSING))
        return None
    gather(connection, day)
    keep(connection, GATHERED_TO, day + 1)
    return last - day


def _known_from(connection: Connection) -> int:
    """The first day that this version made of its rows, by owner and with its hours' costs; 0: all."""
    return int(setting(connection, COSTS_FROM) or 0)


async def _cost(database: Database) -> int | None:
    """One day more that knows what its hours cost, of those whose rows are kept; how many are left, None at the end."""
    found = await database.examine(PATIENCE, _next_to_cost)
    if found is None:
        return None
    day, first = found
    if day >= first:
        try:
            if not await made_anew(database, day):
                return None
        except Pruned:
            return 0  # what is pruned stays as it is; looked at anew, which day is next
    await database.transact(_costed, day)
    return max(0, day - first)


def _next_to_cost(connection: Connection) -> tuple[int, int] | None:
    """The day, and the first one whose rows are kept: there nothing is left to do but to say so."""
    known_from = _known_from(connection)
    first = connection.execute(select(func.min(UsageDay.starts)).where(UsageDay.facet == "")).scalar()
    if not known_from or first is None:
        return None
    floor = -(-int(rows_from(connection)) // DAY)
    day = known_from - 1
    return (day, max(first, floor)) if day >= floor else None


def _costed(connection: Connection, day: int) -> None:
    """From `day` on they are known; before the first day of all, everything is."""
    if turn(connection, COSTS_FROM) != day + 1:
        return  # another process has come further
    if day * DAY < turn(connection, ROWS_FROM):
        return  # pruned meanwhile: whether it was made before that nobody can tell
    first = connection.execute(select(func.min(UsageDay.starts)).where(UsageDay.facet == "")).scalar()
    keep(connection, COSTS_FROM, 0 if first is None or day <= first else day)


async def mend(database: Database, until: float = math.inf) -> int:
    """Days to which a process of the version before has added what it counted late, which it did to no owner's sums;
    answers how many, of all whose rows are kept. Newest first, and one at least; no further `until` (monotonic).
    """
    days, made_to = await database.examine(PATIENCE, _apart)
    for count, day in enumerate(days):
        if count and time.monotonic() >= until:
            return count
        log.warning("a day is added up anew: a process of an older version has added to it", day=day)
        try:
            right = await made_anew(database, day)
            if not right and day < made_to:  # one that grows waits for the next turn: nobody could count meanwhile
                await database.transact(rebuild_day, day)
        except Pruned:
            await database.transact(gather_pruned, day)
    return len(days)


def _apart(connection: Connection) -> tuple[list[int], int]:
    """Those days, and the first one that is not made yet."""
    so_far = made_so_far(connection)
    if not so_far.days:
        return [], 0
    first = -(-int(rows_from(connection)) // DAY)
    if setting(connection, MISSING) == GATHER:
        first = max(first, _known_from(connection))
    by_day = _written(connection, UsageDay, "", range(first, so_far.days))
    owners = _written(connection, UsageDay, OWNER, range(first, so_far.days + 1))
    if so_far.days * 24 < so_far.labels:
        lines = _written(connection, UsageHour, "", range(so_far.days * 24, so_far.labels)).values()
        by_day[so_far.days] = [sum(column) for column in zip(_NONE, *lines, strict=True)]
    apart = [day for day in sorted(by_day | owners) if by_day.get(day, _NONE) != owners.get(day, _NONE)]
    return apart[::-1], so_far.days


def _written(
    connection: Connection, of: type[UsageDay] | type[UsageHour], facet: str, span: range
) -> dict[int, list[int]]:
    """What was counted in each day or hour that has any."""
    sums = [cast(func.sum(getattr(of, name)), BigInteger) for name in _WRITES]
    inside = (of.facet == facet, of.starts >= span.start, of.starts < span.stop)
    wanted: Any = select(of.starts, *sums).where(*inside).group_by(of.starts)
    return {row[0]: list(row[1:]) for row in connection.execute(wanted)}
