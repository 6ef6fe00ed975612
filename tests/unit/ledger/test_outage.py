"""A database that is away for a minute, and a clock that somebody sets: neither is heard of by those who ask."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.errors import Overloaded
from gateway.ledger import Ledger
from gateway.ledger.journal import JournalFailed
from gateway.ledger.pools import Pool
from tests.clock import FrozenClock
from tests.unit.ledger.rig import Rig, budget, call, plan, running
from tests.unit.ledger.world import FaultyDatabase
from tests.waiting import until

MINUTE = 60


@pytest.fixture
async def rig(tmp_path: Path, clock: FrozenClock) -> AsyncGenerator[Rig]:
    async with running(tmp_path, clock=clock, kind=FaultyDatabase) as found:
        yield found


async def one_second(rig: Rig, ledger: Ledger) -> None:
    """Ten nano-USD are spent, and what is due by itself is done."""
    await rig.charge(ledger, 10, most=10)
    if not cast("FaultyDatabase", rig.database).down:
        await ledger._shipper.ship_all()
    await settled_down(ledger)
    rig.clock.advance(1.0)
    await ledger._tender.turn()


async def settled_down(ledger: Ledger) -> None:
    """What is fetched ahead has come, or will not."""
    await until(lambda: not ledger._leases._working)


def pool_of(ledger: Ledger) -> Pool:
    (pool,) = ledger._pools.all.values()
    return pool


@pytest.mark.parametrize("phase", [0, 52])
async def test_a_minute_without_the_database_refuses_nobody_whenever_it_begins(rig: Rig, phase: int) -> None:
    """A lease that was nearly used up, or a life sign of long ago, must not make an outage out of an outage."""
    ledger = await rig.ledger()
    await ledger.set_budget(budget("org", 1_000_000), "test")
    for _ in range(MINUTE + phase):
        await one_second(rig, ledger)
    cast("FaultyDatabase", rig.database).down = True
    for _ in range(MINUTE):
        await one_second(rig, ledger)
    cast("FaultyDatabase", rig.database).down = False
    await ledger.flush()
    assert (await rig.window("org"))["spent"] == 10 * (2 * MINUTE + phase)


async def test_who_has_just_begun_to_spend_has_a_minute_in_hand_too(rig: Rig) -> None:
    """The first lease is small, for nobody knows the pace yet: a few seconds later it is known."""
    ledger = await rig.ledger()
    await ledger.set_budget(budget("org", 1_000_000), "test")
    for _ in range(5):
        for _ in range(9):
            await rig.charge(ledger, 10, most=10)
        await one_second(rig, ledger)
    cast("FaultyDatabase", rig.database).down = True
    for _ in range(MINUTE):
        for _ in range(9):
            await rig.charge(ledger, 10, most=10)
        await one_second(rig, ledger)


async def test_what_could_not_be_fetched_ahead_is_tried_again_before_anybody_waits(rig: Rig) -> None:
    """One slow moment of the database used to leave the next request waiting for it at the end of its lease."""
    ledger, database = await rig.ledger(), cast("FaultyDatabase", rig.database)
    await ledger.set_budget(budget("org", 1_000_000), "test")
    for _ in range(MINUTE):
        await one_second(rig, ledger)
    pool, database.down = pool_of(ledger), True
    while pool.left >= pool.low:
        await one_second(rig, ledger)
    await one_second(rig, ledger)
    granted, database.down = pool.granted, False
    for _ in range(5):
        await one_second(rig, ledger)
    assert pool.granted > granted
    assert pool.left > 0


async def test_how_far_the_database_is_behind_is_told(rig: Rig, clock: FrozenClock) -> None:
    """An operator is to hear of it before the journal's disk is full."""
    ledger, database = await rig.ledger(), cast("FaultyDatabase", rig.database)
    assert ledger.waiting() == (0, 0.0)
    await rig.charge(ledger)
    await ledger._shipper.ship_all()
    clock.advance(100.0)
    await rig.charge(ledger)
    assert ledger.waiting() == (1, 0.0)
    database.down = True
    clock.advance(7.0)
    assert ledger.waiting() == (1, 7.0)
    database.down = False
    await ledger._shipper.ship_all()
    assert ledger.waiting() == (0, 0.0)


async def test_setting_the_hosts_clock_moves_no_spending_to_another_day(rig: Rig, clock: FrozenClock) -> None:
    """Forward it would be a fresh budget, back it would be yesterday's: what counts is the database's clock."""
    ledger = await rig.ledger()
    await ledger.set_budget(budget("org", 1_000, window="day"), "test")
    await rig.charge(ledger)
    for step in (86_400.0, -3 * 86_400.0):
        clock.jump(step)
        await rig.charge(ledger)
    await ledger.flush()
    assert (await rig.window("org"))["spent"] == 9  # of the one window there is


async def test_a_request_does_not_ask_for_ever_for_what_is_on_its_way_back(rig: Rig) -> None:
    """What an outage kept from being handed back is neither this process's nor free: asking changes nothing."""
    ledger = await rig.ledger()
    await ledger.set_budget(budget("org", 100), "test")
    await rig.charge(ledger, 10, most=10)
    await ledger._shipper.ship_all()
    await settled_down(ledger)
    cast("FaultyDatabase", rig.database).down = True
    rig.clock.advance(60.0)
    await ledger._tender.turn()
    cast("FaultyDatabase", rig.database).down = False
    pool = pool_of(ledger)
    assert pool.left == 0 < pool.releasing
    asked = call()
    await asyncio.wait_for(ledger.hold(asked, plan(asked, most=90)), timeout=30.0)
    assert (pool.releasing, pool.free) == (0, 0)


async def test_what_cannot_be_handed_back_is_said_not_asked_for_again_and_again(rig: Rig) -> None:
    """With a journal that cannot be trusted nothing goes back: the request is told to come later, at once."""
    ledger = await rig.ledger()
    await ledger.set_budget(budget("org", 100), "test")
    await rig.charge(ledger, 10, most=10)
    await ledger._shipper.ship_all()
    await settled_down(ledger)

    def failed() -> None:
        raise JournalFailed("the disk is full")

    ledger._leases.durable = failed
    rig.clock.advance(60.0)
    await ledger._leases.tend()
    pool = pool_of(ledger)
    assert pool.left == 0 < pool.releasing
    with pytest.raises(Overloaded, match="on its way back"):
        await asyncio.wait_for(ledger._leases.obtain([pool], 90), timeout=30.0)


async def test_what_goes_back_and_forth_is_asked_for_until_it_stays(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes that want the last part of a budget hand it to and fro: it looks the same each time."""
    ledger = await rig.ledger()
    await ledger.set_budget(budget("org", 100), "test")
    await rig.charge(ledger, 10, most=10)
    pool, leases, wanted_elsewhere = pool_of(ledger), ledger._leases, iter([True, True, True, False])
    granted = leases._grant

    async def handed_on(demands: Any) -> Any:
        found = await granted(demands)
        if next(wanted_elsewhere):
            pool.releasing = pool.left
        return found

    monkeypatch.setattr(leases, "_grant", handed_on)
    await asyncio.wait_for(leases.obtain([pool], 90), timeout=30.0)
    assert pool.returned == 3
