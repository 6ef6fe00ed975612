"""A database with today's schema and nothing in it, migrated once per process and copied ever after; or with something.

Knows: that most tests begin with one, and that migrating takes forty times as long as a copy. Does not know: what is
in a schema, what a test wants in it.
"""

import asyncio
import os
import tempfile
import threading
from collections.abc import Awaitable, Callable
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
        return _whole(path)


def _write(path: Path, contents: bytes) -> None:
    path.write_bytes(contents)


def _whole(path: Path) -> bytes:
    assert not path.with_name(f"{path.name}-wal").exists(), "a part of it would be missing from the copies"
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


class Prepared:
    """A database that several tests begin with, filled once per process and kind of server and copied ever after."""

    def __init__(self, fill: Callable[[Database], Awaitable[None]]) -> None:
        self._fill = fill
        self._file = b""
        self._templates: dict[str, str] = {}

    async def sqlite(self, path: Path) -> str:
        """A copy at `path`, where there is no database yet; its URL."""
        url = f"sqlite:///{path}"
        if self._file:
            _write(path, self._file)
        else:
            await self._filled(url)
            self._file = _whole(path)
        return url

    async def postgres(self, server: str) -> str:
        """A copy on the PostgreSQL `server`; its URL."""
        if server not in self._templates:
            url = await fresh_postgres(server)
            await self._filled(url)
            self._templates[server] = url.rsplit("/", 1)[1]
        return await _created(server, f"t{uuid7().replace('-', '')}", self._templates[server])

    async def _filled(self, url: str) -> None:
        database = Database(url)
        await database.start()
        await self._fill(database)
        await database.close()


async def _created(server: str, name: str, template: str) -> str:
    database = Database(server)
    async with database._writer.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        await connection.execute(text("SET statement_timeout = 0"))  # files are copied, beside whatever else runs
        await connection.execute(text(f"DROP DATABASE IF EXISTS {name}"))
        await connection.execute(text(f"CREATE DATABASE {name} TEMPLATE {template}"))
    await database.close()
    return f"{server.rsplit('/', 1)[0]}/{name}"
