"""Sums of eight days, and of eight such eights: made of the days once those are made, so that long spans are short.

Knows: that a block follows from its days, and how it is noticed that one of them was added to meanwhile. Does not know:
how requests add up, when it is time.
"""

from functools import cache

import structlog
from sqlalchemy import BigInteger, Insert, Integer, bindparam, cast, func, insert, select
from sqlalchemy.engine import Connection

from gateway.db.models import UsageDay, UsageDays8, UsageDays64
from gateway.db.session import Database
from gateway.db.sums import BLOCKS_TO, GATHER, LATE, MISSING, SUMMED
from gateway.ledger.request_rows import Made, Summed, made_so_far
from gateway.ledger.sum_rows import Changed, be_patient, bounds, facets_of, forget, inside, keep, lock, setting, turn

log = structlog.get_logger("nearhit.ledger")

EIGHT = 8
_MOST = 64
_TRIES = 3
_PATIENCE = 30.0


async def make_blocks(database: Database) -> int:
    """Every block whose days are made, in order; answers how many. Days of before there were blocks are taken up."""
    count = 0
    while (first := await _first_to_make(database)) is not None:
        for _ in range(_TRIES):
            try:
                await database.transact(_put_block, first)
                break
            except Changed:
                log.info("days are added up again: something was counted in them meanwhile", first=first)
        else:
            return count  # busy with what came late: the next turn
        count += 1
    return count


async def _first_to_make(database: Database) -> int | None:
    """The first day of it; None when its days are not all made."""
    return await database.examine(_PATIENCE, _next)


def _next(connection: Connection) -> int | None:
    so_far = made_so_far(connection)
    if setting(connection, MISSING) == GATHER:
        return None  # days do not say everything yet that a block has to
    earliest = select(func.min(UsageDay.starts)).where(UsageDay.facet == "")
    first: int | None = so_far.blocks or connection.execute(earliest).scalar()
    if first is None:
        return None
    first = first // EIGHT * EIGHT
    return first if first + EIGHT <= so_far.days else None


def _put_block(connection: Connection, first: int) -> None:
    """Raises Changed, and leaves nothing behind, when something was added to a day that is made."""
    be_patient(connection)
    turn(connection, BLOCKS_TO)
    late = _late(connection)
    if _next(connection) != first:
        return  # another process has made it, or the first of all is an earlier one since something came late
    put_blocks_of(connection, first, Made(first + EIGHT, 0, first + EIGHT))
    lock(connection)
    if _late(connection) != late:
        raise Changed
    keep(connection, BLOCKS_TO, first + EIGHT)


def _late(connection: Connection) -> str:
    return setting(connection, LATE)


def put_blocks_of(connection: Connection, day: int, so_far: Made, facets: list[str] | None = None) -> None:
    """Write the blocks that the day is in anew, as far as they are made: of all facets, or of some.

    Of a longer one the last eight makes it.
    """
    if _end(day, EIGHT) <= so_far.blocks:
        _sum_up(connection, (UsageDay, UsageDays8), day // EIGHT, facets)
    if _end(day, _MOST) <= so_far.blocks:
        _sum_up(connection, (UsageDays8, UsageDays64), day // _MOST, facets)


def _end(day: int, size: int) -> int:
    return (day // size + 1) * size


def _sum_up(connection: Connection, sizes: tuple[Summed, Summed], block: int, facets: list[str] | None) -> None:
    """Of eight sums one."""
    of, into = sizes
    forget(connection, into, range(block, block + 1), facets)
    those = facets_of(connection, of) if facets is None else facets
    asked = {"facets": those, "block": block, **bounds(range(block * EIGHT, (block + 1) * EIGHT))}
    connection.execute(_summed_up(of, into), asked)


@cache
def _summed_up(of: Summed, into: Summed) -> Insert:
    sums = [cast(func.sum(getattr(of, name)), BigInteger) for name in SUMMED]
    wanted = select(of.facet, bindparam("block", type_=Integer), of.who, *sums)
    wanted = wanted.where(of.facet.in_(bindparam("facets", expanding=True)), *inside(of))
    return insert(into).from_select(("facet", "starts", "who", *SUMMED), wanted.group_by(of.facet, of.who))
