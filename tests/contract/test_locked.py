"""Somebody holds what a request has to write to: a report that hangs, an operator's open transaction, we ourselves."""

import asyncio
import time
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.engine import Connection

from gateway.db.session import Database
from gateway.errors import Overloaded
from gateway.ledger import Hold, Ledger
from tests.empty_database import fresh_postgres
from tests.unit.ledger.rig import budget, call, plan, running, settled


async def held(ledger: Ledger) -> Hold:
    asked = call()
    return await ledger.hold(asked, plan(asked))


async def hold_on(ledger: Ledger, holds: list[Hold]) -> None:
    while True:
        holds.append(await held(ledger))


async def until_refused(ledger: Ledger) -> list[Hold]:
    holds: list[Hold] = []
    with pytest.raises(Overloaded) as refused:
        await hold_on(ledger, holds)
    assert refused.value.code == "budget_unavailable"
    assert ("retry-after", "1") in refused.value.headers
    return holds


async def test_a_locked_row_is_waited_for_by_nobody_inside_a_lease(tmp_path: Path, postgres_url: str) -> None:
    """Beyond the lease it is a refusal that says when to come again, within bounds; let go, all is posted."""
    url = await fresh_postgres(postgres_url)
    other = Database(url)
    async with running(tmp_path, url) as rig:
        ledger = await rig.ledger()
        await ledger.set_budget(budget("org", 10_000), "test")
        await rig.charge(ledger, 10)
        await ledger._shipper.ship_all()
        async with other.begin() as connection:
            await connection.execute(text("SELECT * FROM budget_window FOR UPDATE"))
            holds = await until_refused(ledger)
            assert len(holds) > 10
        for hold in holds:
            ledger.settle(hold, settled(10))
        await rig.charge(ledger, 10)
        await ledger.flush()
        assert (await rig.window("org"))["spent"] == 10 * (len(holds) + 2)
    await other.close()


def slowly(connection: Connection) -> None:
    connection.exec_driver_sql("SELECT 1")
    time.sleep(2.5)


async def test_who_waits_for_our_own_writer_is_not_told_that_the_database_is_away(tmp_path: Path) -> None:
    """On a busy machine a batch of SQLite's one writer takes seconds: responses went unkept, requests were refused."""
    database = Database(f"sqlite:///{tmp_path / 'x.db'}")
    await database.start()
    batch = asyncio.gather(database.transact(slowly))
    await asyncio.sleep(0)
    assert await database.transact(lambda connection: connection.exec_driver_sql("SELECT 7").scalar()) == 7
    await batch
    await database.close()
