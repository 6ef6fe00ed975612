"""The budgets page: what its form changes, what it shows of alerts and refusals, who may see which."""

from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import insert

from gateway.auth import ADMIN
from gateway.db.models import AlertDelivery, BudgetAlert
from gateway.errors import InvalidRequest
from gateway.routes.budgets import views
from gateway.routes.budgets_page import fields_of, wanted
from policies.budget import Budget, period, window_id
from tests.clock import FrozenClock
from tests.unit.control.house import House, charged, happened, house, request_row
from tests.unit.control.test_pages import csrf, sign_in

DAY = 86_400 // 60  # in the minutes that `request_row` counts in
FULL = {
    "scope": "team:acme",
    "limit_usd": "12.5",
    "window": "week",
    "timezone": "Europe/Berlin",
    "mode": "soft",
    "alerts": "33.3, 90",
    "rpm": "60",
    "tpm": "9000",
    "degrade_to": "chat",
    "degrade_at": "87.5",
}


@pytest.fixture
async def home(tmp_path: Path, clock: FrozenClock) -> AsyncGenerator[House, None]:
    async with house(tmp_path, clock) as found:
        yield found


async def test_the_form_holds_what_is_in_force_and_sending_it_back_changes_nothing(home: House) -> None:
    """Else whoever changes one field changes others; and what is emptied is gone."""
    async with home.client(None) as visitor, home.client() as admin:
        await sign_in(visitor)
        token = csrf((await visitor.get("/ui/budgets")).text)
        assert (await visitor.post("/ui/budgets", data={"csrf": token, **FULL})).status_code == 303
        first = (await admin.get("/api/v1/budgets/team:acme")).json()
        assert (first["alerts"], first["on_exhausted"], first["degrade_at"]) == ([0.333, 0.9], "degrade:chat", 0.875)
        page = (await visitor.get("/ui/budgets?edit=team:acme")).text
        for value in FULL.values():
            assert f'value="{value}"' in page or f"<option selected>{value}" in page or f'"{value}" selected' in page
        assert (await visitor.post("/ui/budgets", data={"csrf": token, **FULL})).status_code == 303
        again = (await admin.get("/api/v1/budgets/team:acme")).json()
        changing = ("version", "updated")
        assert {k: v for k, v in again.items() if k not in changing} == {
            k: v for k, v in first.items() if k not in changing
        }
        emptied = {**FULL, "limit_usd": "", "degrade_to": "", "tpm": ""}
        assert (await visitor.post("/ui/budgets", data={"csrf": token, **emptied})).status_code == 303
        left = (await admin.get("/api/v1/budgets/team:acme")).json()
        assert (left["limit_usd"], left["rpm"], left["tpm"]) == (None, 60, None)
        noted = (await admin.get("/api/v1/audit")).json()["data"]
        assert noted[0]["before"]["limit_usd"] == "12.5"
        assert "limit_usd" not in noted[0]["after"]


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ({}, "Give a limit"),
        ({"limit_usd": "1", "rpm": "many"}, "`rpm` must be a whole number"),
        ({"limit_usd": "1", "alerts": "half"}, "`alerts` must be percent"),
        ({"rpm": "1", "degrade_to": "chat"}, "Another model"),
        ({"limit_usd": "1", "degrade_to": "chat", "degrade_at": "late"}, "`degrade_at` must be percent"),
    ],
)
def test_a_wrong_field_is_named(form: dict[str, str], says: str) -> None:
    """Before anything is changed."""
    with pytest.raises(InvalidRequest, match=says):
        wanted(form)


async def test_a_forecast_stands_beside_its_range(home: House, clock: FrozenClock) -> None:
    """One number alone would be believed; and the day it runs out is what somebody acts on."""
    rows = [
        request_row(clock, day * DAY + 90, cost_nano=1_000_000_000 + 100_000_000 * (day % 3), id=f"r{day}")
        for day in range(12)
    ]
    await happened(home.services.database, rows)
    await charged(home.services.database, "r0", clock.now() - 60, 9_000_000_000)
    async with home.client() as admin:
        await admin.put("/api/v1/budgets/team:acme", json={"limit_usd": "12", "window": "year"})
        forecast = (await admin.get("/api/v1/budgets/team:acme")).json()["forecast"]
    async with home.client(None) as visitor:
        await sign_in(visitor)
        page = (await visitor.get("/ui/budgets")).text
        sheet = (await visitor.get("/ui/csv/budgets")).text
    for name in ("at_end_usd", "low_usd", "high_usd"):
        assert f"exactly ${forecast[name]} USD" in page
        assert forecast[name] in sheet
    for name in ("runs_out", "runs_out_earliest", "runs_out_latest"):
        assert f'datetime="{datetime.fromisoformat(forecast[name]).isoformat()}"' in page
        assert forecast[name] in sheet


async def test_alerts_and_refusals_are_shown_to_those_they_concern(home: House, clock: FrozenClock) -> None:
    """Who was told, who was not, and who was turned away: by our own limits, not by an upstream's."""
    async with home.client() as admin:
        await admin.put("/api/v1/budgets/team:acme", json={"limit_usd": "30"})
    window = window_id(Budget(scope="team:acme", limit_nano=1, window="month"), period("month", UTC, clock.now()))
    reached = {"window_id": window, "threshold": 0.8, "spent_nano": 24_000_000_000}
    sent = {"id": "one", "channel": "webhook", "limit_nano": 1, "mode": "hard", "created": clock.now(), "attempts": 3}
    ended = {"due": None, "delivered": None, "error": "it answered 500"}
    async with home.services.database.begin() as connection:
        await connection.execute(insert(BudgetAlert), [{**reached, "at": clock.now()}])
        await connection.execute(insert(AlertDelivery), [{**reached, **sent, **ended}])
    turned = {"status": 429, "source": "none", "cache": "bypass", "cost_nano": 0}
    rows = [
        request_row(clock, 5 + n, **turned, error="insufficient_quota", key_id="kkkkkkkk", id=f"q{n}") for n in range(3)
    ]
    rows += [request_row(clock, 20, **turned, error="upstream_error", key_id="uuuuuuuu", id="u")]
    rows += [request_row(clock, 21, **turned, error="rate_limit_exceeded", key_id="bbbbbbbb", team="beta", id="b")]
    await happened(home.services.database, rows)
    async with home.client(None) as visitor:
        await sign_in(visitor)
        page = (await visitor.get("/ui/budgets")).text
    assert "webhook: given-up, 3 attempts" in page
    assert 'title="it answered 500"' in page
    assert "exactly $24 USD" in page
    refused = page[page.index("Who was refused") :]
    assert "kkkkkkkk" in refused
    assert ">3<" in refused
    assert "uuuuuuuu" not in refused
    assert "a limit per minute was reached" in refused
    async with home.client(None) as visitor:
        await sign_in(visitor, await home.key("viewer", team="beta"))
        page = (await visitor.get("/ui/budgets")).text
    assert "kkkkkkkk" not in page
    assert "bbbbbbbb" in page
    assert "webhook" not in page[page.index("<h2>Alerts") : page.index("Nobody is told")]


async def test_the_fields_of_a_rate_alone_have_no_money(home: House) -> None:
    """A scope that only has limits per minute is changed with the same form."""
    async with home.client() as admin:
        await admin.put("/api/v1/budgets/key:abc", json={"rpm": 5})
    (found,) = await views(home.services, ADMIN)
    fields = fields_of(found)
    assert (fields["limit_usd"], fields["rpm"], fields["degrade_to"]) == ("", "5", "")
    assert wanted(fields).rpm == 5
