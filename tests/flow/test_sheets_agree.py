"""What a page and its sheet say the moment after a request, beside the API: one number wherever it stands."""

import csv
import io
import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from policies.budget import Budget
from policies.months import month_of
from tests.live import Live, live, settings

KEY = "sk-test-admin-key-of-some-length"


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncGenerator[Live, None]:
    """With a roomy budget, on which a process leases ahead, and one request that has just ended."""
    async with live(settings(tmp_path)) as made:
        await made.services.ledger.set_budget(Budget(scope="team:acme", limit_nano=10**12), "test")
        assert (await made.chat()).status == 200
        yield made


async def page(gateway: Live, path: str) -> str:
    async with gateway.client.post(f"{gateway.url}/ui/login", data={"key": KEY}, allow_redirects=False) as opened:
        session = opened.headers["set-cookie"].partition(";")[0]
    async with gateway.client.get(gateway.url + path, headers={"cookie": session}) as answer:
        assert answer.status == 200, path
        return await answer.text()


async def sheet(gateway: Live, path: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(await page(gateway, path))))


async def told(gateway: Live) -> dict[str, Any]:
    """The budget by the API, asked last: it would bring up to date what was not."""
    headers = {"authorization": f"Bearer {KEY}"}
    async with gateway.client.get(f"{gateway.url}/api/v1/budgets", headers=headers) as answer:
        (found,) = (await answer.json())["data"]
    assert found["held_usd"] == "0"
    return found


async def test_the_budgets_page_says_what_is_left_as_the_api_does(gateway: Live) -> None:
    """It told what is leased ahead as held for requests under way, though none were."""
    shown = re.findall(r'title="exactly \$([0-9.]+) USD">[^<]*</span> left', await page(gateway, "/ui/budgets"))
    assert shown == [(await told(gateway))["remaining_usd"]]


async def test_the_sheet_of_budgets_is_of_this_moment(gateway: Live) -> None:
    """It lacked the last moment's requests, and told leases as held."""
    (shown,) = await sheet(gateway, "/ui/csv/budgets")
    asked = await told(gateway)
    names = ("spent_confirmed_usd", "held_usd", "remaining_usd")
    assert [shown[name] for name in names] == [asked[name] for name in names]
    assert float(shown["spent_confirmed_usd"]) > 0


async def test_the_answer_to_a_change_says_what_asking_again_does(gateway: Live) -> None:
    """It told what was spent until a moment ago, what is leased as held, and never a forecast."""
    url, headers = f"{gateway.url}/api/v1/budgets/team:acme", {"authorization": f"Bearer {KEY}"}
    async with gateway.client.put(url, headers=headers, json={"limit_usd": "900"}) as answer:
        said = await answer.json()
    again = await told(gateway)
    names = ("limit_usd", "spent_usd", "held_usd", "remaining_usd", "forecast")
    assert [said[name] for name in names] == [again[name] for name in names]


async def test_other_sheets_are_of_this_moment(gateway: Live) -> None:
    """Whoever downloads one after a run counts it."""
    (team,) = await sheet(gateway, "/ui/csv/team?period=today")
    assert team["requests"] == "1"
    await gateway.chat(messages=[{"role": "user", "content": "and now something else"}])
    month = month_of(gateway.services.now())
    own = [line for line in await sheet(gateway, f"/ui/statements/{month}/sheet.csv") if line["kind"] == "own"]
    assert [line["requests"] for line in own] == ["2"]
