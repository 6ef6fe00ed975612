"""A budget that is set in the middle of its window counts what the window has spent, on both databases, to the nano."""

import asyncio
import random
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from msgspec import structs
from sqlalchemy import select

from gateway.call import AUDIT_TAG, Call, Principal
from gateway.db.models import Entry
from gateway.db.session import Database
from gateway.errors import BudgetExhausted
from gateway.ledger import Hold, Ledger
from gateway.ledger.openings import falls_under, scopes_of_row
from tests.clock import FrozenClock
from tests.empty_database import fresh_postgres
from tests.unit.ledger.rig import Rig, budget, call, plan, running, settled

SCOPES = (
    "org",
    "team:acme",
    "project:acme/app",
    "key:key1",
    "user:ann",
    "model:smart",
    "model:gpt-5-mini",
    "model:openai/gpt-5-mini",
    "tag:app=shop",
)


@pytest.fixture
async def rig(url: str, tmp_path: Path, clock: FrozenClock) -> AsyncGenerator[Rig, None]:
    async with running(tmp_path, url, clock) as made:
        yield made


async def opening(rig: Rig, scope: str) -> int:
    (row,) = await rig.rows("SELECT opening_nano FROM budget_window WHERE scope = :scope", scope=scope)
    return row["opening_nano"]


@pytest.mark.parametrize("scope", SCOPES)
async def test_what_was_spent_before_counts(rig: Rig, scope: str) -> None:
    """A limit of 10 set when 7 are gone must refuse a request for 4, and tell the truth before any request comes."""
    ledger = await rig.ledger()
    asked = call(user="ann", app="shop")
    await rig.charge(ledger, 7, of=asked)
    other = call(Principal(key_id="key9", team="zeta", project="zoo"), model="other")
    await rig.charge(ledger, 5, of=other)
    await ledger.flush()
    await ledger.set_budget(budget(scope, 20), "test")
    spent = 12 if scope in ("org", "model:gpt-5-mini", "model:openai/gpt-5-mini") else 7
    assert await rig.window(scope) == {"limit": 20, "spent": spent, "estimated": 0, "held": 0}
    assert await opening(rig, scope) == spent
    again = call(user="ann", app="shop")
    with pytest.raises(BudgetExhausted):
        await ledger.hold(again, plan(again, most=21 - spent))
    ledger.settle(await ledger.hold(again, plan(again, most=20 - spent)), settled(3))
    await ledger.flush()
    assert (await rig.window(scope))["spent"] == spent + 3
    assert await opening(rig, scope) == spent
    assert await ledger.verify() == []


async def test_only_the_window_counts(rig: Rig, clock: FrozenClock) -> None:
    """Yesterday's spending is yesterday's; a day's budget begins at its midnight, whatever was spent before."""
    ledger = await rig.ledger()
    await rig.charge(ledger, 4)
    clock.advance(86_400)
    await rig.charge(ledger, 3)
    await ledger.flush()
    await ledger.set_budget(budget("org", 100, window="day"), "test")
    await ledger.set_budget(budget("team:acme", 100, window="total"), "test")
    assert (await rig.window("org"))["spent"] == 3
    assert (await rig.window("team:acme"))["spent"] == 7
    assert await ledger.verify() == []


async def test_what_runs_while_the_budget_is_set_counts_when_it_ends(rig: Rig) -> None:
    """Such an attempt cannot name the window, and must not be lost for it; nor twice in it when it is shipped again."""
    ledger = await rig.ledger()
    asked = call()
    hold = await ledger.hold(asked, plan(asked, most=10))
    await ledger.set_budget(budget("org", 100), "test")
    ledger.settle(hold, settled(6, source="estimated"))
    line = ledger._shipper._pending[0].line
    await ledger.flush()
    assert await rig.window("org") == {"limit": 100, "spent": 6, "estimated": 6, "held": 0}
    await ledger._shipper._posts.post(ledger.boot, [line], rig.clock.now())
    assert await opening(rig, "org") == 6
    assert await ledger.verify() == []


async def test_a_worker_that_has_not_heard_of_the_budget_yet(rig: Rig) -> None:
    """For two seconds it admits without the window; what it spends belongs to the window all the same."""
    one, two = await rig.ledger(), await rig.ledger()
    await rig.charge(two, 2)
    await two.flush()
    await one.set_budget(budget("team:acme", 100), "test")
    await rig.charge(one, 1)
    await rig.charge(two, 3)
    await one.flush()
    await two.flush()
    assert (await rig.window("team:acme"))["spent"] == 6
    assert await opening(rig, "team:acme") == 5
    assert await one.verify() == []


async def test_a_budget_taken_away_and_set_again_has_lost_nothing(rig: Rig) -> None:
    """Retiring must not be a way to start a window anew."""
    ledger = await rig.ledger()
    await ledger.set_budget(budget("org", 100), "test")
    await rig.charge(ledger, 2)
    await ledger.flush()
    await ledger.remove_budget("org", "test")
    await rig.charge(ledger, 3)
    await ledger.flush()
    await ledger.set_budget(budget("org", 100), "test")
    await rig.charge(ledger, 4)
    await ledger.flush()
    assert (await rig.window("org"))["spent"] == 9
    assert await ledger.verify() == []


async def test_corrections_of_earlier_entries_reach_the_opening(rig: Rig) -> None:
    """A correction has the windows of its entry; the window opened since must follow it."""
    ledger = await rig.ledger()
    hold = await rig.charge(ledger, 5)
    await ledger.flush()
    await ledger.set_budget(budget("org", 100), "test")
    await ledger.adjust(hold.plan.id, -2, reason="refund", actor="ann")
    assert (await rig.window("org"))["spent"] == 3
    assert await opening(rig, "org") == 3
    assert await ledger.verify() == []


async def test_a_wrong_opening_is_found(rig: Rig) -> None:
    """The stated amount is proved, not believed."""
    ledger = await rig.ledger()
    await rig.charge(ledger, 5)
    await ledger.flush()
    await ledger.set_budget(budget("org", 100), "test")
    async with rig.database.begin() as connection:
        await connection.exec_driver_sql("UPDATE budget_window SET opening_nano = 4")
    assert any("opening" in found for found in await ledger.verify())


async def test_sql_and_records_agree_on_what_falls_under_a_scope(rig: Rig) -> None:
    """The opening is taken by SQL, later entries by the record: a difference would be money counted twice or never."""
    ledger, seeded = await rig.ledger(), random.Random(7)
    odd = ['k"x', "a_b", "a%b", "A", "a\\b", "ü"]
    for _ in range(60):
        who = Principal(
            key_id=seeded.choice(["key1", "key2"]),
            team=seeded.choice(["acme", "Acme", "zeta"]),
            project=seeded.choice(["app", "acme/app", ""]),
        )
        tags = {seeded.choice("pqr"): seeded.choice(odd) for _ in range(seeded.randrange(3))}
        asked = call(who, model=seeded.choice(["smart", "openai/gpt-5-mini", "x/y"]), **tags)
        directives = structs.replace(asked.directives, user=seeded.choice([None, "ann", "Ann"]))
        if seeded.random() < 0.2:
            directives = structs.replace(directives, tags=(*directives.tags, AUDIT_TAG))
        asked = structs.replace(asked, charged=seeded.random() < 0.8, directives=directives)
        await rig.charge(ledger, 3, of=asked)
    await ledger.flush()
    async with rig.database.read() as connection:
        rows = (await connection.execute(select(*Entry.__table__.columns))).all()
        every = {scope for row in rows for scope in scopes_of_row(row)} - {"team:", "key:", "project:/"}
        assert len(every) > 25
        for scope in sorted(every):
            wanted = select(Entry.id).where(falls_under(rig.database.dialect, scope))
            found = {row[0] for row in await connection.execute(wanted)}
            assert found == {row.id for row in rows if scope in scopes_of_row(row)}, scope


async def test_setting_budgets_while_four_workers_spend(tmp_path: Path, postgres_url: str) -> None:
    """Opening and posting at the same moment: every nano is in the entries and in the window exactly once."""
    url = await fresh_postgres(postgres_url)
    async with running(tmp_path, url) as rig:
        databases = [Database(url) for _ in range(4)]
        ledgers = [await rig.ledger(database=database) for database in databases]

        async def spend(ledger: Ledger, asked: Call) -> None:
            hold: Hold = await ledger.hold(asked, plan(asked))
            ledger.settle(hold, settled(3))
            await ledger.flush()

        async def work(ledger: Ledger) -> None:
            for i in range(12):
                await spend(ledger, call(user=f"u{i % 3}"))

        async def rule() -> None:
            for scope in ("org", "team:acme", "user:u1", "key:key1", "model:smart"):
                await ledgers[0].set_budget(budget(scope, 10**9, mode="soft"), "test")

        await asyncio.gather(rule(), *(work(ledger) for ledger in ledgers))
        assert await ledgers[0].verify() == []
        assert (await rig.window("org"))["spent"] == 4 * 12 * 3
        assert (await rig.window("user:u1"))["spent"] == 4 * 4 * 3
        for ledger, database in zip(ledgers, databases, strict=True):
            rig.ledgers.remove(ledger)
            await ledger.close()
            await database.close()
