"""What services ask beside their tokens: searches, a region, another model or tier than was asked for."""

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from csv import DictReader
from pathlib import Path
from typing import Any

import pytest
from msgspec import convert
from msgspec.json import decode, encode

from gateway.price_terms import Terms
from gateway.prices import PriceSetting
from policies.money import nano
from tests.flow.test_contract_prices import control
from tests.languages.anthropic import event
from tests.languages.responses import Responses
from tests.live import Live, Told, live, settings
from tests.unit.dialects.test_messages_relay import events_of
from tests.wire_upstream import Answer, Language, Manner, Request, wire_upstream

SAID = [{"type": "text", "text": "Yes."}]
RAN = [
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "bash_code_execution", "input": {"command": "ls"}},
    *SAID,
]
END = {"stop_reason": "end_turn", "stop_sequence": None}
USAGE = {"input_tokens": 100, "output_tokens": 10}
PLAIN = 150_000  # nano-USD of that at Claude Haiku 4.5
ROW = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
ASKED: dict[str, Any] = {"max_tokens": 24, "messages": [{"role": "user", "content": "Is it?"}]}
SEARCHING = {"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 4}]}


class Says:
    """Anthropic's answer with this usage and content, streamed where that is asked for."""

    def __init__(self, usage: dict[str, Any], content: list[dict[str, Any]]) -> None:
        self._usage = {**USAGE, **usage}
        self._content = content

    async def answer(self, asked: Request) -> Answer:
        if not asked.body.get("stream"):
            head = {"type": "message", "id": "msg_up", "role": "assistant", "model": "claude", "usage": self._usage}
            return Answer(body=encode({**head, "content": self._content, **END}))
        told = events_of(self._content, END)
        told[0]["message"]["usage"] = USAGE
        told[-2]["usage"] = self._usage
        sent = [event(one) for one in told]
        return Answer(headers=("content-type: text/event-stream",), opening=sent[0], events=sent[1:])

    def failure(self) -> Answer:
        raise NotImplementedError


@asynccontextmanager
async def served(home: Path, language: Language) -> AsyncGenerator[Live]:
    async with wire_upstream(language, Manner()) as up:
        base = f"http://127.0.0.1:{up.port}"
        providers = {
            "anthropic": {"kind": "anthropic", "base_url": base},
            "openai": {"kind": "openai", "base_url": f"{base}/v1", "responses": True},
            "google": {"kind": "gemini", "base_url": base},
            "groq": {"kind": "groq", "base_url": f"{base}/v1"},
        }
        async with live(settings(home, providers=providers)) as gateway:
            yield gateway


async def charged(gateway: Live, told: Told) -> tuple[int, str]:
    """What the one request cost and how good that is, after the books have been checked."""
    assert told.status == 200, told.raw
    ((entry,), (row,)) = await gateway.entries(), await gateway.rows()
    assert (await control(gateway, "POST", "/api/v1/usage/recompute"))["agrees"]
    assert entry["amount_nano"] <= entry["reserved_nano"]
    assert row["cost_nano"] == entry["amount_nano"]
    return entry["amount_nano"], row["cost_status"]


async def sheet(gateway: Live, path: str) -> dict[str, float]:
    """What a FOCUS export says that each meter cost."""
    headers = {"authorization": "Bearer sk-test-admin-key-of-some-length"}
    async with gateway.client.get(gateway.url + path, headers=headers) as answer:
        rows = DictReader((await answer.text()).splitlines())
        return {row["SkuMeter"]: float(row["BilledCost"]) for row in rows}


def iteration(kind: str, model: str, read: int, wrote: int) -> dict[str, Any]:
    return {"type": kind, "model": model, "input_tokens": read, "output_tokens": wrote, **ROW}


FALLEN = [iteration("message", "claude-haiku-4-5", 90, 0), iteration("fallback_message", "claude-opus-4-8", 100, 10)]
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]], int, str]] = {
    "nothing": ({}, {}, SAID, PLAIN, "exact"),
    "searches": ({"server_tool_use": {"web_search_requests": 3}}, SEARCHING, SAID, PLAIN + 30_000_000, "exact"),
    "fetches": ({"server_tool_use": {"web_fetch_requests": 3}}, {}, SAID, PLAIN, "exact"),
    "region": ({"inference_geo": "us"}, {"inference_geo": "us"}, SAID, PLAIN * 11 // 10, "exact"),
    "region of the workspace": ({"inference_geo": "us"}, {}, SAID, PLAIN * 11 // 10, "exact"),
    "no region": ({"inference_geo": "global"}, {}, SAID, PLAIN, "exact"),
    "fallback": ({"iterations": FALLEN}, {"fallbacks": [{"model": "claude-opus-4-8"}]}, SAID, PLAIN * 5, "exact"),
    "adviser": (
        {"iterations": [iteration("advisor_message", "claude-opus-4-8", 50, 5)]},
        {"tools": [{"type": "advisor_20260301", "name": "advisor", "model": "claude-opus-4-8"}]},
        SAID,
        PLAIN * 3 // 2,
        "estimated",
    ),
    "container": ({}, {"tools": [{"type": "code_execution_20250825", "name": "x"}]}, RAN, PLAIN, "estimated"),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", CASES)
async def test_what_anthropic_bills_beside_the_tokens_is_charged(tmp_path: Path, name: str, stream: bool) -> None:
    """Left out, a bill is higher than the ledger; charged at the wrong model, it is lower."""
    usage, asked, content, cost, status = CASES[name]
    async with served(tmp_path, Says(usage, content)) as gateway:
        body = {**ASKED, "model": "anthropic/claude-haiku-4-5", "stream": stream, **asked}
        assert await charged(gateway, await gateway.post("/v1/messages", body)) == (cost, status)


async def test_a_substitute_must_have_a_price_and_its_length_is_held(tmp_path: Path) -> None:
    """A client may name a dearer model, and let it write more, than the one that is held for."""
    async with served(tmp_path, Says({}, SAID)) as gateway:
        body = {**ASKED, "model": "anthropic/claude-haiku-4-5"}
        told = await gateway.post("/v1/messages", {**body, "fallbacks": [{"model": "claude-unheard-of"}]})
        assert told.status == 402
        assert "anthropic/claude-unheard-of" in told.json["error"]["message"]
        longer = [{"model": "claude-opus-4-8", "max_tokens": 4_000}]
        assert (await gateway.post("/v1/messages", {**body, "fallbacks": longer})).status == 200
        (entry,) = (one for one in await gateway.entries() if one["amount_nano"])
        assert entry["reserved_nano"] > 4_000 * 25_000


@pytest.mark.parametrize("stream", [False, True])
async def test_a_substitute_that_names_its_day_is_charged_at_the_contract(tmp_path: Path, stream: bool) -> None:
    """The client names the model, the answer a day of it: what the operator pays for the one it pays for the other."""
    fallen = [FALLEN[0], iteration("fallback_message", "claude-opus-4-8-20260301", 100, 10)]
    async with served(tmp_path, Says({"iterations": fallen}, SAID)) as gateway:
        terms = convert({"input_usd": "2", "output_usd": "10"}, Terms)
        await gateway.services.prices.put(
            "anthropic/claude-opus-4-8", terms, PriceSetting(actor="test", effective_from=1.0)
        )
        body = {**ASKED, "model": "anthropic/claude-haiku-4-5", "stream": stream}
        told = await gateway.post("/v1/messages", {**body, "fallbacks": [{"model": "claude-opus-4-8"}]})
        assert await charged(gateway, told) == (PLAIN * 2, "exact")
        (entry,) = await gateway.entries()
        assert entry["price"].startswith("set/anthropic/claude-opus-4-8@")


async def test_an_operators_fees_are_its_own(tmp_path: Path) -> None:
    """A contract may price searches otherwise, or not at all: then nobody may believe the sum to be exact."""
    searched = {"server_tool_use": {"web_search_requests": 2}}
    async with served(tmp_path, Says(searched, SAID)) as gateway:
        prices, model = gateway.services.prices, "anthropic/claude-haiku-4-5"
        terms: dict[str, Any] = {"input_usd": "1", "output_usd": "5", "service": {"us": 120, "batch": 50}}
        setting = PriceSetting(actor="test", effective_from=1.0)
        await prices.put(model, convert({**terms, "web_search_usd": "0.004"}, Terms), setting)
        body = {**ASKED, "model": model, **SEARCHING}
        told = await gateway.post("/v1/messages", body)
        assert await charged(gateway, told) == (PLAIN + 8_000_000, "exact")
        shown = await control(gateway, "GET", f"/api/v1/prices?model={model}")
        assert shown["data"][0]["web_search_usd"] == "0.004"
        await prices.put(model, convert(terms, Terms), PriceSetting(actor="test", effective_from=2.0))
        told = await gateway.post("/v1/messages", {**body, "inference_geo": "us"})
        assert told.headers["x-nearhit-cost-status"] == "estimated"
        assert nano(told.headers["x-nearhit-cost-usd"]) == PLAIN * 12 // 10


@pytest.mark.parametrize("uses", [-1_000_000, 10**18])
async def test_a_limit_that_is_none_holds_neither_less_than_nothing_nor_more_than_all(
    tmp_path: Path, uses: int
) -> None:
    """Below nothing it took money out of a hold, so that a budget let through what it could not pay."""
    async with served(tmp_path, Says({}, SAID)) as gateway:
        tools = [{"type": "web_search_20250305", "name": "web_search", "max_uses": uses}]
        body = {**ASKED, "model": "anthropic/claude-haiku-4-5", "tools": tools, "max_tool_calls": uses}
        assert (await charged(gateway, await gateway.post("/v1/messages", body)))[0] == PLAIN
        (entry,) = await gateway.entries()
        assert 64 * 10_000_000 < entry["reserved_nano"] < 10**13


async def test_a_region_is_no_way_to_choose_a_price(tmp_path: Path) -> None:
    """Whoever calls a region after a tier that an operator sells, or names one where nobody heeds it, paid that."""
    terms = convert({"input_usd": "1", "output_usd": "5", "service": {"batch": 50, "us": 60}}, Terms)
    setting = PriceSetting(actor="test", effective_from=1.0)
    async with served(tmp_path / "1", Says({}, SAID)) as gateway:
        await gateway.services.prices.put("anthropic/claude-haiku-4-5", terms, setting)
        body = {**ASKED, "model": "anthropic/claude-haiku-4-5", "inference_geo": "batch"}
        told = await gateway.post("/v1/messages", body)
        assert nano(told.headers["x-nearhit-cost-usd"]) == PLAIN
    async with served(tmp_path / "2", Searched()) as gateway:
        await gateway.services.prices.put("openai/gpt-4o", terms, setting)
        told = await gateway.chat(model="openai/gpt-4o", messages=ASKED["messages"], inference_geo="us")
        assert nano(told.headers["x-nearhit-cost-usd"]) == PLAIN


async def test_a_region_that_an_answer_does_not_tell_is_the_one_asked_for(tmp_path: Path) -> None:
    """An answer that names its tier alone was charged as if it could have been made anywhere."""
    async with served(tmp_path, Says({"service_tier": "standard"}, SAID)) as gateway:
        body = {**ASKED, "model": "anthropic/claude-haiku-4-5", "inference_geo": "us"}
        assert await charged(gateway, await gateway.post("/v1/messages", body)) == (PLAIN * 11 // 10, "exact")


class Billed(Responses):
    """Its answer with what OpenAI tells of tiers and of what its tools did."""

    def __init__(self, more: dict[str, Any]) -> None:
        self._more = more

    async def answer(self, asked: Request) -> Answer:
        told = await super().answer(asked)
        if told.events is None:
            told.body = encode({**decode(told.body), **self._more})
            return told
        for events in (told.events,):
            head, _, data = events[-1].partition(b"\ndata: ")
            last = decode(data)
            last["response"] |= self._more
            events[-1] = b"%b\ndata: %b\n\n" % (head, encode(last))
        return told


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_costs_the_tier_and_the_tools_its_end_tells(tmp_path: Path, stream: bool) -> None:
    """A stream begins before OpenAI knows which tier will answer; the end alone says what will be billed."""
    calls = {"image_gen": {"total_tokens": 0}, "web_search": {"num_requests": 2}}
    async with served(tmp_path, Billed({"service_tier": "default", "tool_usage": calls})) as gateway:
        asked = {"model": "openai/gpt-5-mini", "input": "What is new?", "stream": stream, "service_tier": "priority"}
        told = await gateway.post("/v1/responses", {**asked, "tools": [{"type": "web_search"}]})
        cost, status = await charged(gateway, told)
        (entry,) = await gateway.entries()
        read = entry["prompt"] - entry["cached"]
        assert (cost, status) == (read * 250 + 25 + 12 * 2_000 + 2 * 10_000_000, "exact")
        await gateway.settled()
        month = time.strftime("%Y-%m", time.gmtime())
        meters = await sheet(gateway, f"/api/v1/export/focus?month={month}&format=csv")
        assert meters["Web Searches"] == 2 * 0.01
        if stream:
            last = [line for line in told.raw.decode().split("\n") if line.startswith("data: {")][-1]
            assert round(decode(last[6:])["response"]["usage"]["cost"] * 1e9) == cost


async def test_tools_whose_price_nobody_knows_are_told(tmp_path: Path) -> None:
    """A picture is made by another model at a price of its own, and a container costs by the minute."""
    output = [{"type": "image_generation_call", "id": "ig", "status": "completed", "result": "aGk="}]
    async with served(tmp_path, Billed({"output": output})) as gateway:
        asked = {"model": "openai/gpt-5-mini", "input": "Draw.", "tools": [{"type": "image_generation"}]}
        _, status = await charged(gateway, await gateway.post("/v1/responses", asked))
        assert status == "estimated"
        ((row,), (entry,)) = await gateway.rows(), await gateway.entries()
        assert decode(entry["classes"])[-1] == 1
        found = await control(gateway, "GET", f"/api/v1/requests/{row['id']}")
        assert found["lines"][0]["classes"] == {"unpriced": 1}


class Tiered:
    """Gemini's answer in a tier of its own choice."""

    def __init__(self, tier: str) -> None:
        self._tier = tier

    async def answer(self, asked: Request) -> Answer:
        told = {"content": {"role": "model", "parts": [{"text": "Yes."}]}, "finishReason": "STOP"}
        usage = {"promptTokenCount": 100, "candidatesTokenCount": 10, "serviceTier": self._tier}
        return Answer(body=encode({"candidates": [told], "usageMetadata": usage}))

    def failure(self) -> Answer:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("tier", "percent", "status"),
    [("standard", 100, "exact"), ("priority", 200, "estimated"), ("flex", 50, "estimated")],
)
async def test_googles_tier_is_charged_as_it_answered(tmp_path: Path, tier: str, percent: int, status: str) -> None:
    """It gives way without a word in the status when it is full; its usage says so, and the bill.

    The bundled list has no price of its tiers, and silence would make the dear one cost as much as the usual one.
    """
    async with served(tmp_path, Tiered(tier)) as gateway:
        asked: dict[str, Any] = {"model": "google/gemini-3.8-flash", "messages": ASKED["messages"]}
        told = await gateway.chat(**asked, service_tier="priority")
        assert await charged(gateway, told) == ((100 * 750 + 10 * 3_750) * percent // 100, status)


class Grounded:
    """Gemini's answer after three searches, or what is told of them."""

    def __init__(self, queries: object = ("a", "b", "c")) -> None:
        self._queries = queries

    async def answer(self, asked: Request) -> Answer:
        content = {"role": "model", "parts": [{"text": "Yes."}]}
        grounding = {"webSearchQueries": self._queries, "groundingChunks": [{"web": {"uri": "https://x/"}}]}
        usage = {"promptTokenCount": 100, "candidatesTokenCount": 10, "totalTokenCount": 110}
        told = {"content": content, "finishReason": "STOP", "groundingMetadata": grounding}
        return Answer(body=encode({"candidates": [told], "usageMetadata": usage}))

    def failure(self) -> Answer:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("model", "cost"),
    [("gemini-2.5-pro", 100 * 1_250 + 10 * 10_000 + 35_000_000), ("gemini-3-flash-preview", 80_000 + 3 * 14_000_000)],
)
async def test_grounding_costs_by_search_or_by_prompt(tmp_path: Path, model: str, cost: int) -> None:
    """Google bills older models for the prompt, however often they search, and newer ones for each search."""
    async with served(tmp_path, Grounded()) as gateway:
        tools = [{"type": "google_search", "google_search": {}}]
        told = await gateway.chat(model=f"google/{model}", messages=ASKED["messages"], tools=tools)
        assert (await charged(gateway, told))[0] == cost


async def test_queries_that_are_no_list_are_none(tmp_path: Path) -> None:
    """A number in their place ended the answer as a failure of the gateway's own."""
    async with served(tmp_path, Grounded(5)) as gateway:
        told = await gateway.chat(model="google/gemini-2.5-pro", messages=ASKED["messages"])
        assert await charged(gateway, told) == (100 * 1_250 + 10 * 10_000, "exact")


class Searched:
    """OpenAI's chat answer by a model that searches, which says nothing of how often."""

    async def answer(self, asked: Request) -> Answer:
        said: dict[str, Any] = {"index": 0, "finish_reason": "stop", "logprobs": None}
        head = {"id": "chatcmpl-1", "created": 1, "model": "m"}
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        if not asked.body.get("stream"):
            said["message"] = {"role": "assistant", "content": "Yes."}
            return Answer(body=encode({**head, "object": "chat.completion", "choices": [said], "usage": usage}))
        said["delta"] = {"role": "assistant", "content": "Yes."}
        told = {**head, "object": "chat.completion.chunk", "choices": [said]}
        sent = [b"data: %b\n\n" % encode(one) for one in (told, {**told, "choices": [], "usage": usage})]
        kind = ("content-type: text/event-stream",)
        return Answer(headers=kind, opening=sent[0], events=[sent[1], b"data: [DONE]\n\n"])

    def failure(self) -> Answer:
        raise NotImplementedError


@pytest.mark.parametrize("stream", [False, True])
async def test_a_search_in_chat_is_charged_and_not_called_exact(tmp_path: Path, stream: bool) -> None:
    """How many searches OpenAI bills stands nowhere in the answer, and silence would read as a sum that is right."""
    async with served(tmp_path, Searched()) as gateway:
        asked: dict[str, Any] = {"web_search_options": {}, "messages": ASKED["messages"], "stream": stream}
        told = await gateway.chat(model="openai/gpt-4o", **asked)
        assert await charged(gateway, told) == (100 * 2_500 + 10 * 10_000 + 10_000_000, "estimated")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_model_that_always_searches_need_not_be_asked_to(tmp_path: Path, stream: bool) -> None:
    """OpenAI's search models bill a search for every answer, whatever the request says of it."""
    async with served(tmp_path, Searched()) as gateway:
        told = await gateway.chat(model="openai/gpt-4o-search-preview", messages=ASKED["messages"], stream=stream)
        assert (await charged(gateway, told))[1] == "estimated"
        assert decode((await gateway.entries())[0]["classes"])[-3:] == [1, 0, 1]


EXECUTED = [
    {"index": 0, "type": "search", "arguments": "{}"},
    {"index": 1, "type": "visit", "arguments": "{}"},
    {"index": 2, "type": "search", "arguments": "{}"},
]


class Compound:
    """Groq's answer after such tools, streamed where that is asked for: each is told twice then."""

    def __init__(self, tools: list[dict[str, Any]]) -> None:
        self._tools = tools

    async def answer(self, asked: Request) -> Answer:
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        head = {"id": "stub", "created": 1, "model": "groq/compound"}
        message = {"role": "assistant", "content": "A won.", "executed_tools": self._tools}
        if not asked.body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return Answer(body=encode({**head, "object": "chat.completion", "choices": [choice], "usage": usage}))
        deltas = [{"executed_tools": [tool]} for tool in self._tools for _ in range(2)] + [{"content": "A won."}]
        choices: list[Any] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
        choices.append({"index": 0, "delta": {}, "finish_reason": "stop"})
        told: list[Any] = [{**head, "object": "chat.completion.chunk", "choices": [one]} for one in choices]
        told.append({**head, "object": "chat.completion.chunk", "choices": [], "usage": usage})
        sent = [b"data: %b\n\n" % encode(one) for one in told] + [b"data: [DONE]\n\n"]
        return Answer(headers=("content-type: text/event-stream",), opening=sent[0], events=sent[1:])

    def failure(self) -> Answer:
        raise NotImplementedError


@pytest.mark.parametrize("stream", [False, True])
async def test_tools_that_groq_runs_are_charged(tmp_path: Path, stream: bool) -> None:
    """Its searches have a fee each, which the ledger did not know of; what has no price is said to have none."""
    asked = {"model": "groq/compound", "stream": stream, **ASKED}
    for tools, searches, status in ((EXECUTED, 2, "estimated"), (EXECUTED[:1], 1, "exact"), ([], 0, "exact")):
        home = tmp_path / str(len(tools))
        home.mkdir()
        async with served(home, Compound(tools)) as gateway:
            terms = Terms(input_usd="1", output_usd="2", web_search_usd="0.005")
            await gateway.services.prices.put("groq/compound", terms, PriceSetting(actor="test", effective_from=0.0))
            told = await gateway.post("/v1/chat/completions", asked)
            await gateway.settled()
            cost, good = await charged(gateway, told)
            assert (cost, good) == (100 * 1_000 + 10 * 2_000 + searches * 5_000_000, status)


async def test_a_dry_run_quotes_every_model_that_may_be_paid_for(tmp_path: Path) -> None:
    """The rehearsal told the cost of the model asked for alone, and `ok` where the request itself is refused."""
    dry = {"x-nearhit-dry-run": "1"}
    body: dict[str, Any] = {"model": "anthropic/claude-haiku-4-5", **ASKED}
    dearer = {**body, "fallbacks": [{"model": "claude-opus-4-8"}]}
    async with served(tmp_path, Says({}, SAID)) as gateway:
        one, two = [await gateway.post("/v1/messages", asked, headers=dry) for asked in (body, dearer)]
        (alone,), (place,) = one.json["route"], two.json["route"]
        assert "models" not in alone
        assert [each["model"] for each in place["models"]] == ["claude-haiku-4-5", "claude-opus-4-8"]
        costs = [nano(each["worst_case_usd"]) for each in place["models"]]
        assert costs[1] > costs[0]
        assert nano(place["worst_case_usd"]) == costs[1] == nano(two.json["worst_case_usd"])
        cheap = {"x-nearhit-max-cost-usd": place["models"][0]["worst_case_usd"]}
        assert (await gateway.post("/v1/messages", body, headers=dry | cheap)).json["would_refuse"] is None
        told = await gateway.post("/v1/messages", dearer, headers=dry | cheap)
        assert told.json["would_refuse"]["code"] == "max_cost_exceeded"
        unknown = {**body, "fallbacks": [{"model": "claude-unheard-of"}]}
        told = await gateway.post("/v1/messages", unknown, headers=dry)
        assert told.json["would_refuse"]["code"] == "model_not_priced"
        assert told.json["route"][0]["models"][1]["price"] is None
        assert (await gateway.post("/v1/messages", dearer)).status == 200
        (entry,) = await gateway.entries()
        assert entry["reserved_nano"] == costs[1], "what is held is what was quoted"
