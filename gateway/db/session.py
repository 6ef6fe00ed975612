"""One database handle for SQLite and PostgreSQL: connections, transactions, read-only sessions, pragmas, timeouts.

Knows: URLs, drivers, how each dialect begins a transaction. Does not know: tables, who asks, retries.

SQLite: exactly one read-write connection (WAL, synchronous=FULL, BEGIN IMMEDIATE), because several writers fail with
"database is locked" whatever the busy timeout; readers get their own `mode=ro` connections and never block the writer.
PostgreSQL: asyncpg with statement_timeout 2 s and lock_timeout 500 ms, so that a stuck row costs a bounded wait; where
the server does not keep them either, `gateway.db.silence` ends the wait.
"""

import asyncio
import errno
import os
import sqlite3
import sys
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar
from urllib.parse import quote

import msgspec
from sqlalchemy import create_engine, event
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool, Pool, StaticPool

from gateway.db import one_hop
from gateway.db.compiled import SHARED
from gateway.db.silence import Watched

Dialect = Literal["sqlite", "postgresql"]
Also = Callable[[Connection], None]
"""What belongs to a change and is written in its transaction, after it: the row of the audit log."""
P = ParamSpec("P")
T = TypeVar("T")

UNREACHABLE = (OperationalError, DBAPIError, PoolTimeout, OSError, TimeoutError)
"""What a database that is down, slow or locked raises; the caller decides whether to wait, retry or refuse."""


def words_of(error: BaseException) -> str:
    """What the database says, or the network on the way to it: one line, without what the library adds."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return (str(cause) or type(cause).__name__).splitlines()[0]


_STATEMENT_TIMEOUT_MS = 2_000
_LOCK_TIMEOUT_MS = 500
_CONNECT_TIMEOUT = 2.0
_FOR_REPORTS = {
    "work_mem": "32MB",  # they add up thousands of sums: with 4 MB they are read from a file for every day asked for
    "enable_material": "off",  # each day asked for finds its own sums by the key, not among all that were kept aside
    "random_page_cost": "1.1",  # sums of lately are in memory, or on a disk that does not turn
}
_SETTING = "set_config('{}', '{}', true)"
_AS_A_REPORT = ", ".join(
    ["SELECT set_config('statement_timeout', $1, true)", *(_SETTING.format(*one) for one in _FOR_REPORTS.items())]
)
_POOL_TIMEOUT = 2.0
# SQLite's one writer is this very process: who waits for it waits for batches of our own, on a busy machine for
# seconds, and not for a database that is away. To refuse them sooner would refuse what can be done.
_WRITER_PATIENCE = 8.0
_READERS = 3
_LEAVING = 2.0
_BLOCKING = "nearhit_blocking"
_NICE = 10  # of the writing thread; Linux gives every thread a priority of its own
POSTGRES_CONNECTIONS = 6  # of each worker, at most
_decode_json = msgspec.json.Decoder().decode
_encode_json = msgspec.json.Encoder().encode


def database_url(url: str | None, home: Path) -> str:
    """The configured URL, or the file in `home` when there is none."""
    return url or f"sqlite:///{quote(str(home.resolve() / 'nearhit.db'))}"


def parse(url: str) -> URL:
    """With the async driver filled in. Raises ValueError for any other kind of database, and for what is no URL."""
    try:
        found = make_url(url)
    except ArgumentError:  # which quotes it, password and all
        raise ValueError("not the URL of a database: use sqlite:///FILE or postgresql://USER@HOST/NAME") from None
    kind = found.get_backend_name()
    if kind == "sqlite":
        return found.set(drivername="sqlite+aiosqlite")
    if kind == "postgresql":
        return found.set(drivername="postgresql+asyncpg")
    raise ValueError(f"unknown kind of database {kind!r}: use sqlite:///FILE or postgresql://USER@HOST/NAME")


def is_crowded(error: BaseException) -> bool:
    """Whether PostgreSQL has given away all its connections (SQLSTATE 53300, too_many_connections)."""
    return isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", None) == "53300"


def is_full(error: BaseException) -> bool:
    """Whether there was no room: as the system says it (or its quota), SQLite, or PostgreSQL (53100, disk_full)."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause, OSError):
        return cause.errno in (errno.ENOSPC, errno.EDQUOT)
    code: int = getattr(cause, "sqlite_errorcode", 0)
    return code & 0xFF == sqlite3.SQLITE_FULL or getattr(cause, "sqlstate", None) == "53100"


def nothing(_: Connection) -> None:
    """Nothing else belongs to the change."""


class Database:
    """Handle to one database: `begin()` or `transact()` for writes, `read()` for reads, `session()` for ORM work."""

    def __init__(self, url: str) -> None:
        self.url = parse(url)
        self.dialect: Dialect = "sqlite" if self.url.get_backend_name() == "sqlite" else "postgresql"
        self._writer = self._engine_for_writes()
        self._reader = self._engine_for_reads()

    @property
    def is_lasting(self) -> bool:
        """Whether other processes can open it: SQLite in memory they cannot."""
        return self.dialect == "postgresql" or self.url.database not in (None, "", ":memory:")

    async def start(self, *, upgrade: bool = True, apart: bool = False) -> None:
        """Connect and bring the schema up to date. Raises StaleSchema when it is not and `upgrade` is False.

        `apart`: another process does that, if it is to be done.
        """
        from gateway.db import migrate  # the one cycle: migrations need a Database to run on

        if self.dialect == "sqlite":
            _private_file(self.url)
        await (migrate.upgrade_database(self, apart=apart) if upgrade else migrate.require_current(self))

    async def close(self) -> None:
        """Close every connection. What is still in use is waited for, but not for long."""
        for engine in dict.fromkeys((self._reader, self._writer)):
            await _returned(engine.sync_engine.pool)
            await engine.dispose()

    @asynccontextmanager
    async def begin(self) -> AsyncGenerator[AsyncConnection, None]:
        """A read-write transaction: commits at the end of the block, rolls back when it raises."""
        async with self._writer.begin() as connection:
            yield connection

    async def transact(self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`work(connection, …)` as one read-write transaction; answers what it returns.

        On SQLite the whole of it runs in the thread of the connection: one hop instead of several per statement, and
        none of it on the event loop. `work` is plain blocking code over SQLAlchemy's `Connection` on both dialects.
        """

        def inside(blocking: Connection) -> T:
            return work(blocking, *args, **kwargs)

        if self.dialect == "postgresql":
            async with self._writer.begin() as connection:
                return await connection.run_sync(inside)
        async with self._writer.connect() as connection:
            return await _in_its_thread(connection, _begin_immediate, inside)

    async def examine(
        self, patience: float, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """`work(connection, …)` on what `read` yields, run as `transact` runs it: for reports of many statements.

        All of them see the same moment. `patience`: seconds that each may take on PostgreSQL; 0 is as long as it needs.
        """

        def inside(blocking: Connection) -> T:
            return work(blocking, *args, **kwargs)

        if self.dialect == "postgresql":
            async with self.read(patience=patience) as connection:
                return await connection.run_sync(inside)
        begin = _begin_immediate if self._reader is self._writer else _begin
        async with self._reader.connect() as connection:
            return await _in_its_thread(connection, begin, inside)

    @asynccontextmanager
    async def read(self, *, patience: float | None = None) -> AsyncGenerator[AsyncConnection, None]:
        """A read-only view; on SQLite a connection that cannot write. `patience`: seconds a report may take.

        All statements of a report see the same moment.
        """
        async with self._reader.connect() as connection:
            if patience is not None and self.dialect == "postgresql":
                await connection.execution_options(isolation_level="REPEATABLE READ")
                await connection.exec_driver_sql(_AS_A_REPORT, (str(int(patience * 1_000)),))
            yield connection

    @asynccontextmanager
    async def snapshot(self) -> AsyncGenerator[AsyncConnection, None]:
        """Like `read`, with all statements seeing the same moment and as much time as they need."""
        async with self._reader.connect() as connection:
            if self.dialect == "postgresql":
                await connection.execution_options(isolation_level="REPEATABLE READ")
                await connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
            yield connection

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[AsyncSession, None]:
        """An ORM session in one read-write transaction: commits at the end of the block, rolls back when it raises.

        Keep it short: on SQLite it holds the only connection that can write.
        """
        async with AsyncSession(self._writer, expire_on_commit=False) as session, session.begin():
            yield session

    def _engine_for_writes(self) -> AsyncEngine:
        if self.dialect == "postgresql":
            return _postgres(self.url)
        engine = _sqlite(self.url, 1, _WRITER_PATIENCE)
        event.listen(engine.sync_engine, "connect", _writer_pragmas)
        event.listen(engine.sync_engine, "begin", _begin_immediate)
        return engine

    def _engine_for_reads(self) -> AsyncEngine:
        if self.dialect == "postgresql" or not self.is_lasting:
            return self._writer
        path = quote(str(Path(self.url.database or "").resolve()))
        engine = _sqlite(self.url.set(database=f"file:{path}", query={"mode": "ro", "uri": "true"}), _READERS)
        event.listen(engine.sync_engine, "connect", _reader_pragmas)
        event.listen(engine.sync_engine, "begin", _begin_later)
        return engine


async def _returned(pool: Pool) -> None:
    """Who was cancelled gives its connection back a moment later; a pool that is gone by then would not close it."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_LEAVING):
            while isinstance(pool, AsyncAdaptedQueuePool) and pool.checkedout():  # noqa: ASYNC110 - it counts, and tells nobody
                await asyncio.sleep(0.005)


async def _in_its_thread(
    connection: AsyncConnection, begin: Callable[[Connection], None], work: Callable[[Connection], T]
) -> T:
    """SQLite: all of `work` as one transaction, in the thread that its connection belongs to."""
    pooled = await connection.get_raw_connection()
    adapted: Any = pooled.dbapi_connection
    return await adapted.visit(_whole, pooled.info, begin, work)


def _whole(
    raw: sqlite3.Connection,
    kept: dict[str, Engine],
    begin: Callable[[Connection], None],
    work: Callable[[Connection], T],
) -> T:
    """In that thread. `kept`: what lasts as long as the connection does: its blocking face."""
    engine = kept.get(_BLOCKING)
    if engine is None:
        if begin is _begin_immediate:
            _step_back()
        engine = kept[_BLOCKING] = create_engine(
            "sqlite://",
            creator=lambda: raw,
            poolclass=StaticPool,
            json_serializer=_dumps,
            json_deserializer=_decode_json,
            execution_options=SHARED,
        )
        event.listen(engine, "begin", begin)
    with engine.begin() as connection:
        return work(connection)


def _postgres(url: URL) -> AsyncEngine:
    limits = {"statement_timeout": str(_STATEMENT_TIMEOUT_MS), "lock_timeout": str(_LOCK_TIMEOUT_MS)}
    limits["jit"] = "off"  # compiling the sums of a page took eight times as long as running them
    engine = create_async_engine(
        url,
        pool_size=POSTGRES_CONNECTIONS,
        max_overflow=0,
        pool_timeout=_POOL_TIMEOUT,
        pool_use_lifo=True,
        connect_args={"server_settings": limits | {"application_name": "nearhit"}, "timeout": _CONNECT_TIMEOUT},
        hide_parameters=True,  # an error of the database is logged: it must not quote what was to be kept
        json_serializer=_dumps,
        json_deserializer=_decode_json,
        execution_options=SHARED,
    )
    Watched(engine, _STATEMENT_TIMEOUT_MS / 1_000)
    return engine


def _sqlite(url: URL, connections: int, patience: float = _POOL_TIMEOUT) -> AsyncEngine:
    engine = create_async_engine(
        url,
        poolclass=AsyncAdaptedQueuePool,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=patience,
        pool_use_lifo=True,  # who reads alone keeps to one connection: each has pages in memory
        hide_parameters=True,  # an error of the database is logged: it must not quote what was to be kept
        json_serializer=_dumps,
        json_deserializer=_decode_json,
        execution_options=SHARED,
    )
    event.listen(engine.sync_engine, "do_connect", one_hop.connect)
    return engine


def _dumps(value: object) -> str:
    return _encode_json(value).decode()


def _writer_pragmas(connection: Any, _record: object) -> None:
    """synchronous=FULL: a committed balance survives a power cut. Transactions are begun by us, not by the driver.

    Pages in memory stay at SQLite's own 2 MB: rows go to the end of their tables, so more would only be held.
    """
    connection.isolation_level = None
    connection.run(
        "PRAGMA journal_mode=WAL",
        "PRAGMA synchronous=FULL",
        "PRAGMA busy_timeout=5000",
        "PRAGMA foreign_keys=ON",
        "PRAGMA wal_autocheckpoint=4000",
    )


def _reader_pragmas(connection: Any, _record: object) -> None:
    connection.isolation_level = None
    connection.run("PRAGMA busy_timeout=2000", "PRAGMA query_only=ON")


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN")


def _begin_later(connection: Connection) -> None:
    adapted: Any = connection.connection.dbapi_connection
    adapted.begin_later()


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _step_back() -> None:
    """Writing batches can wait a moment, requests cannot: on a busy core this thread comes after the event loop's."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


def _private_file(url: URL) -> None:
    """The database holds key digests and spend: readable by its owner only."""
    if url.database and url.database != ":memory:":
        path = Path(url.database)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600, exist_ok=True)
