"""Writes the FOCUS dataset of a month into a file.

Knows: where charges and hits are read. Does not know: what rows look like (`gateway.exports.focus`), file formats.
Charges are of one snapshot of the database, and so are the hits of a month that was sealed with them. A day at a time:
memory is that of the groups of one day, never of the month.
"""

import asyncio
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, BinaryIO

from msgspec import Struct, structs
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db.models import ApiKey, Project, Team
from gateway.db.session import Database
from gateway.exports.columns import Version, columns, kind
from gateway.exports.focus import Charge, Dataset, Listed, Names
from gateway.exports.sinks import Format, Sink, sink
from gateway.ledger.grouping import DAY, Scope, grouped, late, own
from gateway.ledger.hits import MonthHits
from policies.months import span

_PAGE = 2_000
_COLUMNS = ("day", "team", "project", "key_id", "provider", "model")


class Wanted(Struct, frozen=True, kw_only=True):
    """One file. `team`: of that one only. `tags` False puts requests with different tags into one row."""

    month: str
    form: Format = "csv"
    version: Version = "1.2"
    team: str | None = None
    tags: bool = True


async def write_focus(database: Database, listed: Listed, wanted: Wanted, file: BinaryIO) -> int:
    """Write the whole file; answers how many rows. Raises TooMany, ValueError, and what a database raises."""
    into = sink(wanted.form, [(name, kind(name)) for name in columns(wanted.version)], file)
    count = 0
    async with database.snapshot() as connection:
        dataset = Dataset(wanted.month, wanted.version, await _names(connection), listed)
        its = span(wanted.month)
        days = range(its.start, its.end, DAY)
        hits = MonthHits(database, wanted.month, wanted.team)
        for start in days:
            scope = structs.replace(own(wanted.month, wanted.team), start=start, end=start + DAY)
            charges = await _charges(connection, wanted, dataset, scope)
            count += await _write(into, chain(charges, map(dataset.hits, await hits.of_day(connection, start // DAY))))
        count += await _write(into, await _charges(connection, wanted, dataset, late(wanted.month, wanted.team)))
    await asyncio.to_thread(into.close)
    return count


async def _charges(connection: AsyncConnection, wanted: Wanted, dataset: Dataset, scope: Scope) -> Iterator[Any]:
    names = (*_COLUMNS, "tags") if wanted.tags else _COLUMNS
    found = await grouped(connection, names, scope)
    groups = sorted(found.items(), key=lambda item: tuple(map(str, item[0])))
    return chain.from_iterable(
        dataset.charge(_charge(key, wanted.tags, late=scope.late), group) for key, group in groups
    )


def _charge(key: tuple[Any, ...], tags: bool, *, late: bool) -> Charge:
    day, team, project, key_id, provider, model, *rest = key
    return Charge(
        day=int(day),
        team=team,
        project=project,
        key_id=key_id,
        provider=provider,
        model=model,
        tags=rest[0] if tags else None,
        price=key[-2],
        source=key[-1],
        late=late,
    )


async def _write(into: Sink, rows: Iterator[Any]) -> int:
    """Page by page in another thread: a large file must not keep requests waiting."""
    count = 0
    while written := await asyncio.to_thread(_write_page, into, rows):
        count += written
    return count


def _write_page(into: Sink, rows: Iterator[Any]) -> int:
    page = list(islice(rows, _PAGE))
    if page:
        into.write(page)
    return len(page)


async def _names(connection: AsyncConnection) -> Names:
    teams = {row.id: row.name for row in await connection.execute(select(Team.id, Team.name))}
    projects = {row.id: row.name for row in await connection.execute(select(Project.id, Project.name))}
    keys = {row.id: row.name for row in await connection.execute(select(ApiKey.id, ApiKey.name))}
    return Names(teams, projects, keys)
