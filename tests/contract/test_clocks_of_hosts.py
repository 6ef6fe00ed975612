"""Hosts whose clocks are wrong: who is gone is a matter of the database's time, which all of them share."""

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.db import rates as stored_rates
from gateway.db.session import Database
from gateway.ledger.balances import Windows
from gateway.ledger.book import Book, BootClosed
from tests.clock import FrozenClock
from tests.empty_database import fresh_postgres
from tests.live import Live, live, settings
from tests.unit.ledger.rig import budget, call, plan, running, settled

AHEAD = 1_000.0  # seconds, many times as long as a process may be silent


@pytest.mark.parametrize(("opens", "looks"), [(0.0, AHEAD), (-AHEAD, 0.0)])
async def test_no_clock_of_a_host_takes_a_living_process_for_gone(
    postgres_url: str, opens: float, looks: float
) -> None:
    """What it had leased would be leased to others while it spends it; one that keeps no journal is asked nothing."""
    database = Database(await fresh_postgres(postgres_url))
    await database.start()
    book = Book(database, Windows(database.dialect))
    await book.open_boot("living", "one host", time.time() + opens, journalled=False)
    await book.close_silent(time.time() + looks)
    await book.beat("living", time.time() + opens)
    await book.close_silent(time.time() + looks)
    await book.beat("living", time.time() + opens)
    await database.close()


async def test_a_process_without_a_journal_that_is_silent_is_closed(postgres_url: str) -> None:
    """Nobody will ever learn what it had in flight, so what it held goes back."""
    database = Database(await fresh_postgres(postgres_url))
    await database.start()
    book = Book(database, Windows(database.dialect))
    await book.open_boot("gone", "one host", time.time(), journalled=False)
    async with database.begin() as connection:
        await connection.exec_driver_sql("UPDATE boot SET seen = seen - 91")
    await book.close_silent(time.time())
    with pytest.raises(BootClosed):
        await book.beat("gone", time.time())
    await database.close()


async def test_what_hosts_share_is_dated_and_ends_by_the_databases_clock(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that was ahead set prices others refused, ended their sessions, and pruned what was to be kept."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + AHEAD)
    url = await fresh_postgres(postgres_url)
    oidc = {"issuer": "https://login.example.com", "client_id": "nearhit", "roles": {"ops": "viewer"}}
    async with live(settings(tmp_path, database=url, cache={"mode": "off"}, oidc=oidc)) as host:
        prices = {"input_usd": "1", "output_usd": "2"}
        await _sent(host, "PUT", "/api/v1/prices/up/later", json=prices)
        begins = next(row.effective_from for row in host.services.prices.overrides() if row.model == "later")
        form = aiohttp.FormData({"purpose": "batch"})
        form.add_field("file", b"{}", filename="in.jsonl")
        made = await _sent(host, "POST", "/v1/files", data=form)
        await _sent(host, "PUT", "/api/v1/budgets/org", json={"rpm": 1_000})
        (limit,) = await stored_rates.load(host.services.database)
        retention: Any = host.services.ledger._retention
        sign_on: Any = host.services.sign_on  # one that another host began ends here
        for told in (begins, made["created_at"], host.services.now(), retention._now(), limit.updated, sign_on._now()):
            assert abs(told - real()) < AHEAD / 2


async def _sent(host: Live, method: str, path: str, **sent: Any) -> Any:
    headers = {"authorization": "Bearer sk-test-admin-key-of-some-length"}
    async with host.client.request(method, host.url + path, headers=headers, **sent) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


async def test_a_request_is_of_the_hour_and_the_price_of_the_database(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that was ahead at a month's end charged next month's price, and put the cost on next month's pages."""
    real = time.time
    url = await fresh_postgres(postgres_url)
    async with live(settings(tmp_path, database=url, cache={"mode": "off"})) as host:
        dearer = {"input_usd": "1000", "output_usd": "1000", "effective_from": _iso(real() + AHEAD / 2)}
        await _sent(host, "PUT", "/api/v1/prices/up/scripted", json=dearer)
    monkeypatch.setattr(time, "time", lambda: real() + AHEAD)
    async with live(settings(tmp_path, database=url, cache={"mode": "off"})) as host:
        assert (await host.chat()).status == 200
        (row,), (entry,) = await host.rows(), await host.entries()
        assert abs(row["at"] - entry["admitted"]) < AHEAD / 2
        assert entry["amount_nano"] == row["cost_nano"] == entry["prompt"] * 1_000 + entry["completion"] * 2_000


async def test_a_new_limit_holds_in_the_window_that_runs_by_the_database(tmp_path: Path, postgres_url: str) -> None:
    """A host two months ahead took the running window for over, which kept its old limit until its end."""
    clock = FrozenClock(time.time() + 60 * 86_400.0)
    async with running(tmp_path, await fresh_postgres(postgres_url), clock) as rig:
        ledger = await rig.ledger()
        asked = call()
        hold = await ledger.hold(asked, plan(asked, most=10))
        for limit in (100, 50):
            await ledger.set_budget(budget("org", limit, window="month"), "test")
        ledger.settle(hold, settled(6))
        await ledger.flush()
        assert await rig.window("org") == {"limit": 50, "spent": 6, "estimated": 0, "held": 0}
        assert await ledger.verify() == []


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()
