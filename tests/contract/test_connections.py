"""What becomes of connections when their database is closed."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest
from sqlalchemy.engine import Connection

from gateway.db.session import Database
from gateway.tasks import Tasks
from tests.waiting import until

AtWork = Callable[[Database, asyncio.Event], Coroutine[None, None, None]]


async def _reads(database: Database, begun: asyncio.Event) -> None:
    async with database.read() as connection:
        await connection.exec_driver_sql("SELECT 1")
        begun.set()
        await asyncio.sleep(60)


async def _writes(database: Database, begun: asyncio.Event) -> None:
    def work(_: Connection) -> None:
        asyncio.run_coroutine_threadsafe(_told(begun), loop)
        time.sleep(0.2)

    loop = asyncio.get_running_loop()
    await database.transact(work)


async def _told(begun: asyncio.Event) -> None:
    begun.set()


@pytest.mark.parametrize("at_work", [_reads, _writes])
async def test_what_was_in_use_a_moment_ago_is_closed_too(tmp_path: Path, at_work: AtWork) -> None:
    """Whoever was cancelled gave it back to a pool that was gone: it stayed open, its thread with it."""
    before = threading.active_count()
    database, begun = Database(f"sqlite:///{tmp_path / 'nearhit.db'}"), asyncio.Event()
    await database.start()
    task = Tasks().spawn(at_work(database, begun), "at work")
    await begun.wait()
    task.cancel()
    await database.close()
    await until(lambda: threading.active_count() <= before, 5)
    with pytest.raises(asyncio.CancelledError):
        await task
