"""A database of the version before, with money in it: upgraded, worked with, taken back and upgraded again."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import MetaData, func, insert, select
from sqlalchemy.engine import Connection

from gateway.db import migrate
from gateway.db.queries import Queries
from gateway.db.session import Database
from gateway.ledger.closing import Months
from policies.budget import Budget, period, window_id
from policies.months import month_of
from tests.clock import FrozenClock
from tests.empty_database import empty_postgres
from tests.unit.ledger.rig import PRICE, Rig, budget

BEFORE = "0002"
DAY = 86_400.0


@pytest.fixture(params=["sqlite", "postgresql"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'nearhit.db'}"
    return await empty_postgres(request.getfixturevalue("postgres_url"))


@pytest.fixture
async def rig(url: str, tmp_path: Path) -> AsyncGenerator[Rig, None]:
    made = Rig(tmp_path, url, FrozenClock())
    yield made
    await made.close()


def _window(clock: FrozenClock, of: Budget) -> tuple[str, Any]:
    from zoneinfo import ZoneInfo

    its = period(of.window, ZoneInfo(of.timezone), clock.now())
    return window_id(of, its), its


def _fill(connection: Connection, clock: FrozenClock) -> None:
    """What the version before had written: a budget with a lease, entries that named its window, their requests."""
    known = MetaData()
    known.reflect(connection)

    def put(name: str, **values: Any) -> None:
        blank = {column.name: None for column in known.tables[name].columns if column.nullable}
        connection.execute(insert(known.tables[name]).values(blank | values))

    now, of = clock.now(), budget("org", 1_000, window="total")
    window, its = _window(clock, of)
    limits = {"scope": "org", "limit_nano": 1_000, "window": "total", "timezone": "UTC", "mode": "hard", "actor": "ann"}
    put("budget", **limits, alerts=[0.5], version=1, created=now - 40 * DAY, updated=now - 40 * DAY)
    put("budget_version", **limits, version=1, retired=False, at=now - 40 * DAY)
    put(
        "budget_window", id=window, scope="org", window="total", starts=its.start, ends=its.end, limit_nano=1_000,
        spent_nano=60, estimated_nano=20, held_nano=40,
    )  # fmt: skip
    put("boot", id="gone", host="elsewhere", journalled=True, started=now - 41 * DAY, seen=now - 40 * DAY)
    put("lease", boot="gone", window_id=window, granted_nano=50, consumed_nano=10, closed=False)
    rates = {"input_pico": PRICE.input, "output_pico": PRICE.output, "cached_pico": 1_000, "cache_write_pico": 1_000}
    put("price_version", id=PRICE.id, **rates, request_pico=0, tiers=[], status="exact", first_used=now - 40 * DAY)
    put(
        "price_override", id="o1", provider="openai", model="gpt-5-mini", **rates, request_pico=0, status="exact",
        effective_from=now - 50 * DAY, source="set", actor="ann", created=now - 50 * DAY,
    )  # fmt: skip
    who = {"team": "acme", "project": "app", "key_id": "key1", "user": "ann", "provider": "openai"}
    for n, age in enumerate((40.0, 39.0, 0.5)):
        tokens = {"prompt": 15, "cached": 5, "cache_write": 0, "completion": 5, "reasoning": 0}
        put(
            "entry", id=f"r{n}.1", request_id=f"r{n}", admitted=now - age * DAY, at=now - age * DAY + 1, boot="gone",
            windows=f'["{window}"]', **who, model="gpt-5-mini", price=PRICE.id, **tokens, amount_nano=20,
            reserved_nano=30, source="estimated" if n == 0 else "provider", ended="complete", digest="d",
        )  # fmt: skip
        put(
            "request", id=f"r{n}", at=now - age * DAY, **who, model="smart", model_used="gpt-5-mini",
            operation="chat", stream=False, source="upstream", cache="miss", status=200, **tokens, cost_nano=20,
            saved_nano=0, cost_status="estimated" if n == 0 else "exact", total_ms=5.0, overhead_ms=1.0, attempts=1,
            complete=True, client_gone=False, tags={"app": "shop"},
        )  # fmt: skip
    hit = {"operation": "chat", "stream": False, "source": "semantic", "cache": "hit-semantic", "status": 200}
    put(
        "request", id="h1", at=now - 40 * DAY, **who, model="smart", model_used="gpt-5-mini", **hit, prompt=15,
        cached=0, cache_write=0, completion=5, reasoning=0, cost_nano=0, saved_nano=20, cost_status="exact",
        total_ms=1.0, overhead_ms=1.0, attempts=0, complete=True, client_gone=False,
    )  # fmt: skip
    put(
        "saving_correction", id="c1", request_id="h1", at=now - 39 * DAY, team="acme", project="app", model="smart",
        amount_nano=-20, reason="wrong", actor="ann",
    )  # fmt: skip
    put("explain", request_id="r2", at=now - DAY / 2, data={"why": 1})


async def _counts(database: Database, tables: list[str]) -> dict[str, int]:
    def count(connection: Connection) -> dict[str, int]:
        known = MetaData()
        known.reflect(connection, only=tables)
        return {name: connection.scalar(select(func.count()).select_from(known.tables[name])) or 0 for name in tables}

    async with database.begin() as connection:
        return await connection.run_sync(count)


async def _told(database: Database, clock: FrozenClock) -> tuple[int, ...]:
    """Of each team, from the sums: requests, cost, estimated, saved, corrected, hits by tag."""
    queries, end = Queries(database), clock.now() + DAY
    (row,) = await queries.usage(["team"], end - 60 * DAY, end)
    (tagged,) = await queries.usage([], end - 60 * DAY, end, {"tag:app": "shop"})
    return row.requests, row.cost_nano, row.estimated_nano, row.saved_nano, row.corrected_nano, tagged.requests


async def test_money_of_the_version_before_survives_both_ways(url: str, rig: Rig) -> None:
    """Balances, leases of lost processes, charges, sums and months: as they were, and still proved by the ledger.

    Going back loses what the version before cannot say (openings, tags of entries), and no row or balance of money.
    """
    await migrate.upgrade(url, BEFORE)
    database, clock = rig.database, rig.clock
    async with database.begin() as connection:
        await connection.run_sync(_fill, clock)
    kept = ["budget", "budget_version", "boot", "lease", "entry", "request", "saving_correction", "explain"]
    before = await _counts(database, kept)

    await rig.start()
    ledger = await rig.ledger()
    assert await ledger.verify() == []
    assert await rig.window("org") == {"limit": 1_000, "spent": 60, "estimated": 20, "held": 40}
    assert await _told(database, clock) == (4, 60, 20, 20, -20, 3)
    await rig.charge(ledger, 7)
    await ledger.set_budget(budget("team:acme", 500, window="total"), "ann")
    assert (await rig.window("team:acme"))["spent"] in (60, 67)
    await ledger.flush()
    assert (await rig.window("team:acme"))["spent"] == 67
    old = month_of(clock.now() - 40 * DAY)
    seal = await Months(database, now=clock.now).close(old, "ann", "the lost process is known")
    assert seal.amount_nano == sum(20 for age in (40, 39) if month_of(clock.now() - age * DAY) == old)
    assert await ledger.verify() == []
    rig.ledgers.remove(ledger)
    await ledger.close()

    await migrate.downgrade(url, BEFORE)
    assert await migrate.current(url) == BEFORE
    assert {name: count for name, count in (await _counts(database, kept)).items() if count < before[name]} == {}
    await rig.start()
    again = await rig.ledger()
    assert await rig.window("org") == {"limit": 1_000, "spent": 67, "estimated": 20, "held": 40}
    assert await _told(database, clock) == (4, 60, 20, 20, -20, 3)
    await rig.charge(again, 3)
    await again.flush()
    assert (await rig.window("org"))["spent"] == 70
    assert {found.partition(":")[0] for found in await again.verify()} <= {"window team"}
