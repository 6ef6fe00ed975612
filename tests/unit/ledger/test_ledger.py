"""The ledger as the request path sees it: admit, refuse, end, account for everything."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import cast

import pytest
from msgspec import structs
from sqlalchemy.exc import OperationalError

from gateway.call import Principal
from gateway.db.queries import Queries
from gateway.errors import BudgetExhausted, InvalidRequest, Overloaded
from gateway.ledger import Hold, Ledger
from gateway.ledger.journal import JournalFailed
from policies.money import Usage
from tests.clock import FrozenClock
from tests.unit.ledger.rig import WHO, Rig, budget, call, outcome, plan, running, settled
from tests.unit.ledger.world import FaultyDatabase
from tests.waiting import until


def left_of(ledger: Ledger, *, model: str = "smart", user: str | None = None, **tags: str) -> int | None:
    """As it is told with an answer."""
    return ledger.remaining(call(WHO, model=model, user=user, **tags), "openai", "gpt-5-mini")


@pytest.fixture
async def rig(tmp_path: Path, clock: FrozenClock) -> AsyncGenerator[Rig, None]:
    async with running(tmp_path, clock=clock) as made:
        yield made


async def held(ledger: Ledger, most: int = 10) -> Hold:
    asked = call()
    return await ledger.hold(asked, plan(asked, most=most))


async def test_everything_is_posted_without_any_budget(rig: Rig) -> None:
    """Showing where the money went must not depend on somebody having set a limit."""
    ledger = await rig.ledger()
    await rig.charge(ledger, 7)
    await ledger.flush()
    (entry,) = await rig.rows("SELECT * FROM entry")
    assert (entry["amount_nano"], entry["source"], entry["windows"], entry["reserved_nano"]) == (
        7,
        "provider",
        "[]",
        10,
    )
    assert (entry["team"], entry["project"], entry["key_id"], entry["provider_id"]) == (
        "acme",
        "app",
        "key1",
        "chatcmpl-1",
    )
    assert left_of(ledger) is None
    assert await ledger.verify() == []


async def test_a_refusal_says_everything_a_person_needs(rig: Rig, clock: FrozenClock) -> None:
    """Whoever gets a 429 wants to know which limit, how full it is, and when to come back; a client must not retry."""
    ledger = await rig.ledger()
    await ledger.set_budget(budget("team:acme", 25, window="day", timezone="Europe/Berlin"), "test")
    await rig.charge(ledger, 8)
    await held(ledger)
    with pytest.raises(BudgetExhausted) as caught:
        await held(ledger)
    error = caught.value
    assert error.message == (
        "The budget team:acme of 0.000000025 USD per day is exhausted: 0.000000008 USD spent, 0.00000001 USD held for "
        "running requests, and this request may cost up to 0.00000001 USD. It resets at 2026-09-21T22:00:00Z."
    )
    assert ("x-should-retry", "false") in error.headers
    assert (error.http_status, error.code) == (429, "insufficient_quota")
    clock.advance(86_400)
    assert await held(ledger)


async def test_a_refusal_of_a_budget_that_never_ends_says_so(rig: Rig) -> None:
    """Whoever waits for a day that does not come does not ask for another limit."""
    ledger = await rig.ledger()
    await ledger.set_budget(budget("team:acme", 10, window="total"), "test")
    await held(ledger)
    with pytest.raises(BudgetExhausted) as caught:
        await held(ledger)
    assert caught.value.message == (
        "The budget team:acme of 0.00000001 USD in total is exhausted: 0 USD spent, 0.00000001 USD held for "
        "running requests, and this request may cost up to 0.00000001 USD. It never resets."
    )


@pytest.mark.parametrize("scope", ["user:ann", "model:smart", "model:openai/gpt-5-mini", "tag:env=prod"])
async def test_what_remains_is_told_of_every_budget_a_request_draws_on(rig: Rig, scope: str) -> None:
    """Clients slow down by it; whoever was limited by user, model or tag was told nothing, or another's larger rest."""
    ledger = await rig.ledger()
    await ledger.set_budget(budget("org", 1_000), "test")
    await ledger.set_budget(budget(scope, 70), "test")
    assert left_of(ledger, user="ann", env="prod") == 70
    assert left_of(ledger, model="other", user="bob", env="test") == (70 if "/" in scope else 1_000)


async def test_ends_give_back_what_was_not_used(rig: Rig) -> None:
    """Reservations are upper bounds; the difference must be spendable at once, down to the last cent."""
    ledger = await rig.ledger()
    await ledger.set_budget(budget("org", 20), "test")
    for _ in range(10):
        hold = await held(ledger)
        assert ledger.settle(hold, settled(1)) == 1
    hold = await held(ledger)
    ledger.void(hold, "refused")
    assert left_of(ledger) == 10
    hold = await held(ledger)
    ledger.settle(hold, settled(10))
    with pytest.raises(BudgetExhausted):
        await held(ledger, most=1)
    await ledger.flush()
    assert await rig.window("org") == {"limit": 20, "spent": 20, "estimated": 0, "held": 0}
    assert await ledger.verify() == []


async def test_only_the_first_end_counts(rig: Rig) -> None:
    """A pump and a cancellation may both try to end an attempt."""
    ledger = await rig.ledger()
    hold = await held(ledger)
    assert ledger.settle(hold, settled(4)) == 4
    assert ledger.settle(hold, settled(9)) == 4
    ledger.void(hold, "late")
    await ledger.flush()
    assert [row["amount_nano"] for row in await rig.rows("SELECT amount_nano FROM entry")] == [4]


@pytest.mark.parametrize(
    "scope",
    [
        "org",
        "team:acme",
        "project:acme/app",
        "key:key1",
        "user:u1",
        "model:smart",
        "model:gpt-5-mini",
        "model:openai/gpt-5-mini",
        "tag:a=b",
    ],
)
async def test_every_scope_limits_what_falls_under_it(rig: Rig, scope: str) -> None:
    """A limit on any dimension of a request holds, also when wider ones have room."""
    ledger = await rig.ledger()
    await ledger.set_budget(budget("org", 1_000), "test")
    await ledger.set_budget(budget(scope, 10), "test")
    asked = call(user="u1", a="b")
    ledger.settle(await ledger.hold(asked, plan(asked)), settled(10))
    again = call(user="u1", a="b")
    with pytest.raises(BudgetExhausted, match=scope):
        await ledger.hold(again, plan(again))
    if scope != "org":
        other = call(Principal(key_id="k", team="t", project="p"), model="m")
        attempt = structs.replace(plan(other), model="x")
        ledger.void(await ledger.hold(other, attempt), "test")


async def test_all_budgets_of_a_request_are_drawn_on_at_once(rig: Rig) -> None:
    """One attempt is spent in every budget it falls under; one that is refused anywhere is held nowhere."""
    ledger = await rig.ledger()
    for scope in ("org", "team:acme", "key:key1"):
        await ledger.set_budget(budget(scope, 100), "test")
    await ledger.set_budget(budget("user:u1", 5), "test")
    await rig.charge(ledger, 7)
    asked = call(user="u1")
    with pytest.raises(BudgetExhausted, match="user:u1"):
        await ledger.hold(asked, plan(asked))
    await ledger.flush()
    for scope in ("org", "team:acme", "key:key1"):
        assert await rig.window(scope) == {"limit": 100, "spent": 7, "estimated": 0, "held": 0}


async def test_soft_budgets_warn_and_never_refuse(rig: Rig) -> None:
    """A soft limit is for knowing; production traffic must not stop over it."""
    ledger = await rig.ledger()
    await ledger.set_budget(budget("org", 10, mode="soft", alerts=(0.5, 1.0)), "test")
    for _ in range(4):
        await rig.charge(ledger, 5)
        await ledger.flush()
    alerts = await rig.rows("SELECT threshold, spent_nano FROM budget_alert ORDER BY threshold")
    assert [(row["threshold"], row["spent_nano"]) for row in alerts] == [(0.5, 5), (1.0, 10)]
    assert (await rig.window("org"))["spent"] == 20
    assert left_of(ledger) is None
    assert await ledger.verify() == []


async def test_spending_stays_in_the_window_that_admitted_it(rig: Rig, clock: FrozenClock) -> None:
    """A stream over midnight belongs to the day it began in; the new day starts with its whole limit."""
    ledger = await rig.ledger()
    await ledger.set_budget(budget("org", 10, window="day"), "test")
    old = await held(ledger)
    clock.advance(86_400)
    new = await held(ledger)
    ledger.settle(old, settled(9))
    ledger.settle(new, settled(2))
    await ledger.flush()
    rows = await rig.rows("SELECT spent_nano, held_nano FROM budget_window ORDER BY starts")
    assert [(row["spent_nano"], row["held_nano"]) for row in rows] == [(9, 0), (2, 0)]
    await ledger._leases.tend()
    assert len(ledger._pools.all) == 1


async def test_limits_can_be_changed_while_requests_run(rig: Rig) -> None:
    """Raising a limit helps at once; lowering it below what is spent refuses, and takes nothing back."""
    ledger = await rig.ledger()
    await ledger.set_budget(budget("org", 10), "test")
    await rig.charge(ledger, 10)
    with pytest.raises(BudgetExhausted):
        await held(ledger)
    await ledger.set_budget(budget("org", 30), "test")
    hold = await held(ledger)
    await ledger.set_budget(budget("org", 5), "test")
    with pytest.raises(BudgetExhausted):
        await held(ledger, most=1)
    ledger.settle(hold, settled(10))
    await ledger.flush()
    assert await rig.window("org") == {"limit": 5, "spent": 20, "estimated": 0, "held": 0}
    versions = await rig.rows("SELECT version, limit_nano, actor FROM budget_version ORDER BY version")
    assert [(row["version"], row["limit_nano"]) for row in versions] == [(1, 10), (2, 30), (3, 5)]
    assert await ledger.verify() == []


async def test_an_overrun_is_charged_and_closes_the_budget(rig: Rig) -> None:
    """A provider that bills more than it could is owed it; nothing more goes out until the limit covers it."""
    ledger = await rig.ledger()
    await ledger.set_budget(budget("org", 30), "test")
    hold = await held(ledger)
    assert ledger.settle(hold, settled(28)) == 28
    with pytest.raises(BudgetExhausted):
        await held(ledger)
    await ledger.flush()
    assert (await rig.window("org"))["spent"] == 28
    (entry,) = await rig.rows("SELECT note FROM entry")
    assert entry["note"] == "overrun"
    await rig.charge(ledger, 2, most=2)
    assert await ledger.verify() == []


async def test_budgets_of_the_configuration_are_in_force_from_the_start(rig: Rig) -> None:
    """A limit written in nearhit.yaml holds for the first request, and a restart does not make a new version of it."""
    given = [{"scope": "org", "limit_usd": "0.00000001", "window": "day"}]
    ledger = await rig.ledger(budgets=given)
    await rig.charge(ledger, 10)
    with pytest.raises(BudgetExhausted):
        await held(ledger, most=1)
    await ledger.close()
    rig.ledgers.clear()
    again = await rig.ledger(budgets=given)
    with pytest.raises(BudgetExhausted):
        await held(again, most=1)
    assert len(await rig.rows("SELECT * FROM budget_version")) == 1


async def test_idle_leases_go_back(rig: Rig, clock: FrozenClock) -> None:
    """What nobody uses must not look held, nor be missing elsewhere."""
    ledger = await rig.ledger()
    await ledger.set_budget(budget("org", 100_000), "test")
    await rig.charge(ledger, 3)
    await ledger._shipper.ship_all()
    assert (await rig.window("org"))["held"] > 0
    clock.advance(1.5)
    await ledger._tender.turn()
    assert (await rig.window("org"))["held"] > 0  # with plenty left there is no hurry
    clock.advance(15.0)
    await ledger._tender.turn()
    assert await rig.window("org") == {"limit": 100_000, "spent": 3, "estimated": 0, "held": 0}
    assert left_of(ledger) == 99_997


async def test_a_lease_is_a_minute_and_a_half_of_spending(rig: Rig, clock: FrozenClock) -> None:
    """Of which a minute is left when more is fetched: so long a gateway goes on without its database."""
    ledger = await rig.ledger()
    await ledger.set_budget(budget("org", 1_000_000), "test")
    for _ in range(90):
        await rig.charge(ledger, 10, most=10)
        await ledger._shipper.ship_all()
        clock.advance(1.0)
    (pool,) = ledger._pools.all.values()
    assert 800 <= pool.size <= 1_000  # ten nano-USD a second


async def test_a_request_given_up_while_it_waits_holds_nothing(rig: Rig) -> None:
    """A client that leaves before the journal is synced leaves no reservation and no cost behind."""
    ledger = await rig.ledger()
    await ledger.set_budget(budget("org", 10), "test")
    waiting = asyncio.Event()

    async def never() -> None:
        waiting.set()
        await asyncio.Event().wait()

    synced, ledger._journal.synced = ledger._journal.synced, never
    task = rig.tasks.spawn(held(ledger), "test")
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    ledger._journal.synced = synced
    await rig.charge(ledger, 10)
    await ledger.flush()
    assert {row["source"]: row["amount_nano"] for row in await rig.rows("SELECT * FROM entry")} == {
        "void": 0,
        "provider": 10,
    }


async def test_without_a_journal_nothing_is_sent(rig: Rig) -> None:
    """Spending that could not be recovered is not begun, and what was reserved for it is free again."""
    ledger = await rig.ledger()
    await ledger.set_budget(budget("org", 10), "test")
    good = ledger._journal.synced

    async def broken() -> None:
        raise JournalFailed("the disk is gone")

    ledger._journal.synced = broken
    with pytest.raises(Overloaded, match="disk is gone") as caught:
        await held(ledger)
    assert (caught.value.code, caught.value.http_status) == ("ledger_unavailable", 503)
    ledger._journal.synced = good
    assert await held(ledger)


async def test_absurd_amounts_are_refused(rig: Rig) -> None:
    """A request for 10^18 tokens must be told so, not overflow a balance."""
    ledger = await rig.ledger()
    asked = call()
    with pytest.raises(InvalidRequest, match="fewer output tokens"):
        await ledger.hold(asked, structs.replace(plan(asked), reserve_nano=10**19))


async def test_a_stopped_ledger_takes_nothing_on(rig: Rig) -> None:
    """During shutdown a late request is told to go elsewhere."""
    ledger = await rig.ledger()
    await ledger.close()
    rig.ledgers.clear()
    with pytest.raises(Overloaded):
        await held(ledger)


async def test_an_outage_is_bridged_by_leases(tmp_path: Path, clock: FrozenClock) -> None:
    """With the database away, hard budgets go on inside what is leased, then refuse; soft ones and none go on."""
    async with running(tmp_path, clock=clock, kind=FaultyDatabase) as rig:
        faulty = cast("FaultyDatabase", rig.database)
        ledger = await rig.ledger()
        await ledger.set_budget(budget("team:acme", 1_000), "test")
        await rig.charge(ledger, 1)
        faulty.down = True
        holds: list[Hold] = []
        with pytest.raises(Overloaded) as caught:
            await _hold_all(ledger, holds)
        assert len(holds) > 10
        assert caught.value.code == "budget_unavailable"
        elsewhere = call(Principal(key_id="k", team="other", project="p"))
        hold = await ledger.hold(elsewhere, plan(elsewhere))
        ledger.settle(hold, settled(5))
        with pytest.raises(OperationalError):
            await ledger.flush()
        faulty.down = False
        await ledger.flush()
        assert len(await rig.rows("SELECT * FROM entry")) == 2


async def _hold_all(ledger: Ledger, holds: list[Hold]) -> None:
    while True:
        holds.append(await held(ledger))


async def test_rows_of_requests_are_written(rig: Rig) -> None:
    """One row per request, with its explanation, within moments and at the latest at the end."""
    ledger = await rig.ledger(background=True)
    asked = call(user="u", cost_center="c")
    ledger.record(
        outcome(
            asked,
            usage=Usage(prompt=3, completion=11),
            ttft_ms=10.0,
            total_ms=110.0,
            upstream_ms=105.0,
            chunks=5,
            explain={"a": 1},
        )
    )

    async def written() -> bool:
        return bool(await rig.rows("SELECT id FROM request"))

    await until(written)
    detail = await Queries(rig.database).request(asked.id)
    assert detail is not None
    assert detail.request is not None
    assert (detail.request.tpot_ms, detail.request.overhead_ms, detail.request.user) == (10.0, 5.0, "u")
    ledger.record(outcome(call(), explain={"big": "x" * 100_000}))
    await ledger.close()
    rig.ledgers.clear()
    assert len(await rig.rows("SELECT * FROM request")) == 2
    assert len(await rig.rows("SELECT * FROM explain")) == 1


async def test_explanations_are_forgotten_in_time(rig: Rig, clock: FrozenClock) -> None:
    """Why a request went its way is kept for the days that were promised, not longer."""
    ledger = await rig.ledger()
    ledger.record(outcome(call(), explain={"a": 1}))
    await ledger.flush()
    clock.advance(8 * 86_400 + 1.8e9 - 1.79e9)
    await ledger._retention.prune()
    assert await rig.rows("SELECT * FROM explain") == []
    assert len(await rig.rows("SELECT * FROM request")) == 1


async def test_the_loops_ship_by_themselves(rig: Rig) -> None:
    """Nobody has to call flush: entries reach the database within moments."""
    ledger = await rig.ledger(background=True)
    await rig.charge(ledger, 7)
    await until(lambda: not len(ledger._shipper))
    assert len(await rig.rows("SELECT * FROM entry")) == 1
    assert len(ledger._shipper) == 0


async def test_a_wrong_balance_is_found(rig: Rig) -> None:
    """verify is only worth something if it sees a balance that is off by one nano-USD."""
    ledger = await rig.ledger()
    await ledger.set_budget(budget("org", 100), "test")
    await rig.charge(ledger, 7)
    await ledger.flush()
    for column in ("spent_nano", "estimated_nano", "held_nano"):
        await _run(rig, f"UPDATE budget_window SET {column} = {column} + 1")
        (finding,) = await ledger.verify()
        assert "window org|month" in finding
        await _run(rig, f"UPDATE budget_window SET {column} = {column} - 1")
    for name in ("changed", "deleted"):
        await _run(rig, f"DROP TRIGGER price_version_is_never_{name}")
    await _run(rig, "UPDATE price_version SET output_pico = 2000")
    (finding,) = await ledger.verify()
    assert "its tokens cost" in finding
    await _run(rig, "DELETE FROM price_version")
    (finding,) = await ledger.verify()
    assert "not known" in finding


async def _run(rig: Rig, sql: str) -> None:
    async with rig.database.begin() as connection:
        await connection.exec_driver_sql(sql)
