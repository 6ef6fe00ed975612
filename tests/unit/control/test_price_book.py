"""The price book, the calculator, what charges rest on and what-if, over HTTP on a real ledger."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from msgspec import convert, structs
from sqlalchemy import text

from gateway.call import Principal
from gateway.ledger import AttemptPlan, Settlement
from gateway.price_terms import Terms
from gateway.prices import PriceSetting
from gateway.settings import Settings
from policies.money import Price, Usage, bound_nano, cost_nano, nano, usd
from tests.clock import FrozenClock
from tests.unit.control.house import House, happened, hit_row, house, request_row
from tests.unit.control.test_pages import csrf, sign_in
from tests.unit.ledger.rig import call

CONTRACT = {
    "input_usd": "2",
    "output_usd": "8",
    "cached_usd": "0.5",
    "audio_input_usd": 40,
    "reasoning_usd": "6",
    "request_usd": "0.001",
    "tiers": [{"above": 1000, "percent": 200}],
    "hours": [{"start": "00:00", "end": "24:00", "days": "mon-sun", "percent": 50}],
    "service": {"batch": 50},
}


@pytest.fixture
async def home(tmp_path: Path, clock: FrozenClock) -> AsyncGenerator[House, None]:
    async with house(tmp_path, clock) as made:
        yield made


async def attempt(home: House, price: Price, usage: Usage, *, model: str = "m", **more: Any) -> int:
    """One settled attempt of team acme at `lab`; answers what it cost."""
    who = Principal(key_id="k", team=more.pop("team", "acme"), project="web")
    asked = structs.replace(call(who, model=f"lab/{model}"), at=home.clock.now())
    plan = AttemptPlan(
        id=f"{asked.id}.1",
        request_id=asked.id,
        provider="lab",
        model=model,
        price=price,
        reserve_nano=bound_nano(usage.prompt, usage.completion, price),
        input_bound=usage.prompt,
        max_output=usage.completion,
    )
    hold = await home.services.ledger.hold(asked, plan)
    source = more.pop("source", "provider")
    return home.services.ledger.settle(hold, Settlement(usage=usage, source=source, ended="complete"))


async def test_a_price_set_back_in_time_tells_until_when_it_counts(home: House) -> None:
    """Who set it for the whole month believed it in force, while the one of yesterday went on being charged."""
    now = home.clock.now()
    plain = {"input_usd": "2", "output_usd": "8"}
    async with home.client() as admin:
        first = await admin.put("/api/v1/prices/lab/m", json={**plain, "effective_from": now - 86_400})
        back = await admin.put("/api/v1/prices/lab/m", json={**plain, "input_usd": "1", "effective_from": now - 9e5})
        last = await admin.put("/api/v1/prices/lab/m", json={**plain, "input_usd": "3"})
        wrong = await admin.put("/api/v1/prices/lab/*", json=plain)
    assert (first.json()["replaced_from"], last.json()["replaced_from"]) == (None, None)
    assert back.json()["replaced_from"] == first.json()["effective_from"]
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "model")
    async with home.client(None) as visitor:
        await sign_in(visitor)
        token = csrf((await visitor.get("/ui/prices")).text)
        form = {"csrf": token, "model": "lab/m", "input_usd": "1", "output_usd": "1", "effective_from": "2026-01-01"}
        there = (await visitor.post("/ui/prices", data=form)).headers["location"]
        assert "counts only until" in (await visitor.get(there)).text


async def test_the_price_book_tells_until_when_a_price_counts(home: House) -> None:
    """One that was set to begin tomorrow stood nowhere on the page: whoever looked set it again."""
    plain = {"input_usd": "2", "output_usd": "8"}
    now = home.clock.now()
    async with home.client() as admin, home.client(None) as visitor:
        for terms in ({"effective_from": now - 9}, {"input_usd": "3", "effective_from": now + 86_400}):
            assert (await admin.put("/api/v1/prices/lab/m", json={**plain, **terms})).status_code == 200
        ends = await admin.put("/api/v1/prices/lab/n", json={**plain, "effective_until": now + 3_600})
        begins = (await admin.get("/api/v1/prices?model=lab/m")).json()["data"][0]["replaced_from"]
        await sign_in(visitor)
        page, sheet = (await visitor.get("/ui/prices")).text, (await visitor.get("/ui/prices.csv")).text
    for until in (begins, ends.json()["effective_until"]):
        assert f"<td>{until}</td>" in page
        assert f",{until}\r\n" in sheet


async def test_a_contract_is_set_and_shown_whole(home: House) -> None:
    """What finance typed in must be readable again, with what holds at the moment."""
    async with home.client() as admin:
        made = await admin.put("/api/v1/prices/lab/m", json={**CONTRACT, "effective_until": "30d"})
        assert made.status_code == 200, made.text
        (line,) = (await admin.get("/api/v1/prices?model=lab/m")).json()["data"]
    assert line["rates"] == {
        "input_usd": "2",
        "output_usd": "8",
        "cached_usd": "0.5",
        "cache_write_usd": "2",
        "cache_write_1h_usd": None,
        "reasoning_usd": "6",
        "audio_input_usd": "40",
        "audio_output_usd": None,
        "image_input_usd": None,
        "image_output_usd": None,
        "above": None,
    }
    assert (line["input_usd"], line["request_usd"], line["source"]) == ("1", "0.001", "set")
    assert [(tier["above"], tier["input_usd"]) for tier in line["tiers"]] == [(1000, "4")]
    assert [(h["days"], h["start"], h["end"], h["input_usd"], h["now"]) for h in line["hours"]] == [
        ("mon,tue,wed,thu,fri,sat,sun", "00:00", "24:00", "1", True)
    ]
    assert (line["service"], line["version"].partition("@")[0]) == ({"batch": "50"}, "set/lab/m+hours1")
    assert line["effective_until"] is not None


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"input_usd": "1"}, "output_usd"),
        ({**CONTRACT, "hours": [{"start": "8", "end": "9:00", "percent": 1}]}, "hours[0].start"),
        ({**CONTRACT, "effective_until": "2000-01-01"}, "effective_until"),
        ({**CONTRACT, "colour_usd": 1}, "colour_usd"),
    ],
)
async def test_terms_that_make_no_sense_are_refused(home: House, body: dict[str, Any], said: str) -> None:
    """The message names what to mend, in OpenAI's shape."""
    async with home.client() as admin:
        answer = await admin.put("/api/v1/prices/lab/m", json=body)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


async def test_a_price_to_come_leaves_the_list_price_of_today(home: House) -> None:
    """The example of docs/prices.md, typed before the provider was configured, made `doctor` say: no price for it."""
    name, later = "openai/gpt-5-mini", home.clock.now() + 864_000
    plain = {"input_usd": "2", "output_usd": "8"}
    async with home.client() as admin:
        made = (await admin.put(f"/api/v1/prices/{name}", json={**plain, "effective_from": later})).json()
        await admin.put("/api/v1/prices/gone/m", json={**plain, "effective_from": later})
        line = (await admin.get("/api/v1/prices", params={"model": name})).json()["data"][0]
        nothing = (await admin.get("/api/v1/prices", params={"model": "nonsense"})).json()["data"][0]
        checked = (await admin.get("/api/v1/prices/check")).json()
    assert (line["source"], line["status"]) == ("bundled", "exact")
    assert line["input_usd"] != made["input_usd"]
    assert line["replaced_from"] == made["effective_from"]
    assert nothing["source"] == "none"
    assert checked["unpriced"] == []  # `gone` is nowhere configured: requests for it are a 404, not a 402


async def test_unpriced_models_come_first_by_what_was_refused(home: House) -> None:
    """The operator's next action is the price that most requests wait for."""
    refused = {"status": 402, "cost_nano": 0, "source": "none", "provider": "", "model_used": ""}
    rows = [request_row(home.clock, n, model="lab/much", **refused) for n in range(3)]
    rows += [request_row(home.clock, 9, model="lab/little", **refused)]
    await happened(home.services.database, rows)
    home.services.prices.price("lab", "openai", "never-recorded", home.clock.now())
    async with home.client() as admin:
        found = (await admin.get("/api/v1/prices/check")).json()
        assert [(one["model"], one["refused"]) for one in found["unpriced"]] == [
            ("lab/much", 3),
            ("lab/little", 1),
            ("lab/never-recorded", 0),
        ]
        assert found["table"]["name"] == "genai-prices"
        for name in ("much", "little", "never-recorded"):
            await admin.put(f"/api/v1/prices/lab/{name}", json={"input_usd": 1, "output_usd": 1})
        assert (await admin.get("/api/v1/prices/check")).json()["unpriced"] == []


@pytest.mark.parametrize(("paid", "missing"), [({}, []), ({"dear": {"route": ["lab/own"]}}, ["lab/own"])])
async def test_what_is_given_away_needs_no_price(home: House, paid: dict[str, Any], missing: list[str]) -> None:
    """`doctor` called an installation broken whose only model was marked free."""
    models = {"m": {"route": ["lab/own"], "free": True}, **paid}
    home.services.settings = Settings(home=home.services.settings.home, models=models)  # pyright: ignore[reportArgumentType] - pydantic reads it
    async with home.client() as admin:
        assert (await admin.get("/api/v1/prices")).json()["unpriced"] == missing
        assert [one["model"] for one in (await admin.get("/api/v1/prices/check")).json()["unpriced"]] == missing


async def test_classes_are_kept_with_the_entry(home: House) -> None:
    """A charge for audio and an hour of cache can be recomputed years later, from its row alone."""
    price = (await home.services.prices.put("lab/m", *terms_of(CONTRACT))).charged(home.clock.now(), "")
    rich = Usage(prompt=500, cached=100, completion=50, reasoning=20, audio_in=7)
    plain = Usage(prompt=500, completion=50)
    cost = await attempt(home, price, rich) + await attempt(home, price, plain)
    assert cost == cost_nano(rich, price) + cost_nano(plain, price)
    async with home.client(await home.key("finance", "")) as finance:
        found = (await finance.post("/api/v1/usage/recompute")).json()
        assert (found["agrees"], found["entries"], found["charged_usd"]) == (True, 2, usd(cost))
        assert [one["price"] for one in found["data"]] == [price.id]
        assert (await finance.post("/api/v1/ledger/verify")).json() == {"agrees": True, "problems": []}
        async with home.services.database.begin() as connection:
            name = (await connection.execute(text("SELECT request_id FROM entry WHERE classes > ''"))).scalar_one()
            (line,) = (await finance.get(f"/api/v1/requests/{name}")).json()["lines"]
            assert (line["classes"], line["price"]["apart"]["audio_in"]) == ({"audio_in": 7}, "20")
            stored = (await connection.execute(text("SELECT classes FROM entry ORDER BY classes"))).scalars().all()
            assert stored == [None, "[0,7,0,0,0]"]
            await connection.execute(text("DROP TRIGGER entry_is_never_changed"))
            await connection.execute(text("UPDATE entry SET classes = NULL"))
        wrong = (await finance.post("/api/v1/usage/recompute")).json()
    assert wrong["agrees"] is False
    (difference,) = wrong["differences"]
    assert nano(difference["charged_usd"]) - nano(difference["right_usd"]) == 7 * (20_000 - 1_000)


async def test_recompute_keeps_to_its_month_and_team(home: House) -> None:
    """A month is what was admitted in it; a team's key proves its own charges only."""
    price = Price(id="p@1", input=1_000, output=1_000, cached_input=1_000, cache_write=1_000)
    await attempt(home, price, Usage(prompt=5))
    await attempt(home, price, Usage(prompt=9), team="other")
    month = "2026-09"
    async with home.client(await home.key("finance", "")) as finance:
        assert (await finance.post(f"/api/v1/usage/recompute?month={month}")).json()["entries"] == 2
        assert (await finance.post("/api/v1/usage/recompute?month=2020-01")).json()["entries"] == 0
        assert (await finance.post("/api/v1/usage/recompute?month=January")).status_code == 400
    async with home.client(await home.key("finance", "acme")) as finance:
        assert (await finance.post(f"/api/v1/usage/recompute?month={month}")).json()["charged_usd"] == "0.000000005"


def terms_of(body: dict[str, Any]) -> tuple[Any, Any]:
    return convert(body, Terms), PriceSetting(actor="fin", effective_from=0.0)


async def test_a_month_under_other_prices_and_models(home: House) -> None:
    """Exact per attempt, told per model, with what had to be assumed; a team sees its own part."""
    price = Price(id="p@1", input=1_000, output=1_000, cached_input=1_000, cache_write=1_000)
    await attempt(home, price, Usage(prompt=5_000, completion=10))
    await attempt(home, price, Usage(prompt=100), team="other", model="n")
    hit = hit_row(home.clock, 1, provider="lab", model_used="m", saved_nano=900, cost_nano=0)
    await happened(home.services.database, [hit])
    contract = {"input_usd": "2", "output_usd": "2", "tiers": [{"above": 1000, "percent": 300}]}
    async with home.client() as admin:
        same = (await admin.post("/api/v1/whatif", json={})).json()
        other = (await admin.post("/api/v1/whatif", json={"prices": {"lab/m": contract, "lab/x": contract}})).json()
        moved = (await admin.post("/api/v1/whatif", json={"models": {"lab/m": "openai/gpt-5-mini"}})).json()
        off = (await admin.post("/api/v1/whatif", json={"cache": {"mode": "off"}})).json()
        for wrong in (
            {"models": {"lab/m": "lab/unheard-of"}},
            {"models": {"m": "lab/m"}},
            {"prices": {"lab/m": {"input_usd": 1}}},
            {"cache": {"hit_rate": 2}},
            {"cache": {"hit_rate": 0.5, "mode": "off"}},
            {"month": "2026-13"},
        ):
            assert (await admin.post("/api/v1/whatif", json=wrong)).status_code == 400, wrong
    async with home.client(await home.key("viewer", "other")) as team:
        own = (await team.post("/api/v1/whatif", json={})).json()
    assert (same["actual_usd"], same["would_usd"], same["assumed"]) == ("0.00000511", "0.00000511", [])
    assert (other["would_usd"], other["unused"]) == (usd(5_010 * 6_000 + 100), ["lab/x"])
    assert [line["model"] for line in other["data"]] == ["lab/m", "lab/n"]
    assert moved["data"][0]["target"] == "openai/gpt-5-mini"
    assert nano(moved["data"][0]["would_usd"]) == 5_000 * 250 + 10 * 2_000
    assert nano(off["difference_usd"]) == 900
    assert (own["actual_usd"], [line["model"] for line in own["data"]]) == ("0.0000001", ["lab/n"])


async def test_what_spend_rests_on(home: House) -> None:
    """Every page can say how much of a sum was counted, and how much was not asked for want of a price."""
    rows = [
        request_row(home.clock, 1, cost_nano=900),
        request_row(home.clock, 2, cost_nano=100, cost_status="estimated"),
        request_row(home.clock, 3, cost_nano=0, status=402, cost_status="unpriced", source="none"),
    ]
    await happened(home.services.database, rows)
    async with home.client() as admin:
        found = (await admin.get("/api/v1/usage/coverage")).json()
        empty = (await admin.get("/api/v1/usage/coverage?month=2020-01")).json()
    assert (found["confirmed_share"], found["estimated_share"]) == (0.9, 0.1)
    assert (found["unpriced_requests"], found["requests"]) == (1, 3)
    assert "local/demo" in found["assumed"]
    assert (empty["confirmed_share"], empty["cost_usd"]) == (None, "0")


async def test_a_measured_engine_has_a_version_of_its_own(home: House) -> None:
    """A price from a benchmark is frozen, labelled, and what break-even is reckoned with."""
    measured = {"prefill_tokens_per_s": 2_000, "decode_tokens_per_s": 100, "hour_usd": "3.60", "busy_share": 0.5}
    async with home.client() as admin:
        made = (await admin.post("/api/v1/prices/engines/local/demo", json=measured)).json()
        assert (made["status"], made["source"], made["input_usd"], made["output_usd"]) == (
            "measured",
            "bench",
            "1",
            "20",
        )
        assert made["version"].startswith("bench/local/demo@")
        even = (await admin.get("/api/v1/prices/break-even?prompt=1000&completion=100")).json()
        assert (even["status"], even["day_usd"], even["request_usd"]) == ("measured", "86.4", "0.0015")
        assert even["requests_per_day_at_most"] == 57_600
        lines = {line["model"]: line for line in even["data"]}
        assert lines["openai/gpt-5-mini"]["requests_per_day"] == 192_000
        assert lines["openai/gpt-5-mini"]["reachable"] is False
        for wrong in ({**measured, "busy_share": 0}, {**measured, "decode_tokens_per_s": -1}):
            assert (await admin.post("/api/v1/prices/engines/local/demo", json=wrong)).status_code == 400
        assert (await admin.post("/api/v1/prices/engines/none/demo", json=measured)).status_code == 404


async def test_a_use_is_calculated_beside_its_hardware(home: House) -> None:
    """The calculator's figures are the ledger's: what a request would be charged, times requests."""
    asked = {"prompt_tokens": 1_000, "completion_tokens": 100, "requests_per_day": 1_000, "hit_rate": "0.5"}
    async with home.client() as admin:
        found = (await admin.post("/api/v1/prices/calculate", json={**asked, "model": "openai/gpt-5-mini"})).json()
        own = (await admin.post("/api/v1/prices/calculate", json={**asked, "model": "chat", "lookups": True})).json()
        wrong = await admin.post("/api/v1/prices/calculate", json={**asked, "model": "local/demo", "hit_rate": 2})
        none = await admin.post("/api/v1/prices/calculate", json={**asked, "model": "lab/none"})
    assert (found["request_usd"], found["day"]["total_usd"], found["month"]["total_usd"]) == (
        "0.00045",
        "0.225",
        "6.75",
    )
    assert (found["day"]["saved_usd"], found["engine"]) == ("0.225", None)
    assert own["engine"]["count"] == 1
    assert nano(own["day"]["lookups_usd"]) > 0
    assert any("is assumed" in line for line in own["assumed"])
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "hit_rate")
    assert none.status_code == 404
