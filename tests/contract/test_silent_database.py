"""A PostgreSQL that is frozen or cut off without a word: no reset, no answer, and nobody waits for it without end."""

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.engine import make_url

from gateway.db import silence
from gateway.db.session import UNREACHABLE, Database
from tests.faults import FaultProxy, fault_proxy


@pytest.fixture
def proxy(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(silence, "GRACE", -1.5)  # half a second after it was asked
    url = make_url(postgres_url)
    with fault_proxy(url.host or "", url.port or 5432) as found:
        yield found


@pytest.fixture
async def database(postgres_url: str, proxy: FaultProxy) -> AsyncGenerator[Database]:
    url = make_url(postgres_url).set(port=proxy.port).render_as_string(hide_password=False)
    opened = Database(url)
    async with opened.begin() as connection:
        await connection.execute(text("SELECT 1"))
    yield opened
    proxy.become("up")
    await opened.close()


async def _ask(database: Database, statement: str) -> object:
    async with database.begin() as connection:
        return (await connection.execute(text(statement))).scalar()


async def _commit(database: Database, proxy: FaultProxy) -> None:
    async with database.begin() as connection:
        await connection.execute(text("SELECT 1"))
        proxy.become("hanging")


async def test_a_statement_that_is_never_answered_ends(database: Database, proxy: FaultProxy) -> None:
    """`statement_timeout` is the server's to keep: requests with a key nobody had seen yet waited for ever."""
    proxy.become("hanging")
    async with asyncio.timeout(30):
        with pytest.raises(UNREACHABLE):
            await _ask(database, "SELECT 1")
        proxy.become("up")
        assert await _ask(database, "SELECT 2") == 2


async def test_a_commit_that_is_never_answered_ends(database: Database, proxy: FaultProxy) -> None:
    """What is spent would wait for it in the journal, and every later batch behind it."""
    async with asyncio.timeout(30):
        with pytest.raises(UNREACHABLE):
            await _commit(database, proxy)
        proxy.become("up")
        assert await _ask(database, "SELECT 2") == 2


@pytest.mark.parametrize(
    "given", ["SET LOCAL statement_timeout = 0", "SELECT set_config('statement_timeout', $1, true)"]
)
async def test_what_was_given_more_time_has_it(database: Database, given: str) -> None:
    """Reports and upgrades take as long as they were allowed to; the next one on that connection does not."""
    async with database.begin() as connection:
        if "$1" in given:
            await connection.exec_driver_sql(given, ("20000",))
        else:
            await connection.execute(text(given))
        await connection.execute(text("SELECT pg_sleep(1)"))
    async with asyncio.timeout(30):
        began = time.monotonic()
        with pytest.raises(UNREACHABLE):
            await _ask(database, "SELECT pg_sleep(1.9)")
        assert time.monotonic() - began < 1.9


async def test_a_connection_in_the_pool_is_not_dropped(database: Database) -> None:
    """A clock that runs on after the answer would cut whoever has the connection next, or make each one anew."""
    made: list[object] = []
    event.listen(database._writer.sync_engine, "connect", lambda *_: made.append(None))
    for _ in range(3):
        assert await _ask(database, "SELECT 3") == 3
        await asyncio.sleep(0.7)
    assert made == []
