"""What happens near the end of a budget, over a real socket: shorter answers, a cheaper model, then a refusal."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from policies.budget import Budget
from tests.live import PROMPT, Live, live, settings

PROVIDERS = {"up": {"kind": "scripted"}, "cheap": {"kind": "scripted"}}
MODELS = {"smart": {"route": ["up/scripted"]}, "small": {"route": ["cheap/scripted"]}}


async def priced(gateway: Live) -> None:
    """The cheap model costs a thousandth."""
    await gateway.services.prices.set(
        "cheap/scripted", input_usd="0.001", output_usd="0.002", actor="test", effective_from=0.0
    )


async def limit(gateway: Live, nano: int, **more: Any) -> None:
    wanted = Budget(scope=more.pop("scope", "team:acme"), limit_nano=nano, **more)
    await gateway.services.ledger.set_budget(wanted, "test")


async def explained(gateway: Live, request_id: str) -> dict[str, Any]:
    await gateway.settled()
    headers = {"authorization": "Bearer sk-test-admin-key-of-some-length"}
    async with gateway.client.get(f"{gateway.url}/api/v1/requests/{request_id}", headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        return (await answer.json())["why"]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_is_as_long_as_the_budget_can_pay_for(tmp_path: Path, stream: bool) -> None:
    """A client that names no length gets a shorter answer and the reason, not a refusal; and nothing is overspent."""
    async with live(settings(tmp_path, upstream={"tokens": 200})) as gateway:
        await limit(gateway, 300_000)
        told = await gateway.chat(stream=stream, messages=[{"role": "user", "content": "Tell me a long story"}])
        assert told.status == 200, told.raw
        most = int(told.headers["x-nearhit-max-tokens"])
        assert 16 <= most < 200
        assert told.headers["x-nearhit-max-tokens-reason"] == "budget team:acme"
        why = {"limited_by": "budget", "budget": "team:acme", "max_tokens": most}
        if stream:
            ends = [event for event in told.events[:-1] if event["choices"] and event["choices"][0]["finish_reason"]]
            assert [(event["choices"][0]["finish_reason"], event["nearhit"]) for event in ends] == [("length", why)]
            assert sum("nearhit" in event for event in told.events[:-1]) == 1
        else:
            assert told.json["choices"][0]["finish_reason"] == "length"
            assert told.json["nearhit"] == why
        (entry,) = await gateway.entries()
        assert entry["amount_nano"] <= 300_000
        detail = await explained(gateway, told.headers["x-request-id"])
        assert detail["max_tokens"] == why
        again = await gateway.chat(stream=stream, messages=[{"role": "user", "content": "Tell me a long story"}])
        assert again.headers.get("x-nearhit-cache") != "hit-exact"


async def test_what_the_client_asked_for_is_not_shortened(tmp_path: Path) -> None:
    """Half of what was asked for would be a wrong answer: such a request is refused as before."""
    async with live(settings(tmp_path)) as gateway:
        await limit(gateway, 300_000)
        refused = await gateway.chat(max_tokens=1_000)
        assert (refused.status, refused.json["error"]["code"]) == (429, "insufficient_quota")
        plenty = await gateway.chat(max_tokens=20)
        assert "x-nearhit-max-tokens" not in plenty.headers


async def test_with_no_room_for_an_answer_it_is_a_refusal(tmp_path: Path) -> None:
    """A handful of tokens is no answer, and the prompt would cost money all the same."""
    async with live(settings(tmp_path)) as gateway:
        await limit(gateway, 140_000)
        assert (await gateway.chat()).status == 429
        assert await gateway.entries() == []


async def test_a_cheaper_model_answers_instead_of_a_refusal(tmp_path: Path) -> None:
    """The app keeps working at the end of the month, and is told what happened; the limit still holds."""
    chosen = settings(tmp_path, providers=PROVIDERS, models=MODELS)
    async with live(chosen) as gateway:
        await priced(gateway)
        await limit(gateway, 100_000, degrade_to="small", degrade_at=1.0)
        told = await gateway.chat(model="smart", max_tokens=100)
        assert told.status == 200, told.raw
        assert told.headers["x-nearhit-degraded"] == "team:acme; from=smart; to=small"
        assert told.headers["x-nearhit-provider"] == "cheap"
        assert told.json["model"] == "small"
        (row,) = await gateway.rows()
        assert (row["model"], row["provider"], row["status"]) == ("smart", "cheap", 200)
        (entry,) = await gateway.entries()
        assert entry["amount_nano"] <= 100_000
        detail = await explained(gateway, told.headers["x-request-id"])
        assert detail["degraded"]["to"] == "small"
        await limit(gateway, 1, degrade_to="small", degrade_at=1.0)
        assert (
            await gateway.chat(model="smart", max_tokens=100, messages=[{"role": "user", "content": "x"}])
        ).status == 429


async def test_from_a_share_on_the_cheaper_model_is_asked_and_kept_apart(tmp_path: Path) -> None:
    """An answer of the cheap model must never be served later as one of the dear model, nor the reverse forgotten."""
    chosen = settings(tmp_path, providers=PROVIDERS, models=MODELS)
    async with live(chosen) as gateway:
        await priced(gateway)
        await limit(gateway, 10_000_000, degrade_to="small", degrade_at=0.5)
        first = await gateway.chat(model="smart", max_tokens=50)
        assert "x-nearhit-degraded" not in first.headers
        await limit(gateway, 100, degrade_to="small", degrade_at=0.5, mode="soft")
        hit = await gateway.chat(model="smart", max_tokens=50)
        assert hit.headers["x-nearhit-cache"] == "hit-exact"
        assert "x-nearhit-degraded" not in hit.headers
        other = [{"role": "user", "content": "Something else"}]
        less = await gateway.chat(model="smart", max_tokens=50, messages=other)
        assert less.headers["x-nearhit-degraded"] == "team:acme; from=smart; to=small"
        await gateway.settled()
        for _ in range(2):
            again = await gateway.chat(model="smart", max_tokens=50, messages=other)
            assert again.headers["x-nearhit-cache"] == "hit-exact"
            assert again.headers["x-nearhit-provider"] == "cheap"
        await gateway.services.ledger.remove_budget("team:acme", "test")
        fresh = await gateway.chat(model="smart", max_tokens=50, messages=other)
        assert (fresh.headers["x-nearhit-cache"], fresh.headers["x-nearhit-provider"]) == ("miss", "up")


async def test_a_follower_is_not_refused_for_its_leaders_budget(tmp_path: Path) -> None:
    """Identical requests share one answer; a refusal belongs to the one whose budget is empty."""
    chosen = settings(tmp_path, upstream={"ttft_ms": 30})
    async with live(chosen) as gateway:
        rich = await gateway.new_key("acme", "app")
        poor = gateway.key.split("-")[2]
        await limit(gateway, 1, scope=f"key:{poor}")
        keys = (None, rich, None, rich, rich)
        told = await asyncio.gather(*(gateway.chat(key=key, messages=PROMPT, max_tokens=30) for key in keys))
        assert {one.status for one, key in zip(told, keys, strict=True) if key is rich} == {200}
        assert (await gateway.chat(max_tokens=30, messages=[{"role": "user", "content": "Alone"}])).status == 429
