"""Two people over the same form: nobody's change is lost without being told."""

import re
from collections.abc import AsyncGenerator
from html import unescape
from pathlib import Path

import pytest

from tests.clock import FrozenClock
from tests.unit.control.house import House, house
from tests.unit.control.test_budgets_page import FULL
from tests.unit.control.test_pages import sign_in

COST = {"name": "gpu", "amount_usd": "300", "split": "even", "from_month": "2026-09"}


@pytest.fixture
async def home(tmp_path: Path, clock: FrozenClock) -> AsyncGenerator[House, None]:
    async with house(tmp_path, clock) as found:
        yield found


def _hidden(page: str) -> dict[str, str]:
    """The hidden fields of the form that sets something: the last one on the page."""
    form = re.findall(r'<form class="form" method="post".*?</form>', page, re.DOTALL)[-1]
    return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', form))


def _told(page: str) -> str:
    found = re.search(r'<p class="alert bad" role="alert">([^<]*)</p>', page)
    return "" if found is None else unescape(found[1])


async def test_a_budget_that_somebody_changed_meanwhile_is_told_before_it_is_replaced(home: House) -> None:
    """The form is sent as a whole: the other person's new limit would be gone, and only the audit log would know."""
    async with home.client(None) as visitor, home.client() as admin:
        await sign_in(visitor)
        await visitor.post("/ui/budgets", data={**_hidden((await visitor.get("/ui/budgets")).text), **FULL})
        mine = _hidden((await visitor.get("/ui/budgets?edit=team:acme")).text)
        await admin.put("/api/v1/budgets/team:acme", json={"limit_usd": "99", "window": "day", "rpm": 7})
        page = await visitor.post("/ui/budgets", data={**mine, **FULL, "limit_usd": "13"})
        assert page.status_code == 400
        assert _told(page.text).startswith("team:acme: It was changed meanwhile: limit in USD 99, window day")
        assert 'value="13"' in page.text
        assert (await admin.get("/api/v1/budgets/team:acme")).json()["limit_usd"] == "99"
        again = {**_hidden(page.text), **FULL, "limit_usd": "13"}
        assert (await visitor.post("/ui/budgets", data=again)).status_code == 303
        assert (await admin.get("/api/v1/budgets/team:acme")).json()["limit_usd"] == "13"
        mine = _hidden((await visitor.get("/ui/budgets?edit=team:acme")).text)
        await admin.delete("/api/v1/budgets/team:acme")
        page = await visitor.post("/ui/budgets", data={**mine, **FULL})
        assert "taken out meanwhile" in _told(page.text)


async def test_a_new_budget_is_not_put_over_one_that_is_there(home: House) -> None:
    """Who sets requests per minute for a team did not mean to take its limit in money away."""
    async with home.client(None) as visitor, home.client() as admin:
        await sign_in(visitor)
        fresh = _hidden((await visitor.get("/ui/budgets")).text)
        await admin.put("/api/v1/budgets/org", json={"limit_usd": "1000"})
        page = await visitor.post("/ui/budgets", data={**fresh, "scope": "org", "rpm": "60"})
        assert _told(page.text).startswith("org: There is one already: limit in USD 1000")
        assert (await admin.get("/api/v1/budgets/org")).json()["limit_usd"] == "1000"


async def test_sent_twice_by_a_nervous_hand_it_is_told_not_doubled(home: House) -> None:
    """The second time nothing is replaced that nobody has seen."""
    async with home.client(None) as visitor, home.client() as admin:
        await sign_in(visitor)
        sent = {**_hidden((await visitor.get("/ui/budgets")).text), **FULL}
        assert (await visitor.post("/ui/budgets", data=sent)).status_code == 303
        assert (await visitor.post("/ui/budgets", data=sent)).status_code == 303
        assert (await admin.get("/api/v1/budgets/team:acme")).json()["version"] == 1


async def test_a_shared_cost_is_guarded_alike(home: House) -> None:
    """What stands on every team's statement least of all may change unseen."""
    async with home.client(None) as visitor, home.client() as admin:
        await sign_in(visitor)
        fresh = _hidden((await visitor.get("/ui/statements/shared")).text)
        assert (await visitor.post("/ui/statements/shared", data={**fresh, **COST})).status_code == 303
        page = await visitor.post("/ui/statements/shared", data={**fresh, **COST, "amount_usd": "500"})
        assert _told(page.text).startswith("gpu: There is one already: amount in USD 300, split even, from 2026-09")
        (kept,) = (await admin.get("/api/v1/shared-costs")).json()["data"]
        assert kept["amount_usd"] == "300"
        again = {**_hidden(page.text), **COST, "amount_usd": "500"}
        assert (await visitor.post("/ui/statements/shared", data=again)).status_code == 303
