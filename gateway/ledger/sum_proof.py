"""Proof that every stored sum is what it should be.

Knows: that hours follow from rows as far back as rows are kept, days from hours and rows, blocks from their days. Does
not know: how a difference comes about, who is told. One day at a time, each as of one moment, so neither memory nor how
long the database keeps an old state grows with the ledger.
"""

from collections.abc import Iterator

from sqlalchemy.engine import Connection

from gateway.db.models import UsageDay, UsageDays8, UsageDays64, UsageHour
from gateway.db.session import Database
from gateway.db.sums import (
    BLOCKS_FROM,
    COSTS,
    COSTS_FROM,
    DAY,
    FIRST,
    GATHER,
    HOURS,
    HOURS_FROM,
    MISSING,
    OWNER,
    SUMMED,
    Sums,
    made,
    merge,
    owned,
)
from gateway.ledger.request_rows import made_so_far, rows_from
from gateway.ledger.sum_rows import days_there, folded, setting, stored

_UNHURRIED = 0.0  # who asks for a proof waits for it
_OF_HOURS = ("", FIRST, OWNER)


async def differences(database: Database, most: int = 100) -> list[str]:
    """Every sum that is not what it should be, each in a sentence; empty when all is right."""
    found: list[str] = []
    for day in await database.examine(_UNHURRIED, days_there, with_pruned=True):
        found += await database.examine(_UNHURRIED, _wrong_in, day)
        if len(found) >= most:
            break
    return found[:most]


def _wrong_in(connection: Connection, day: int) -> list[str]:
    """The differences of one day, and of the blocks that it ends."""
    so_far = made_so_far(connection)
    hours_from, costs_from = [int(setting(connection, name) or 0) for name in (HOURS_FROM, COSTS_FROM)]
    hours = stored(connection, UsageHour, range(day * 24, day * 24 + 24))
    days = stored(connection, UsageDay, range(day, day + 1))
    found = _wrong_blocks(connection, day, so_far.blocks)
    if day * DAY >= rows_from(connection):
        right, labels = folded(connection, day, so_far.labels)
        found += _compared("hour", hours, right)
        days, right = _there(connection, days, made(right, labels, so_far.days, so_far.labels))
    elif day * DAY < hours_from:
        return found  # the days are all that is left
    else:
        mine = {key: sums for key, sums in days.items() if key[0] in _OF_HOURS}
        days, right = _there(connection, mine, made(hours, {}, so_far.days, so_far.labels))
    if day < costs_from:
        days, right = _without_costs(days), _without_costs(right)
    return [*found, *_compared("day", days, right)]


def _there(connection: Connection, *days: Sums) -> list[Sums]:
    """Without what is not added up yet since an upgrade."""
    if setting(connection, MISSING) != GATHER:
        return list(days)
    return [{key: sums for key, sums in one.items() if not owned(key[0])} for one in days]


def _without_costs(days: Sums) -> Sums:
    """As a version before wrote them."""
    return {key: [*sums[: len(SUMMED)], *[0] * len(COSTS), sums[-1]] for key, sums in days.items()}


def _wrong_blocks(connection: Connection, day: int, made_to: int) -> list[str]:
    """Of the eight and the sixty-four days that this one is the last of."""
    found: list[str] = []
    if day >= made_to:
        return found
    for of, parts, size in ((UsageDays8, UsageDay, 8), (UsageDays64, UsageDays8, 64)):
        block = day // size
        if day % size != size - 1 or block * size * DAY < int(setting(connection, BLOCKS_FROM) or 0):
            continue
        right: Sums = {}
        for (facet, starts, who), sums in stored(connection, parts, range(block * 8, block * 8 + 8)).items():
            merge(right, {(facet, starts // 8, who): [*sums[: len(SUMMED)], 0]})
        have = {key: [*sums, 0] for key, sums in stored(connection, of, range(block, block + 1)).items()}
        found += _compared(f"{size} days", have, right)
    return found


def _compared(kind: str, have: Sums, right: Sums) -> Iterator[str]:
    names = (*SUMMED, *COSTS, HOURS) if kind == "day" else (*SUMMED, HOURS)
    none = [0] * len(names)
    for key in sorted(have.keys() | right.keys(), key=repr):
        is_, want = have.get(key, none), right.get(key, none)
        wrong = [
            f"{name} is {a} and should be {b}"
            for name, a, b in zip(names, is_, want, strict=True)
            if not _same(name, a, b)
        ]
        if wrong:
            facet, starts, who = key
            yield f"the sum of {kind} {starts} ({facet or 'all'}, {'/'.join(map(str, who))}): {', '.join(wrong[:4])}"


def _same(name: str, have: int, want: int) -> bool:
    """Hours too many only cost a look."""
    return have & want == want if name == HOURS else have == want
