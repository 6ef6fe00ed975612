"""A worker's schema is brought up to date by a process of its own, on both databases."""

import asyncio
import sys
from pathlib import Path

import pytest
from sqlalchemy import text

from gateway.db import migrate
from gateway.db.session import Database
from tests.empty_database import empty_postgres, really_upgrade


@pytest.fixture(params=["sqlite", "postgresql"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'nearhit.db'}"
    return await empty_postgres(request.getfixturevalue("postgres_url"))


async def test_workers_that_start_together_have_it_upgraded(url: str) -> None:
    """One of their processes migrates, the other waits and finds it done; each worker's own connections see it."""
    databases = [Database(url) for _ in range(1 if url.startswith("sqlite") else 2)]
    await asyncio.gather(*(really_upgrade(database, apart=True) for database in databases))
    for database in databases:
        assert await migrate.current_of(database) == migrate.head()
        await database.close()


async def test_nothing_is_started_for_a_current_schema(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that finds all in order costs one SELECT."""
    database = Database(url)
    await really_upgrade(database)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(migrate, "module_command", refuse)
    await really_upgrade(database, apart=True)
    await database.close()


async def test_why_it_could_not_is_told(url: str) -> None:
    """The worker's log has the reason, not only that another process ended; nothing has changed."""
    database = Database(url)
    await really_upgrade(database)
    async with database.begin() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(migrate.StaleSchema, match="9999"):
        await really_upgrade(database, apart=True)
    assert await migrate.current_of(database) == "9999"
    await database.close()


async def test_a_full_disk_is_told_apart(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker must know that another try makes no room, from the process that found none."""
    said = "import sys; sys.stdin.read(); sys.stderr.write('there is no room'); sys.exit(2)"
    monkeypatch.setattr(migrate, "module_command", lambda _: [sys.executable, "-c", said])
    database = Database(url)
    with pytest.raises(migrate.NoRoom, match="there is no room"):
        await really_upgrade(database, apart=True)
    await database.close()


async def test_a_database_in_memory_is_migrated_here() -> None:
    """No other process could reach it."""
    database = Database("sqlite:///:memory:")
    await really_upgrade(database, apart=True)
    assert await migrate.current_of(database) == migrate.head()
    await database.close()
