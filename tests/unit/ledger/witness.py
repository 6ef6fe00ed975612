"""A look into a ledger's database past everything that is under test: one moment, read by statements of its own.

Knows: a connection of its own to SQLite or PostgreSQL. Does not know: what the rows mean.
"""

import asyncio
import sqlite3
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

import asyncpg

Row = Sequence[Any]


class Witness(Protocol):
    def rows(self, sql: str) -> list[Row]: ...

    def moment(self) -> Any:
        """A context in which all statements see the same moment."""
        ...

    def close(self) -> None: ...


class OfSQLite:
    """Obeys Witness."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)

    def rows(self, sql: str) -> list[Row]:
        return self._connection.execute(sql).fetchall()

    @contextmanager
    def moment(self) -> Generator[None]:
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("COMMIT")

    def close(self) -> None:
        self._connection.close()


class OfPostgres:
    """Obeys Witness; on the loop of the world that it looks at."""

    def __init__(self, url: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._connection = cast("Any", loop.run_until_complete(asyncpg.connect(url)))

    def rows(self, sql: str) -> list[Row]:
        return [tuple(row) for row in self._loop.run_until_complete(self._connection.fetch(sql))]

    @contextmanager
    def moment(self) -> Generator[None]:
        self._loop.run_until_complete(self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"))
        try:
            yield
        finally:
            self._loop.run_until_complete(self._connection.execute("COMMIT"))

    def close(self) -> None:
        self._loop.run_until_complete(self._connection.close())
