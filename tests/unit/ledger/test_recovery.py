"""What a dead process leaves behind is brought into the database once, whoever finds it and however often it tries."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec import structs
from sqlalchemy.exc import OperationalError

from gateway.db.queries import Queries
from gateway.ledger import Hold, Ledger
from policies.money import Usage
from tests.clock import FrozenClock
from tests.unit.ledger.rig import PRICE, Rig, budget, call, outcome, plan, running, settled
from tests.unit.ledger.world import FaultyDatabase


@pytest.fixture
async def rig(tmp_path: Path, clock: FrozenClock) -> AsyncGenerator[Rig, None]:
    async with running(tmp_path, clock=clock, kind=FaultyDatabase) as made:
        yield made


async def held(ledger: Ledger) -> Hold:
    asked = call()
    return await ledger.hold(asked, plan(asked))


async def entries(rig: Rig) -> dict[str, Any]:
    return {row["id"]: row for row in await rig.rows("SELECT * FROM entry")}


async def test_nothing_a_dead_process_sent_is_forgotten(rig: Rig) -> None:
    """Ended attempts are posted as they ended, running ones at their bound and labelled so; nothing stays held."""
    first = await rig.ledger()
    await first.set_budget(budget("org", 1_000), "test")
    ended, running_, refused = await held(first), await held(first), await held(first)
    first.settle(ended, settled(4))
    first.void(refused, "refused")
    rig.clock.advance(1)
    first.progress(running_, Usage(prompt=1, completion=3))
    rig.kill(first)
    second = await rig.ledger()
    found = await entries(rig)
    assert found[ended.plan.id]["amount_nano"] == 4
    assert found[refused.plan.id]["source"] == "void"
    doubtful = found[running_.plan.id]
    assert (doubtful["amount_nano"], doubtful["source"]) == (10, "upper_bound")
    assert doubtful["note"] == "recovered, 3 tokens were seen"
    await second.flush()
    assert await rig.window("org") == {"limit": 1_000, "spent": 14, "estimated": 10, "held": 0}
    assert await second.verify() == []


async def test_another_price_survives_its_process(rig: Rig) -> None:
    """An answer of another service tier is charged by that one's price, which nothing but its end tells."""
    first = await rig.ledger()
    cheap = structs.replace(PRICE, id="test@2", output=500)
    hold = await held(first)
    first.settle(hold, structs.replace(settled(9), price=cheap))
    rig.kill(first)
    second = await rig.ledger()
    row = (await entries(rig))[hold.plan.id]
    assert (row["amount_nano"], row["price"], row["reserved_nano"]) == (5, "test@2", 10)
    assert await second.verify() == []


async def test_requests_that_died_have_their_row(rig: Rig) -> None:
    """Usage and ledger must tell the same sums, also for requests that never got to write their row."""
    first = await rig.ledger()
    lost, kept = call(), call()
    await first.hold(lost, plan(lost))
    await rig.charge(first, 4, of=kept)
    first.record(outcome(kept, usage=Usage(prompt=1, completion=3), cost_nano=4))
    await first._recorder.write()
    rig.kill(first)
    await rig.ledger()
    rows = {row["id"]: row for row in await rig.rows("SELECT * FROM request")}
    assert set(rows) == {lost.id, kept.id}
    assert (rows[lost.id]["cost_nano"], rows[lost.id]["cost_status"], rows[lost.id]["status"]) == (10, "estimated", 500)
    assert rows[kept.id]["error"] is None


async def test_a_sibling_recovers_while_it_serves(rig: Rig) -> None:
    """On one host no restart is needed: whoever lives takes over within moments."""
    first, second = await rig.ledger(), await rig.ledger()
    hold = await held(first)
    rig.kill(first)
    rig.clock.advance(2.5)
    await second._tender.turn()
    assert (await entries(rig))[hold.plan.id]["source"] == "upper_bound"


async def test_the_journal_of_a_living_process_is_left_alone(rig: Rig) -> None:
    """Posting a running request of a sibling would charge it twice over."""
    first, second = await rig.ledger(), await rig.ledger()
    hold = await held(first)
    assert await second._recovery.recover() == 0
    first.settle(hold, settled(4))
    await first.flush()
    assert (await entries(rig))[hold.plan.id]["amount_nano"] == 4


@pytest.mark.parametrize("lost", [False, True])
async def test_a_recovery_that_fails_is_done_again(rig: Rig, lost: bool) -> None:
    """The database may go away in the middle, or do it and not say so; the next try finishes, nothing counts twice."""
    first = await rig.ledger()
    await first.set_budget(budget("org", 1_000), "test")
    for _ in range(3):
        await held(first)
    rig.kill(first)
    second = await rig.ledger(prepare=lambda ledger: None)
    rig.kill(second)
    third = await rig.ledger()
    await held(third)
    rig.kill(third)
    faulty = cast("FaultyDatabase", rig.database)
    if lost:
        faulty.lose_reply = True
    else:
        faulty.down = True
    waiting = Ledger(
        rig.database,
        rig.home / "journal",
        settings=first._settings,
        now=rig.clock.now,
        monotonic=rig.clock.monotonic,
        tasks=rig.tasks,
    )
    with pytest.raises(OperationalError):
        await waiting._recovery.recover()
    faulty.down = False
    assert await waiting._recovery.recover() == 1
    assert len(await entries(rig)) == 4
    assert await rig.window("org") == {"limit": 1_000, "spent": 40, "estimated": 40, "held": 0}


async def test_an_unreachable_database_at_the_end_keeps_the_journal(rig: Rig) -> None:
    """A stop during an outage loses nothing: the next start posts what was left."""
    faulty = cast("FaultyDatabase", rig.database)
    first = await rig.ledger()
    hold = await held(first)
    first.settle(hold, settled(4))
    faulty.down = True
    await first.close()
    rig.ledgers.clear()
    faulty.down = False
    await rig.ledger()
    assert (await entries(rig))[hold.plan.id]["source"] == "provider"


async def test_attempts_still_open_at_the_end_are_recovered(rig: Rig) -> None:
    """A stop that cannot wait for a stream leaves it to recovery instead of forgetting it."""
    first = await rig.ledger()
    hold = await held(first)
    await first.close()
    rig.ledgers.clear()
    await rig.ledger()
    assert (await entries(rig))[hold.plan.id]["source"] == "upper_bound"


async def test_a_clean_stop_leaves_nothing_behind(rig: Rig) -> None:
    """The usual case: no journal, no lease, a closed boot."""
    ledger = await rig.ledger()
    await ledger.set_budget(budget("org", 1_000), "test")
    await rig.charge(ledger)
    await ledger.close()
    rig.ledgers.clear()
    assert list((rig.home / "journal").iterdir()) == []
    assert [row["closed"] is not None for row in await rig.rows("SELECT closed FROM boot")] == [True]
    assert (await rig.window("org"))["held"] == 0


async def test_a_silent_boot_without_a_journal_is_closed(rig: Rig) -> None:
    """With durability off nothing can be recovered; what such a process had leased must not be held for ever."""
    first = await rig.ledger(ledger={"durability": "off"})
    await first.set_budget(budget("org", 100), "test")
    await held(first)
    rig.kill(first)
    second = await rig.ledger()
    assert (await rig.window("org"))["held"] > 0
    rig.clock.advance(91)
    await second._tender.turn()
    assert (await rig.window("org"))["held"] == 0


async def test_a_contradiction_is_kept_for_a_person(rig: Rig) -> None:
    """The same attempt with another amount is not applied and not dropped: somebody has to look."""
    ledger = await rig.ledger()
    hold = await rig.charge(ledger, 4)
    await ledger.flush()
    from msgspec import structs

    from gateway.ledger.posts import Line
    from gateway.ledger.records import Settle

    other = Settle(9, hold.plan.id, 0.0, 8, (1, 0, 0, 7, 0), "provider", "complete", None, None)
    await ledger._recovery._posts.post(ledger.boot, [Line(structs.replace(hold.dispatch), other)], 0.0)
    assert (await entries(rig))[hold.plan.id]["amount_nano"] == 4
    assert [row["amount_nano"] for row in await rig.rows("SELECT * FROM entry_conflict")] == [8]
    assert "contradict" in (await ledger.verify())[0]


async def test_the_row_of_a_lost_request_has_its_tags(rig: Rig) -> None:
    """Usage by tag must tell what entries by tag tell, also of requests that died with their process."""
    first = await rig.ledger()
    await rig.charge(first, 3, of=call(app="shop", part="blue"))
    rig.kill(first)
    await rig.ledger()
    found = await Queries(rig.database).usage(["tag:app"], 0, rig.clock.now() + 900)
    assert [(row.group["tag:app"], row.cost_nano) for row in found] == [("shop", 3)]
