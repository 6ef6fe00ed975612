"""All that one database holds, put into another one that is empty: from a laptop's SQLite to PostgreSQL, or back.

Knows: every table's columns, keys and order; that all of it arrives or nothing. Does not know: what a row means, who
writes to either database meanwhile (nobody may), which settings lead to them.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any

from msgspec import Struct
from sqlalchemy import LargeBinary, Table, delete, func, insert, literal, select, text, tuple_
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db.models import Base, Setting
from gateway.db.session import Database

Tell = Callable[[str, int, int], None]
"""Called with a table's name, how many of its rows are there, and how many there will be."""

_ROWS = 1_000
_ROWS_OF_FILES = 16  # each may hold a quarter of a megabyte
_TABLES = Base.metadata.sorted_tables  # what is referred to before what refers to it
# Sums of remainders stay within 64 bits whatever the numbers are; digests of eight bytes are among them.
_PRIME = 2_147_483_647


class NotEmpty(Exception):
    """The other database holds something already. The message says what."""


class Differs(Exception):
    """What arrived is not what was sent, so that nothing was kept. The message says where."""


class Copied(Struct, frozen=True):
    """One table, and how many rows it has in both databases."""

    table: str
    rows: int


async def copy(source: Database, target: Database, tell: Tell) -> list[Copied]:
    """Every row of `source`; both have today's schema. One transaction: after any failure `target` is still empty.

    Raises NotEmpty, Differs, and what a database that does not answer raises.
    """
    async with source.snapshot() as found, target.begin() as made:
        if target.dialect == "postgresql":
            await made.execute(text("SET LOCAL statement_timeout = 0"))
        await _require_empty(made)
        await made.execute(delete(Setting))  # an empty database has some: how far its sums go
        copied: list[Copied] = []
        for table in _TABLES:
            total = await _count(found, table)
            done = 0
            async with aclosing(_pages(found, table)) as pages:
                async for page in pages:
                    await _write(made, table, page)
                    done += len(page)
                    tell(table.name, done, total)
            copied.append(Copied(table.name, done))
        await _compare(found, made, copied)
        if target.dialect == "postgresql":
            await _set_counters(made)
    return copied


async def _require_empty(connection: AsyncConnection) -> None:
    counts = [(table.name, await _count(connection, table)) for table in _TABLES if table is not Setting.__table__]
    if some := [f"{count} in {name}" for name, count in counts if count]:
        raise NotEmpty(f"that database is not empty ({', '.join(some[:4])}{', …' if len(some) > 4 else ''})")


async def _count(connection: AsyncConnection, table: Table) -> int:
    return await connection.scalar(select(func.count()).select_from(table)) or 0


async def _pages(connection: AsyncConnection, table: Table) -> AsyncGenerator[list[dict[str, Any]]]:
    """All rows in the order of their key, so many at a time as fit into memory whatever they hold."""
    keys = list(table.primary_key)
    limit = _ROWS_OF_FILES if any(isinstance(column.type, LargeBinary) for column in table.columns) else _ROWS
    wanted = select(table).order_by(*keys).limit(limit)
    asked = wanted
    while page := [dict(row) for row in (await connection.execute(asked)).mappings()]:
        yield page
        last = [literal(page[-1][column.name], column.type) for column in keys]
        asked = wanted.where(tuple_(*keys) > tuple_(*last))


async def _write(connection: AsyncConnection, table: Table, page: Sequence[dict[str, Any]]) -> None:
    try:
        await connection.execute(insert(table), page)
    except IntegrityError as error:  # it was empty a moment ago
        raise NotEmpty(f"somebody else wrote to {table.name} of that database meanwhile") from error


async def _compare(source: AsyncConnection, target: AsyncConnection, copied: Sequence[Copied]) -> None:
    """Rows of every table, and the sum of every column of whole numbers: amounts, tokens, limits."""
    for table, one in zip(_TABLES, copied, strict=True):
        numbers = [column for column in table.columns if column.type.python_type is int]
        sums = select(func.count(), *(func.sum(column % _PRIME) for column in numbers)).select_from(table)
        sent, arrived = [[int(value or 0) for value in (await side.execute(sums)).one()] for side in (source, target)]
        if sent != arrived or sent[0] != one.rows:
            raise Differs(f"{table.name} has {sent} in the one and {arrived} in the other (rows, and sums of numbers)")


async def _set_counters(connection: AsyncConnection) -> None:
    """PostgreSQL numbers new rows by a counter that knows nothing of rows that came with numbers of their own."""
    for table in _TABLES:
        column = table.autoincrement_column
        if column is None:
            continue
        last = await connection.scalar(select(func.max(column)))
        if last is not None:
            counter = func.pg_get_serial_sequence(table.name, column.name)
            await connection.execute(select(func.setval(counter, last)))
