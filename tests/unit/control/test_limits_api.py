"""Limits over HTTP: in money and per minute, changed live, noted, with a forecast."""

from collections.abc import AsyncGenerator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import insert, select

from gateway.db.models import AlertDelivery, Audit, BudgetAlert
from tests.clock import FrozenClock
from tests.unit.control.house import House, charged, happened, house, request_row


@pytest.fixture
async def home(tmp_path: Path, clock: FrozenClock) -> AsyncGenerator[House, None]:
    async with house(tmp_path, clock) as made:
        yield made


async def test_limits_per_minute_stand_beside_money_or_alone_and_every_change_is_noted(home: House) -> None:
    """What is left out stays, null takes away, and the audit log says what was before and after."""
    async with home.client() as admin:
        made = (await admin.put("/api/v1/budgets/team:acme", json={"rpm": 60})).json()
        assert (made["rpm"], made["tpm"], made["limit_usd"], made["remaining_usd"]) == (60, None, None, None)
        both = {"limit_usd": "5", "tpm": 1_000, "on_exhausted": "degrade:embed", "degrade_at": 0.9}
        made = (await admin.put("/api/v1/budgets/team:acme", json=both)).json()
        assert (made["rpm"], made["tpm"], made["limit_usd"]) == (60, 1_000, "5")
        assert (made["on_exhausted"], made["degrade_at"]) == ("degrade:embed", 0.9)
        old_client = (await admin.put("/api/v1/budgets/team:acme", json={"limit_usd": "6"})).json()
        assert (old_client["rpm"], old_client["on_exhausted"]) == (60, "degrade:embed")
        assert (await admin.get("/api/v1/budgets")).json()["data"] == [old_client]
        assert (await admin.get("/api/v1/budgets/team:acme")).json() == old_client
        refuse = (await admin.put("/api/v1/budgets/team:acme", json={"on_exhausted": "refuse", "tpm": None})).json()
        assert (refuse["limit_usd"], refuse["on_exhausted"], refuse["tpm"]) == ("6", "refuse", None)
        rate = (await admin.put("/api/v1/budgets/team:acme", json={"limit_usd": None})).json()
        assert (rate["limit_usd"], rate["rpm"]) == (None, 60)
        assert (await admin.delete("/api/v1/budgets/team:acme")).status_code == 204
        assert (await admin.delete("/api/v1/budgets/team:acme")).status_code == 404
        assert (await admin.get("/api/v1/budgets")).json()["data"] == []
    async with home.services.database.read() as connection:
        rows = (await connection.execute(select(Audit).order_by(Audit.id))).all()
    changes = [(row.action, row.before, row.after) for row in rows if row.target == "team:acme"]
    assert [action for action, _, _ in changes] == ["budget.set"] * 5 + ["budget.retire"]
    assert changes[0][1:] == (None, {"rpm": 60, "tpm": None})
    assert changes[1][2] is not None
    assert (changes[1][2]["rpm"], changes[1][2]["on_exhausted"]) == (60, "degrade:embed")
    assert changes[-1][1:] == ({"rpm": 60, "tpm": None}, None)
    assert all(before == last for (_, before, _), (_, _, last) in zip(changes[1:], changes, strict=False))


WRONG_LIMITS: list[tuple[dict[str, Any], str]] = [
    ({"rpm": -1}, "rpm"),
    ({"tpm": 10**15}, "tpm"),
    ({"rpm": "many"}, "rpm"),
    ({"on_exhausted": "degrade:embed"}, "on_exhausted"),
    ({"limit_usd": "1", "on_exhausted": "degrade:"}, "on_exhausted"),
    ({"limit_usd": "1", "on_exhausted": "sulk"}, "on_exhausted"),
    ({"limit_usd": "1", "on_exhausted": "degrade:no-such-model"}, "on_exhausted"),
    ({"limit_usd": "1", "on_exhausted": "degrade:embed", "degrade_at": 2}, "degrade_at"),
    ({"limit_usd": "1", "degrade_at": 0.5}, "degrade_at"),
]


async def test_a_wrong_limit_names_the_field_and_changes_nothing(home: House) -> None:
    """Half a change would be the worst of both."""
    async with home.client() as admin:
        for body, param in WRONG_LIMITS:
            answer = await admin.put("/api/v1/budgets/team:acme", json=body)
            assert answer.status_code == 400, (body, answer.text)
            assert param in answer.text, (body, answer.text)
        assert (await admin.get("/api/v1/budgets")).json()["data"] == []


async def test_a_forecast_has_a_range_and_an_instant(home: House, clock: FrozenClock) -> None:
    """Whoever plans wants to know when it runs out, and how sure that is."""
    rows = [
        request_row(clock, 60 * 24 * day + 90, cost_nano=1_000_000_000 + 100_000_000 * (day % 3), id=f"r{day}")
        for day in range(9)
    ]
    await happened(home.services.database, rows)
    await charged(home.services.database, "r0", clock.now() - 60, 9_000_000_000)
    async with home.client() as admin:
        made = (await admin.put("/api/v1/budgets/org", json={"limit_usd": "12", "window": "total"})).json()
        assert (made["spent_usd"], made["opening_usd"], made["remaining_usd"]) == ("9", "9", "3")
        seen = (await admin.get("/api/v1/budgets/org")).json()["forecast"]
        assert seen["basis"] >= 8
        assert seen["runs_out_earliest"] <= seen["runs_out"] <= seen["runs_out_latest"]
        assert seen["at_end_usd"] is None
        await admin.put("/api/v1/budgets/org", json={"limit_usd": "12", "window": "year"})
        seen = (await admin.get("/api/v1/budgets/org")).json()["forecast"]
        assert float(seen["low_usd"]) <= float(seen["at_end_usd"]) <= float(seen["high_usd"])


@pytest.mark.parametrize("name", ["chat", "demo", "local/demo"])
async def test_a_model_has_a_forecast_by_each_of_its_names(home: House, clock: FrozenClock, name: str) -> None:
    """Its budget counts what it was asked as, what answered and where; only the first had a past to foresee from."""
    rows = [request_row(clock, 60 * 24 * day + 90, cost_nano=1_000_000_000, id=f"r{day}") for day in range(9)]
    rows += [request_row(clock, 30, model="other", provider="lab", model_used="x", cost_nano=9, id="other")]
    await happened(home.services.database, rows)
    await charged(home.services.database, "r0", clock.now() - 60, 5_000_000_000, asked="chat")
    async with home.client() as admin:
        await admin.put(f"/api/v1/budgets/model:{name}", json={"limit_usd": "12", "window": "total"})
        seen = (await admin.get(f"/api/v1/budgets/model:{name}")).json()
    assert (seen["spent_usd"], seen["forecast"]["basis"]) == ("5", 9)
    days = datetime.fromisoformat(seen["forecast"]["runs_out"]).timestamp() - clock.now()
    assert 6 < days / 86_400 < 8  # 7 USD are left, at a dollar a day


async def test_alerts_are_shown_to_whom_they_concern(home: House) -> None:
    """That a budget is nearly gone must be seen also where no webhook is set up, and not by other teams."""
    await charged(home.services.database, "r0", home.clock.now() - 60, 9_000_000_000)
    async with home.client() as admin:
        await admin.put("/api/v1/budgets/team:acme", json={"limit_usd": "10", "alerts": [0.5, 0.95]})
        (seen,) = (await admin.get("/api/v1/alerts")).json()["data"]
        assert (seen["scope"], seen["threshold"], seen["spent_usd"], seen["deliveries"]) == ("team:acme", 0.5, "9", [])
    async with home.client(await home.key("viewer", team="zeta")) as other:
        assert (await other.get("/api/v1/alerts")).json()["data"] == []


async def test_a_teams_alerts_are_seen_behind_many_newer_ones_of_others(home: House) -> None:
    """The newest 200 of everybody were taken, and then those of the team out of them: mostly none."""
    at = home.clock.now()
    others = [(f"team:t{number}|month|1788220800|1790812800", 0.5, 1, at + number) for number in range(450)]
    rows = [("team:acme|month|1788220800|1790812800", 0.5, 9, at), *others]
    names = ("window_id", "threshold", "spent_nano", "at")
    sent = {"channel": "webhook", "window_id": rows[0][0], "threshold": 0.5, "spent_nano": 9, "mode": "hard"}
    sent |= {"id": "x", "limit_nano": 18, "created": at, "attempts": 1, "due": None, "delivered": at, "error": None}
    async with home.services.database.begin() as connection:
        await connection.execute(insert(BudgetAlert), [dict(zip(names, row, strict=True)) for row in rows])
        await connection.execute(insert(AlertDelivery), [sent])
    async with home.client(await home.key("viewer")) as mine:
        (own,) = (await mine.get("/api/v1/alerts")).json()["data"]
    assert own["scope"] == "team:acme"
    assert [(one["state"], one["limit_usd"]) for one in own["deliveries"]] == [("delivered", "0.000000018")]
    async with home.client() as admin:
        found = (await admin.get("/api/v1/alerts")).json()["data"]
    assert (len(found), found[0]["scope"]) == (200, "team:t449")


async def test_another_amount_leaves_the_rest_of_a_limit_as_it_is(home: House) -> None:
    """A soft limit a week that is raised must not become a hard one a month: that refuses people."""
    given = {"window": "week", "timezone": "Europe/Berlin", "mode": "soft", "alerts": [0.9]}
    kept = (*given, "on_exhausted")
    async with home.client() as admin:
        made = (await admin.put("/api/v1/budgets/team:acme", json={"limit_usd": "5", **given})).json()
        raised = (await admin.put("/api/v1/budgets/team:acme", json={"limit_usd": "7"})).json()
        assert raised["limit_usd"] == "7"
        assert [raised[name] for name in kept] == [made[name] for name in kept]
        hard = (await admin.put("/api/v1/budgets/team:acme", json={"mode": "hard"})).json()
        assert (hard["limit_usd"], hard["mode"], hard["window"], hard["alerts"]) == ("7", "hard", "week", [0.9])
        fresh = (await admin.put("/api/v1/budgets/org", json={"limit_usd": "9"})).json()
        assert (fresh["window"], fresh["timezone"], fresh["mode"]) == ("month", "UTC", "hard")
        assert fresh["alerts"] == [0.5, 0.8, 0.95]
        nothing = await admin.put("/api/v1/budgets/team:beta", json={"mode": "soft", "rpm": 5})
        assert (nothing.status_code, "`mode` needs a limit" in nothing.text) == (400, True)
        wrong = await admin.put("/api/v1/budgets/team:acme", json={"timezone": "Mars"})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "timezone")


async def test_a_scope_is_the_one_that_was_written(home: House) -> None:
    """Users are called what their sign-in calls them, addresses among it; a limit of another name limits nobody."""
    for name in ("https://id.example/u/1", "a%2Fb", "ends/", "\u05e9\u05dc\u05d5\u05dd", "100% sure?"):
        scope = f"user:{name}"
        address = f"/api/v1/budgets/{quote(scope, safe='/:=')}"
        async with home.client() as admin:
            made = await admin.put(address, json={"limit_usd": "1"})
            assert (made.status_code, made.json()["scope"]) == (200, scope)
            assert (await admin.get(address)).json()["scope"] == scope
            assert (await admin.delete(address)).status_code == 204
            assert (await admin.get(address)).status_code == 404
