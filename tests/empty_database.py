"""A SQLite database with today's schema and nothing in it, migrated once per process and copied ever after.

Knows: that most tests begin with one, and that migrating takes forty times as long as a copy. Does not know: what is
in a schema.
"""

import asyncio
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from gateway.db import migrate
from gateway.db.session import Database

_really_upgrade = migrate.upgrade_database


async def upgrade_database(database: Database) -> None:
    """In place of `gateway.db.migrate.upgrade_database`: a file that nobody has written to is not migrated."""
    if database.dialect == "sqlite":
        _fill(Path(database.url.database or ""))
    await _really_upgrade(database)


def put(path: Path) -> None:
    """Write one to `path`; a file that is there keeps its rights."""
    path.write_bytes(_migrated())


def _fill(path: Path) -> None:
    if path.is_file() and path.stat().st_size == 0:
        put(path)


@cache
def _migrated() -> bytes:
    with tempfile.TemporaryDirectory(prefix="nearhit-empty-") as folder, ThreadPoolExecutor(1) as thread:
        path = Path(folder) / "nearhit.db"
        thread.submit(asyncio.run, _migrate(path)).result()  # the test that asks first may be in a loop of its own
        assert not path.with_name("nearhit.db-wal").exists(), "a part of it would be missing from the copies"
        return path.read_bytes()


async def _migrate(path: Path) -> None:
    database = Database(f"sqlite:///{path}")
    await _really_upgrade(database)
    await database.close()
