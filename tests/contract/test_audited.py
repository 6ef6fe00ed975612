"""A change and its row of the audit log are one: on both databases, under deaths and beside each other."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from sqlalchemy.engine import Connection

from gateway import audit
from gateway.audit import Change, noted, verify
from gateway.auth import ADMIN, Keyring, NewKey
from gateway.call import Principal
from gateway.db import budgets
from gateway.ledger.closing import Months
from gateway.price_terms import Terms
from gateway.prices import PriceBook, PriceSetting
from gateway.routes import keys, months, statements
from gateway.routes.budget_shapes import BudgetWanted, wanted_budget
from gateway.routes.budgets import retire_limit, set_limit
from gateway.routes.prices import put_price
from gateway.routes.statements import SharedCostWanted
from gateway.services import Services
from gateway.web.sessions import Sessions
from policies.months import month_of, span
from tests.clock import FrozenClock
from tests.empty_database import fresh_postgres
from tests.unit.ledger.rig import Rig, settings

NEW = NewKey(name="n", team="acme", project="app")
LIMITS = BudgetWanted(limit_usd="5", rpm=6)
COST = SharedCostWanted(split="even", from_month="2026-09", amount_usd="3")
_TABLES = (
    "api_key",
    "budget",
    "budget_version",
    "budget_window",
    "rate_limit",
    "price_override",
    "shared_cost",
    "session",
)


class Asker(Struct):
    """Whoever changes something."""

    services: Services
    principal: Principal = ADMIN
    ip: str | None = "10.0.0.1"


class Killed(Exception):
    """The process is gone."""


@pytest.fixture(params=["sqlite", "postgresql"])
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Rig, None]:
    url = None if request.param == "sqlite" else await fresh_postgres(request.getfixturevalue("postgres_url"))
    made = Rig(tmp_path, url, FrozenClock())
    await made.start()
    yield made
    await made.close()


async def services_of(rig: Rig) -> Services:
    chosen, clock = settings(rig.home), rig.clock
    keyring = Keyring(rig.database, b"p" * 32, now=clock.now, monotonic=clock.monotonic, admin_key=lambda: b"x" * 32)
    prices = PriceBook(rig.database, settings=chosen, now=clock.now)
    await prices.load()
    ledger = await rig.ledger()
    return Services(
        settings=chosen, database=rig.database, keyring=keyring, ledger=ledger, prices=prices, now=clock.now
    )


async def _kept(rig: Rig) -> dict[str, list[Any]]:
    """Every row of what is changed here; a key's last use is no change."""
    return {name: [dict(row) for row in await rig.rows(f"SELECT * FROM {name} ORDER BY 1")] for name in _TABLES}


def _changes(asker: Asker, key_id: str) -> dict[str, Callable[[], Coroutine[Any, Any, object]]]:
    """One of every kind, in an order in which each finds what it needs."""
    said = noted(asker, Change("session.open", "admin"))
    terms = Terms(input_usd="1", output_usd="2")
    return {
        "key.create": lambda: keys.make(asker, NEW),
        "key.rotate": lambda: keys.renew(asker, key_id, 60.0),
        "key.revoke": lambda: keys.revoke(asker, key_id),
        "budget.set": lambda: set_limit(asker, wanted_budget("org", LIMITS)),
        "budget.retire": lambda: retire_limit(asker, "org"),
        "price.set": lambda: put_price(asker, "lab/m", terms, PriceSetting(actor="admin", effective_from=0.0)),
        "shared_cost.set": lambda: statements.set_shared(asker, "office", COST),
        "shared_cost.delete": lambda: statements.take_out_shared(asker, "office"),
        "session.open": lambda: Sessions(asker.services).open(ADMIN, said),
    }


async def test_a_change_without_its_row_is_no_change(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies between the two must leave neither, whatever was changed."""
    asker = Asker(await services_of(rig))
    created = await keys.make(asker, NEW)
    append, told = audit._append, ["key.create"]

    def dies(*_: object) -> None:
        raise Killed

    for action, change in _changes(asker, created.id).items():
        before = await _kept(rig)
        monkeypatch.setattr(audit, "_append", dies)
        with pytest.raises(Killed):
            await change()
        assert await _kept(rig) == before, action
        monkeypatch.setattr(audit, "_append", append)
        await change()
        assert await _kept(rig) != before, action
        told.append(action)
        assert [row["action"] for row in await rig.rows("SELECT action FROM audit ORDER BY id")] == told
    assert (await verify(asker.services)).broken_at is None


async def test_a_charge_is_corrected_and_a_month_closed_together_with_their_rows(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finance's own changes are what an auditor asks for first."""
    services = await services_of(rig)
    asker, ledger = Asker(services), services.ledger
    hold = await rig.charge(ledger)
    await ledger.flush()

    def dies(_: Connection) -> None:
        raise Killed

    with pytest.raises(Killed):
        await ledger.adjust(hold.plan.id, 2, reason="bill", actor="admin", also=lambda _: dies)
    assert len(await rig.rows("SELECT id FROM entry")) == 1
    month = month_of((await rig.rows("SELECT admitted FROM entry"))[0]["admitted"])
    monkeypatch.setattr(ledger, "instant", lambda: span(month).end + 40 * 86_400.0)
    with pytest.raises(Killed):
        await Months(rig.database, now=ledger.instant).close(month, "admin", "forced", lambda *_: dies)
    assert [row["digest"] for row in await rig.rows("SELECT digest FROM month_seal")] == [None]
    await months.close(asker, month, "forced")
    (row,) = await rig.rows("SELECT action, target FROM audit")
    assert (row["action"], row["target"]) == ("month.close", month)


_DIES = """
import asyncio, os, sys
from pathlib import Path
from gateway import audit
from tests.contract.test_audited import LIMITS, Asker, services_of, set_limit, wanted_budget
from tests.unit.ledger.rig import Rig

async def main():
    rig = Rig(Path(sys.argv[1]), sys.argv[2])
    await rig.start()
    audit._append = lambda *_: os._exit(9)
    await set_limit(Asker(await services_of(rig)), wanted_budget("org", LIMITS))

asyncio.run(main())
"""


async def test_a_real_death_between_the_two_leaves_neither(rig: Rig, tmp_path: Path) -> None:
    """The database itself, not an exception of ours, has to take the change back."""
    apart = tmp_path / "apart"
    apart.mkdir()
    told = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", _DIES, str(apart), rig.url], check=False, timeout=120
    )
    assert told.returncode == 9
    assert await budgets.load(rig.database) == []
    assert await rig.rows("SELECT id FROM audit") == []
    await set_limit(Asker(await services_of(rig)), wanted_budget("org", LIMITS))
    assert [one.limit_nano for one in await budgets.load(rig.database)] == [5 * 10**9]


async def test_many_changes_at_once_keep_the_chain_whole(rig: Rig) -> None:
    """Two that read the same last digest would fork it; every change has its row, in the order in which they hold."""
    services = await services_of(rig)
    asker = Asker(services)
    for turn in range(3):  # no more at once than there are connections
        made: list[Awaitable[object]] = [keys.make(asker, NEW) for _ in range(4)]
        made += [statements.set_shared(asker, f"cost-{turn}-{n}", COST) for n in range(2)]
        await asyncio.gather(*made)
    found = await verify(services)
    assert (found.broken_at, found.rows) == (None, 18)
    assert len(await rig.rows("SELECT id FROM api_key")) == 12
