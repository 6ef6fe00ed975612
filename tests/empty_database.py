"""A database with today's schema and nothing in it, migrated once per process and copied ever after.

Knows: that most tests begin with one, and that migrating takes forty times as long as a copy. Does not know: what is
in a schema.
"""

import asyncio
import os
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from sqlalchemy import text

from gateway.db import migrate
from gateway.db.session import Database
from gateway.ids import uuid7

really_upgrade = migrate.upgrade_database
_ONE_AT_A_TIME = threading.Lock()


async def upgrade_database(database: Database, *, apart: bool = False) -> None:
    """In place of `gateway.db.migrate.upgrade_database`: a file that nobody has written to is not migrated."""
    del apart  # what is left to migrate then takes less time than a process
    if database.dialect == "sqlite":
        _fill(Path(database.url.database or ""))
    await really_upgrade(database)


def put(path: Path) -> None:
    """Write one to `path`; a file that is there keeps its rights."""
    path.write_bytes(_migrated())


def _fill(path: Path) -> None:
    if path.is_file() and path.stat().st_size == 0:
        put(path)


def _migrated() -> bytes:
    with _ONE_AT_A_TIME:  # Alembic's context is the process's: two threads that migrate at once wait for ever
        return _made()


@cache
def _made() -> bytes:
    with tempfile.TemporaryDirectory(prefix="nearhit-empty-") as folder, ThreadPoolExecutor(1) as thread:
        path = Path(folder) / "nearhit.db"
        thread.submit(asyncio.run, _migrate(path)).result()  # the test that asks first may be in a loop of its own
        assert not path.with_name("nearhit.db-wal").exists(), "a part of it would be missing from the copies"
        return path.read_bytes()


async def _migrate(path: Path) -> None:
    database = Database(f"sqlite:///{path}")
    await really_upgrade(database)
    await database.close()


_MIGRATED: set[str] = set()  # servers that hold a migrated database to copy
_TEMPLATE = f"migrated{os.getpid()}"  # a server that was given may be that of several processes


async def fresh_postgres(server: str) -> str:
    """A new database on the PostgreSQL `server`, without a row; its URL."""
    if server not in _MIGRATED:
        database = Database(await _created(server, _TEMPLATE, "template0"))
        await database.start()
        await database.close()
        _MIGRATED.add(server)
    return await _created(server, f"t{uuid7().replace('-', '')}", _TEMPLATE)


async def empty_postgres(server: str) -> str:
    """A new database on the PostgreSQL `server`, without a table; its URL."""
    return await _created(server, f"t{uuid7().replace('-', '')}", "template0")


async def _created(server: str, name: str, template: str) -> str:
    database = Database(server)
    async with database._writer.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        await connection.execute(text("SET statement_timeout = 0"))  # files are copied, beside whatever else runs
        await connection.execute(text(f"DROP DATABASE IF EXISTS {name}"))
        await connection.execute(text(f"CREATE DATABASE {name} TEMPLATE {template}"))
    await database.close()
    return f"{server.rsplit('/', 1)[0]}/{name}"
