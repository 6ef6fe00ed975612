"""A contract on the way of a request: what is reserved, charged and told, and what is refused for want of a price."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
from msgspec import convert

from gateway.price_terms import Terms
from gateway.prices import PriceSetting
from policies.money import nano
from tests.live import Live, live, settings
from tests.unit.upstream.raw_upstream import Heard, raw_upstream

CONTRACT = {
    "input_usd": "1",
    "output_usd": "2",
    "request_usd": "0.001",
    "tiers": [{"above": 100, "percent": 300}],
    "hours": [{"start": "00:00", "end": "24:00", "percent": 200}],
    "service": {"batch": 50},
}


encode = msgspec.json.encode


async def contract(gateway: Live) -> None:
    terms = convert(CONTRACT, Terms)
    await gateway.services.prices.put("up/scripted", terms, PriceSetting(actor="test", effective_from=1.0))


async def control(gateway: Live, method: str, path: str) -> Any:
    headers = {"authorization": "Bearer sk-test-admin-key-of-some-length"}
    async with gateway.client.request(method, gateway.url + path, headers=headers) as answer:
        return await answer.json()


async def test_hours_tiers_and_services_are_charged_as_written(tmp_path: Path) -> None:
    """Each request is charged at the version of its hour, its service tier and its length, and all of it recomputes."""
    async with live(settings(tmp_path, upstream={"tokens": 5})) as gateway:
        await contract(gateway)
        long = [{"role": "user", "content": "word " * 150}]
        told = [
            await gateway.chat(),
            await gateway.chat(service_tier="batch", temperature=0.5),
            await gateway.chat(messages=long),
        ]
        costs: list[int] = []
        for one, factor in zip(told, (2, 1, 6), strict=True):
            usage = one.json["usage"]
            fee = 500_000 if factor == 1 else 1_000_000
            assert usage["completion_tokens"] == 5
            costs.append(factor * (usage["prompt_tokens"] * 1_000 + 5 * 2_000) + fee)
            assert nano(one.headers["x-nearhit-cost-usd"]) == costs[-1]
        entries = await gateway.entries()
        assert sorted(entry["amount_nano"] for entry in entries) == sorted(costs)
        assert {entry["price"].partition("@")[0] for entry in entries} == {
            "set/up/scripted+hours1",
            "set/up/scripted+batch+hours1",
        }
        assert all(entry["amount_nano"] <= entry["reserved_nano"] for entry in entries)
        found = await control(gateway, "POST", "/api/v1/usage/recompute")
        assert (found["agrees"], found["entries"]) == (True, 3)


async def test_the_tier_that_answered_is_charged(tmp_path: Path) -> None:
    """A provider that is too busy for the dear tier answers in the usual one and bills that; its answer says so."""
    told: dict[str, object] = {"id": "c-1", "object": "chat.completion", "created": 1, "model": "m"}
    told["choices"] = [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}]
    told["usage"] = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}

    async def answer(writer: asyncio.StreamWriter, heard: Heard) -> None:
        body = encode({**told, "service_tier": "default" if b"quick" in heard.body else "priority"})
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)

    async with raw_upstream(answer) as upstream:
        lab: Any = {"kind": "openai", "base_url": upstream.url, "api_key": "none"}
        async with live(settings(tmp_path, providers={"lab": lab})) as gateway:
            terms = convert({"input_usd": "1", "output_usd": "2", "service": {"priority": 300}}, Terms)
            await gateway.services.prices.put("lab/m", terms, PriceSetting(actor="test", effective_from=1.0))
            quick = [{"role": "user", "content": "quick"}]
            usual = await gateway.chat(model="lab/m", messages=quick, service_tier="priority")
            dear = await gateway.chat(model="lab/m", service_tier="priority")
            assert [nano(one.headers["x-nearhit-cost-usd"]) for one in (usual, dear)] == [20_000, 60_000]
            entries = {entry["amount_nano"]: entry for entry in await gateway.entries()}
            assert entries[20_000]["reserved_nano"] > 20_000
            assert {cost: entry["price"].partition("@")[0] for cost, entry in entries.items()} == {
                20_000: "set/lab/m",
                60_000: "set/lab/m+priority",
            }
            found = await control(gateway, "POST", "/api/v1/usage/recompute")
            assert (found["agrees"], found["entries"]) == (True, 2)


async def test_what_was_refused_for_want_of_a_price_is_first_on_the_list(tmp_path: Path) -> None:
    """A model nobody has priced must be seen by the operator, not only by the client whose request was refused."""
    lab = {"kind": "openai", "base_url": "http://127.0.0.1:9/v1", "api_key": "none"}
    models = {"fast": {"route": ["lab/new"]}}
    providers = {"up": {"kind": "scripted"}, "lab": lab}
    async with live(settings(tmp_path, providers=providers, models=models)) as gateway:
        for model in ("fast", "lab/new"):
            assert (await gateway.chat(model=model)).status == 402
        for _ in range(100):  # a row is recorded after its answer has left
            if len(await gateway.rows()) == 2:
                break
        found = await control(gateway, "GET", "/api/v1/prices/check")
        assert found["unpriced"] == [{"model": "lab/new", "asked": ["fast", "lab/new"], "refused": 2}]
        coverage = await control(gateway, "GET", "/api/v1/usage/coverage")
        assert (coverage["unpriced_requests"], coverage["cost_usd"]) == (2, "0")
