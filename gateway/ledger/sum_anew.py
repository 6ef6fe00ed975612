"""One day's sums made anew from its rows, beside requests: rows are added up aside, and written some facets at a time.

Knows: how it is noticed that something was counted meanwhile, and what of a day may be written before the rest of it.
Does not know: which day needs it.
"""

import asyncio
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import structlog
from sqlalchemy import Select, func, select
from sqlalchemy.engine import Connection

from gateway.db.models import UsageDay, UsageHour
from gateway.db.session import Database
from gateway.db.sums import DAY, HOUR, OWNER, ROWS_FROM, SUMMED, Sums, by_hour, by_label, made, merge
from gateway.ledger.balances import table
from gateway.ledger.request_rows import Made, RequestRows, Summed, made_so_far, note_late
from gateway.ledger.sum_blocks import put_blocks_of
from gateway.ledger.sum_rows import After, Changed, be_patient, bounds, following, forget, hold, inside, page, turn

log = structlog.get_logger("nearhit.ledger")

TRIES = 3
PATIENCE = 30.0
_PAUSE = 0.01  # between five hundred rows: there is no hurry
_AT_ONCE = 2_000  # sums that one transaction writes while nobody counts; a facet of more is not parted


class Pruned(Exception):
    """The rows of a day went while its sums were made anew from them."""


class _Right(NamedTuple):
    """What was added up: whole hours, the numbers of all requests in them, how far sums were made then."""

    span: range
    numbers: list[int]
    so_far: Made


async def made_anew(database: Database, day: int) -> bool:
    """All sums of a day that is made; of one that grows those by owner, user and tag, as far as it has them.

    False, told in the log, when they do not follow from its rows or too much is counted in it. Raises Pruned.
    """
    told: list[list[int]] = []
    for _ in range(TRIES):
        so_far = await database.examine(PATIENCE, made_so_far)
        span = range(day * 24, min(day * 24 + 24, so_far.labels))
        hours, labels = await added_up(database, span, _PAUSE)
        told.append(counted(hours))
        try:
            for part in _parts(made(hours, labels, so_far.days, so_far.labels)):
                if not await database.transact(_put_anew, day, part, _Right(span, told[-1], so_far)):
                    raise Pruned
        except Changed:
            log.info("a day is added up again: something was counted in it meanwhile", day=day)
        else:
            return True
    tell(day, told)
    return False


def tell(day: int, told: list[list[int]]) -> None:
    """Why a day could not be made, of what its rows said at each try: the same twice, and so not what is stored?"""
    if told[-1] == told[-2]:
        log.error("a day's sums do not follow from its rows: nearhit ledger verify", day=day)
    else:
        log.info("much is counted in a day right now: it is added up the next turn", day=day)


async def added_up(database: Database, of: range, pause: float = 0.0) -> tuple[Sums, Sums]:
    """Some hours and their labels, as their rows have them. Away from the event loop: requests go first."""
    hours: Sums = {}
    labels: Sums = {}
    after: After | None = (float(of.start * HOUR), "")
    while after is not None:
        rows, corrected = await database.examine(PATIENCE, page, of.stop * HOUR, after)
        merge(hours, await asyncio.to_thread(by_hour, rows, corrected))
        merge(labels, await asyncio.to_thread(by_label, rows, corrected))
        after = following(rows)
        await asyncio.sleep(pause)
    return hours, labels


def counted(hours: Sums) -> list[int]:
    """Of all requests, as `total` has it."""
    lines = [line[:-1] for (facet, _, _), line in hours.items() if facet == ""]
    return [sum(column) for column in zip([0] * len(SUMMED), *lines, strict=True)]


def total(connection: Connection, of: Summed, span: range) -> list[int]:
    """Of all requests."""
    return [int(value) for value in connection.execute(_total(of), bounds(span)).one()]


@cache
def _total(of: Summed) -> Select[Any]:
    sums = [func.coalesce(func.sum(table(of).c[name]), 0) for name in SUMMED]
    return select(*sums).where(of.facet == "", *inside(of))


def _parts(sums: Sums) -> Iterator[dict[str, Sums]]:
    """Whole facets, about as many sums at once as are written in a moment.

    Owners come last: until they are there the day is one that differs, should this process be killed.
    """
    by_facet: dict[str, Sums] = {OWNER: {}}
    for key, line in sums.items():
        by_facet.setdefault(key[0], {})[key] = line
    some: dict[str, Sums] = {}
    for facet in sorted(by_facet, key=lambda one: (one == OWNER, one)):
        if some and sum(map(len, some.values())) + len(by_facet[facet]) > _AT_ONCE:
            yield some
            some = {}
        some[facet] = by_facet[facet]
    yield some


def _put_anew(connection: Connection, day: int, part: dict[str, Sums], right: _Right) -> bool:
    """Some facets of a day and of its blocks; False, and nothing is written, when its rows were pruned meanwhile.

    Raises Changed when the day is not what was added up: by all dimensions its hours are, until it is made.
    """
    be_patient(connection)
    hold(connection)
    if day * DAY < turn(connection, ROWS_FROM):
        return False  # until the end of this transaction nobody prunes more
    so_far, is_made = made_so_far(connection), day < right.so_far.days
    if is_made is not (day < so_far.days) or min(day * 24 + 24, so_far.labels) != right.span.stop:
        raise Changed
    there = total(connection, UsageDay, range(day, day + 1)) if is_made else total(connection, UsageHour, right.span)
    if there != right.numbers:
        raise Changed
    forget(connection, UsageDay, range(day, day + 1), list(part))
    together = {key: line for sums in part.values() for key, line in sums.items()}
    RequestRows(connection.dialect.name).put(connection, UsageDay, together)
    put_blocks_of(connection, day, so_far, list(part))
    note_late(connection)
    return True
