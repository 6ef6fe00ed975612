"""Transactions that are taken back, or run side by side, on both databases: what they had seen must not be believed."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy.exc import OperationalError

from gateway.call import Principal
from gateway.db.session import Database
from gateway.ledger import Ledger, openings
from tests.clock import FrozenClock
from tests.unit.ledger.rig import Rig, budget, call, plan, running, settled


class TakenBack(Database):
    """Takes `back` transactions back just before they are committed, as a cut connection or a full disk does.

    The replies to the `lost` ones after that, which were committed, are lost.
    """

    back = 0
    lost = 0

    async def transact(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def undone(*given: Any, **named: Any) -> Any:
            result = work(*given, **named)
            if self.back:
                self.back -= 1
                raise OperationalError("cut", None, ConnectionError("cut"))
            return result

        result = await super().transact(undone, *args, **kwargs)
        if self.lost:
            self.lost -= 1
            raise OperationalError("reply lost", None, ConnectionError("reply lost"))
        return result


@pytest.fixture
async def rig(url: str, tmp_path: Path, clock: FrozenClock) -> AsyncGenerator[Rig, None]:
    async with running(tmp_path, url, clock, TakenBack) as made:
        yield made


async def fails_once(rig: Rig, ledger: Ledger) -> None:
    cast("TakenBack", rig.database).back = 1
    with pytest.raises(OperationalError):
        await ledger._shipper.ship_all()


async def before_its_window(rig: Rig) -> Ledger:
    """A process that knows a soft budget whose window nobody has made yet: posting will."""
    await (await rig.ledger()).set_budget(budget("org", 100, mode="soft"), "test")
    async with rig.database.begin() as connection:
        await connection.exec_driver_sql("DELETE FROM budget_window")
    return await rig.ledger()


async def test_a_window_made_in_vain_is_made_again(rig: Rig) -> None:
    """Soft windows are made by the first posting; believing in one that was taken back stopped posting for good."""
    ledger = await before_its_window(rig)
    await rig.charge(ledger, 3)
    await fails_once(rig, ledger)
    await ledger.flush()
    assert await ledger.verify() == []


async def test_an_opening_number_that_was_taken_back_hides_no_window(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers are drawn by chance, so the next window may well have a smaller one; its late entries must be seen."""
    ledger = await before_its_window(rig)
    other = call(Principal(key_id="key2", team="zeta", project="zoo"))
    hold = await ledger.hold(other, plan(other))
    await rig.charge(ledger, 3)
    monkeypatch.setattr(openings.secrets, "randbelow", lambda most: most - 1)
    await fails_once(rig, ledger)
    monkeypatch.setattr(openings.secrets, "randbelow", lambda _: 0)
    await ledger.set_budget(budget("team:zeta", 100, mode="soft"), "test")
    ledger.settle(hold, settled(5))
    await ledger.flush()
    assert (await rig.window("team:zeta"))["spent"] == 5
    assert await ledger.verify() == []


async def test_posting_and_recovering_side_by_side_count_once(rig: Rig) -> None:
    """Both load the same fresh window at the same moment; loaded twice, an entry would count in it twice."""
    ledger, other = await rig.ledger(), await rig.ledger()
    posts, now = ledger._shipper._posts, rig.clock.now()
    await rig.charge(ledger, 1)
    first = ledger._shipper._pending[0].line
    await ledger.flush()
    for _ in range(2):  # both connections are open, so that the two below keep step
        await asyncio.gather(*(posts.post(ledger.boot, [first], now) for _ in range(2)))
    await rig.charge(ledger, 3)
    await rig.charge(other, 4)
    mine, dead = ledger._shipper._pending[0].line, other._shipper._pending[0].line
    await other.set_budget(budget("org", 100), "test")
    await asyncio.gather(posts.post(ledger.boot, [mine], now), posts.post(other.boot, [dead], now))
    assert (await rig.window("org"))["spent"] == 1 + 3 + 4
    assert await ledger.verify() == []


async def test_a_correction_whose_reply_was_lost_is_made_once(rig: Rig) -> None:
    """Whoever is told to try again would correct the same charge twice."""
    ledger = await rig.ledger()
    hold = await rig.charge(ledger, 5)
    await ledger.flush()
    cast("TakenBack", rig.database).lost = 1
    made = await ledger.adjust(hold.plan.id, 2, reason="invoice", actor="ann")
    assert [row["id"] for row in await rig.rows("SELECT id FROM entry WHERE source = 'adjust'")] == [made]
    cast("TakenBack", rig.database).back = 1
    with pytest.raises(OperationalError):
        await ledger.adjust(hold.plan.id, 2, reason="invoice", actor="ann")
    assert len(await rig.rows("SELECT id FROM entry WHERE source = 'adjust'")) == 1


async def test_a_correction_that_reaches_a_threshold_is_told(rig: Rig) -> None:
    """The next charge begins above the threshold and would never cross it."""
    ledger = await rig.ledger()
    await ledger.set_budget(budget("org", 10, alerts=(0.5,)), "test")
    hold = await rig.charge(ledger, 4)
    await ledger.flush()
    await ledger.adjust(hold.plan.id, 2, reason="invoice", actor="ann")
    assert [row["spent_nano"] for row in await rig.rows("SELECT * FROM budget_alert")] == [6]
    assert await ledger.verify() == []
