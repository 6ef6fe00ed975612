"""SQLite's connections as SQLAlchemy uses them, with one visit to a connection's thread where there would be four.

aiosqlite makes a cursor, runs a statement, fetches its rows and closes the cursor, and waits for the thread each time;
a rollback waits for it once more, also where nothing was begun. Each wait takes longer than a usual statement.
Knows: SQLAlchemy's connections and cursors over aiosqlite. Does not know: statements, who asks.
"""

import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sqlalchemy.dialects.sqlite.aiosqlite import (
    AsyncAdapt_aiosqlite_connection,
    AsyncAdapt_aiosqlite_cursor,
    AsyncAdapt_aiosqlite_ss_cursor,
)
from sqlalchemy.util import await_only

T = TypeVar("T")


class _Seen:
    """What a statement left behind: its rows and what a cursor says of them."""

    __slots__ = ("description", "lastrowid", "rowcount", "rows")

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self.description = cursor.description
        self.rows: deque[Any] = deque(cursor.fetchall() if cursor.description else ())
        self.rowcount = cursor.rowcount  # known when the last row is fetched, where changed rows are returned
        self.lastrowid = cursor.lastrowid


class Cursor(AsyncAdapt_aiosqlite_cursor):
    """A statement's rows are all here when it has run, and its cursor is closed."""

    __slots__ = ("_arraysize", "_seen")
    _seen: _Seen | None

    def __init__(self, connection: "Connection") -> None:
        # Not the one above, which visits the thread to make a cursor.
        self._adapt_connection = connection
        self._seen = None
        self._rows = deque()
        self._arraysize = 1

    @property
    def arraysize(self) -> int:
        return self._arraysize

    @arraysize.setter
    def arraysize(self, value: int) -> None:
        self._arraysize = value

    @property
    def description(self) -> Any:
        return None if self._seen is None else self._seen.description

    @property
    def rowcount(self) -> int:
        return -1 if self._seen is None else self._seen.rowcount

    @property
    def lastrowid(self) -> Any:
        return None if self._seen is None else self._seen.lastrowid

    def execute(self, operation: str, parameters: Any = None) -> None:
        self._run(sqlite3.Cursor.execute, operation, () if parameters is None else parameters)

    def executemany(self, operation: str, seq_of_parameters: Any) -> None:
        self._run(sqlite3.Cursor.executemany, operation, seq_of_parameters)

    def _run(self, ask: Callable[[sqlite3.Cursor, str, Any], sqlite3.Cursor], operation: str, parameters: Any) -> None:
        adapted: Any = self._adapt_connection
        self._seen = seen = adapted.ask(_seen, ask, operation, parameters)
        self._rows = seen.rows

    async def _async_soft_close(self) -> None:
        """It is closed."""

    def close(self) -> None:
        self._rows.clear()


def _seen(
    raw: sqlite3.Connection, ask: Callable[[sqlite3.Cursor, str, Any], sqlite3.Cursor], operation: str, parameters: Any
) -> _Seen:
    cursor = raw.cursor()
    try:
        return _Seen(ask(cursor, operation, parameters))
    finally:
        cursor.close()


class Streaming(AsyncAdapt_aiosqlite_ss_cursor):
    """Rows are fetched as they are asked for: aiosqlite's own visits, after one to begin."""

    __slots__ = ()

    def execute(self, operation: Any, parameters: Any = None) -> Any:
        adapted: Any = self._adapt_connection
        adapted.begin_now()
        return super().execute(operation, parameters)


class Connection(AsyncAdapt_aiosqlite_connection):
    """One connection. `visit` runs something in its thread."""

    __slots__ = ("_begins", "_under_way")
    _cursor_cls = Cursor
    _ss_cursor_cls = Streaming

    def __init__(self, dbapi: Any, connection: Any) -> None:
        super().__init__(dbapi, connection)
        self._begins = False  # a transaction that was asked for, and is begun with its first statement
        self._under_way = 0  # visits whose end nobody has seen: they may still begin or end a transaction

    def ask(self, work: Callable[..., T], *args: Any) -> T:
        """`visit` for SQLAlchemy, which wants the driver's ValueError of a closed connection as an OperationalError."""
        try:
            return await_only(self.visit(work, *args))
        except ValueError as error:
            self._handle_exception(error)

    def run(self, *statements: str) -> None:
        """All of them in one visit; whatever they answer is dropped."""
        await_only(self.visit(_all, statements))

    def begin_later(self) -> None:
        """BEGIN together with the next statement. Before it a deferred transaction sees and locks nothing anyway."""
        self._begins = True

    def begin_now(self) -> None:
        """What was to begin later."""
        if self._begins:
            await_only(self.visit(_nothing))

    async def visit(self, work: Callable[..., T], *args: Any) -> T:
        """`work(raw connection, …)` in the connection's thread. aiosqlite has no public way to do that."""
        driver: Any = self._connection
        begins, self._begins = self._begins, False
        self._under_way += 1
        try:
            found = await driver._execute(_begun if begins else work, driver._conn, *((work,) if begins else ()), *args)
        except Exception:  # it ended; where it was cancelled (no Exception) it goes on in its thread, and counts
            self._under_way -= 1
            raise
        self._under_way -= 1
        return found

    def rollback(self) -> None:
        self._begins = False
        if self._has_transaction():
            super().rollback()
            self._under_way = 0

    def commit(self) -> None:
        self._begins = False
        if self._has_transaction():
            super().commit()
            self._under_way = 0

    def _has_transaction(self) -> bool:
        driver: Any = self._connection
        return driver._connection is not None and (self._under_way > 0 or driver._connection.in_transaction)


def _nothing(raw: sqlite3.Connection) -> None:
    del raw


def _all(raw: sqlite3.Connection, statements: Sequence[str]) -> None:
    for statement in statements:
        raw.execute(statement).close()


def _begun(raw: sqlite3.Connection, work: Callable[..., T], *args: Any) -> T:
    raw.execute("BEGIN")
    return work(raw, *args)


def connect(dialect: Any, _record: object, args: Any, kwargs: Any) -> Connection:
    """SQLAlchemy's event `do_connect`: one of its connections as one of these."""
    found = dialect.loaded_dbapi.connect(*args, **kwargs)
    return Connection(found.dbapi, found._connection)
