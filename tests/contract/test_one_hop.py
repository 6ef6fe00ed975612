"""SQLite's connections as they are asked: how often their thread is waited for, and what a transaction is to them."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
from sqlalchemy import text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db.session import Database
from gateway.tasks import Tasks
from tests.waiting import until

PUT = text("INSERT INTO setting (name, value) VALUES (:name, 'here') RETURNING name")
COUNT = text("SELECT count(*) FROM setting WHERE value = 'here'")


@pytest.fixture
async def database(tmp_path: Path) -> AsyncGenerator[Database]:
    made = Database(f"sqlite:///{tmp_path / 'nearhit.db'}")
    await made.start()
    yield made
    await made.close()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each wait for a connection's thread."""
    told: list[str] = []
    really = aiosqlite.Connection._execute

    async def counted(self: Any, work: Any, *args: Any, **kwargs: Any) -> Any:
        told.append(work.__name__)
        return await really(self, work, *args, **kwargs)

    monkeypatch.setattr(aiosqlite.Connection, "_execute", counted)
    return told


async def put(database: Database, name: str) -> None:
    async with database.begin() as connection:
        await connection.execute(PUT, {"name": name})


async def count(database: Database) -> int:
    async with database.read() as connection:
        return await connection.scalar(COUNT) or 0


async def test_a_statement_waits_for_the_thread_once(database: Database, waits: list[str]) -> None:
    """Waiting four times for each statement, and once for a rollback of nothing, took longer than what was asked."""
    await put(database, "opens the writer")
    await count(database)  # and a reader
    for asks, times in ((put(database, "a"), 3), (count(database), 2), (database.transact(lambda _: None), 1)):
        waits.clear()
        await asks
        assert len(waits) == times, waits


async def _count(connection: AsyncConnection) -> int:
    return await connection.scalar(COUNT) or 0


async def _streamed(connection: AsyncConnection) -> int:
    async with connection.stream(COUNT) as found:
        return [row[0] async for row in found].pop()


@pytest.mark.parametrize("first", [_count, _streamed])
@pytest.mark.parametrize("view", [Database.read, Database.snapshot])
async def test_all_that_is_read_is_of_one_moment(database: Database, view: Any, first: Any) -> None:
    """BEGIN goes with the first statement, whatever kind that is: without it each would see what others write."""
    opened: AbstractAsyncContextManager[AsyncConnection] = view(database)
    async with opened as connection:
        before = await first(connection)
        await put(database, "meanwhile")
        assert (await _count(connection), await _streamed(connection)) == (before, before)
    assert await count(database) == before + 1  # and the connection is not left in that moment


async def test_what_fails_leaves_no_transaction(database: Database) -> None:
    """A rollback that was left out where it was needed would keep the only writer, or a reader in the past."""
    await put(database, "there")
    with pytest.raises(IntegrityError):
        await put(database, "there")
    with pytest.raises(OperationalError, match="no such table"):
        async with database.read() as connection:
            await connection.exec_driver_sql("SELECT 1 FROM nowhere")
    with pytest.raises(OperationalError, match="readonly"):
        async with database.read() as connection:
            await connection.execute(PUT, {"name": "by a reader"})
    await put(database, "after it")
    async with database.read() as connection:
        pass  # nothing was asked, so nothing is begun
    assert await count(database) == 2


@pytest.mark.parametrize("times", [1, 3])
async def test_who_is_cancelled_leaves_no_transaction(database: Database, times: int) -> None:
    """What was asked goes on in the thread after it was cancelled: it may begin one that nobody ends."""
    begun: list[float] = []

    def slowly(raw: Any) -> None:
        begun.append(time.monotonic())
        time.sleep(0.05)  # in the connection's thread, so that who asked is cancelled meanwhile
        raw.execute("BEGIN IMMEDIATE")

    async def ask() -> None:
        async with database._writer.connect() as connection:
            adapted: Any = (await connection.get_raw_connection()).dbapi_connection
            await adapted.visit(slowly)

    for each in range(times):
        task = Tasks().spawn(ask(), "asks")
        await until(lambda wanted=each: len(begun) > wanted, 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await put(database, "after it")
    assert await count(database) == 1


async def test_a_connection_that_was_closed_is_told_as_one(database: Database) -> None:
    """The driver says ValueError; callers wait and try again where a database cannot be reached, not at that."""
    async with database._writer.connect() as connection:
        driver: Any = (await connection.get_raw_connection()).driver_connection
        await driver.close()
        with pytest.raises(OperationalError, match=r"(?i)closed|no active"):
            await connection.execute(COUNT)
    await put(database, "another connection")


async def test_what_a_cursor_says_is_known_when_it_is_closed(database: Database) -> None:
    """Rows, their names, how many were changed and the last row's number are asked for after the statement has run."""

    def plainly(connection: Connection) -> None:
        connection.execute(PUT, [{"name": f"many {n}"} for n in range(3)])

    async with database.begin() as connection:
        found = await connection.execute(PUT, {"name": "one"})
        assert (list(found.keys()), found.all()) == (["name"], [("one",)])
        changed = await connection.execute(text("UPDATE setting SET value = 'gone' WHERE value = 'here'"))
        assert changed.rowcount == 1
        added = await connection.exec_driver_sql("INSERT INTO setting (name, value) VALUES ('last', 'here')")
        newest = await connection.scalar(text("SELECT max(rowid) FROM setting"))
        assert added.lastrowid == newest
        many = text("INSERT INTO setting (name, value) VALUES (:name, 'here')")
        assert (await connection.execute(many, [{"name": f"{n}"} for n in range(3)])).rowcount == 3
    await database.transact(plainly)
    assert await count(database) == 7
