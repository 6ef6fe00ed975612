"""Somebody else holds a row of the books: a report that hangs, an operator's open transaction."""

from pathlib import Path

import pytest
from sqlalchemy import text

from gateway.db.session import Database
from gateway.errors import Overloaded
from gateway.ledger import Hold, Ledger
from tests.unit.ledger.rig import budget, call, fresh_postgres, plan, running, settled


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
