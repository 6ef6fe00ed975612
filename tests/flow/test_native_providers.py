"""Upstreams of other languages behind the whole gateway: one wire for clients, exact money, refusals and failover."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from msgspec import Struct
from msgspec.json import encode
from openai import AsyncOpenAI

from tests.flow.test_batches import client_of, line, lines, made, over
from tests.languages.anthropic import Anthropic, event
from tests.languages.azure import Azure
from tests.languages.bedrock import Bedrock
from tests.languages.gemini import Gemini
from tests.live import Live, live, settings
from tests.unit.dialects.test_messages_relay import RICH, STOP, USAGE, events_of
from tests.wire_upstream import Answer, Language, Manner, Request, WireUpstream, wire_upstream

PROMPT = [{"role": "user", "content": "Say something."}]


class Service(Struct, frozen=True):
    """A language, one of its models, and what it costs in nano-USD per token read and written."""

    language: Language
    model: str
    read: int
    written: int


SERVICES = {
    "anthropic": Service(Anthropic(), "claude-haiku-4-5", 1_000, 5_000),
    "azure": Service(Azure(frozenset({"gpt-4o"})), "gpt-4o", 2_500, 10_000),
    "bedrock": Service(Bedrock(), "amazon.nova-lite-v1:0", 60, 240),
    "gemini": Service(Gemini(), "gemini-2.5-pro", 1_250, 10_000),
}


@asynccontextmanager
async def served(tmp_path: Path, kind: str, **manner: Any) -> AsyncGenerator[tuple[Live, WireUpstream]]:
    """The gateway before one such upstream; the route `safe` has a scripted one as its second choice."""
    service = SERVICES[kind]
    async with wire_upstream(service.language, Manner(**manner)) as up:
        providers = {
            kind: {"kind": kind, "base_url": f"http://127.0.0.1:{up.port}"},
            "up": {"kind": "scripted"},
        }
        models = {"safe": {"route": [f"{kind}/{service.model}", "up/scripted"]}}
        async with live(settings(tmp_path, providers=providers, models=models)) as gateway:
            yield gateway, up


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", sorted(SERVICES))
async def test_an_answer_is_openais_and_costs_its_tokens(tmp_path: Path, kind: str, stream: bool) -> None:
    """A client sees one wire whatever stands behind it, and the ledger has the list price of exactly those tokens."""
    service = SERVICES[kind]
    async with served(tmp_path, kind) as (gateway, _):
        name = f"{kind}/{service.model}"
        asked: dict[str, Any] = {"model": name, "messages": PROMPT, "max_completion_tokens": 12}
        if stream:
            asked |= {"stream": True, "stream_options": {"include_usage": True}}
        told = await gateway.chat(**asked)
        assert told.status == 200, told.raw
        if stream:
            *before, last = told.events[:-1]
            assert told.events[-1] == "[DONE]"
            assert before[0]["choices"][0]["delta"]["role"] == "assistant"
            assert before[-1]["choices"][0]["finish_reason"] == "length"
            assert {event["model"] for event in before} == {name}
            usage = last["usage"]
        else:
            assert told.json["model"] == name
            assert told.json["choices"][0]["finish_reason"] == "length"
            usage = told.json["usage"]
            assert told.headers["x-nearhit-cost-status"] == "exact"
        assert usage["completion_tokens"] == 12
        (row,), (entry,) = await gateway.rows(), await gateway.entries()
        expected = usage["prompt_tokens"] * service.read + usage["completion_tokens"] * service.written
        assert row["cost_nano"] == entry["amount_nano"] == expected


@pytest.mark.parametrize("stream", [False, True])
async def test_a_model_that_reasons_takes_the_limit_that_was_put_in(tmp_path: Path, stream: bool) -> None:
    """Whoever names no length gets one put in: under the older name OpenAI's newer models refuse the whole request."""
    async with wire_upstream(Azure(frozenset({"gpt-5-mini"})), Manner()) as up:
        providers = {"azure": {"kind": "azure", "base_url": f"http://127.0.0.1:{up.port}"}}
        async with live(settings(tmp_path, providers=providers)) as gateway:
            told = await gateway.chat(model="azure/gpt-5-mini", messages=PROMPT, stream=stream)
            assert told.status == 200, told.raw
            (entry,) = await gateway.entries()
            assert (entry["source"], entry["ended"]) == ("provider", "complete")


@pytest.mark.parametrize("kind", ["anthropic", "bedrock", "gemini"])
async def test_what_cannot_be_honoured_is_refused_before_it_costs(tmp_path: Path, kind: str) -> None:
    """The refusal names the field as the client wrote it, and nothing was sent or charged."""
    async with served(tmp_path, kind) as (gateway, up):
        told = await gateway.chat(model=f"{kind}/{SERVICES[kind].model}", messages=PROMPT, logit_bias={"1": 5})
        assert told.status == 400
        assert told.json["error"]["param"] == "logit_bias"
        assert told.json["error"]["code"] == "unsupported_parameter"
        assert up.heard == []
        assert sum(entry["amount_nano"] for entry in await gateway.entries()) == 0


@pytest.mark.parametrize("kind", sorted(SERVICES))
async def test_an_upstream_that_is_overloaded_is_passed_over(tmp_path: Path, kind: str) -> None:
    """The second choice of a route answers, and the first one's refusal costs nothing."""
    async with served(tmp_path, kind, fails=True) as (gateway, up):
        told = await gateway.chat(model="safe", messages=PROMPT)
        assert told.status == 200, told.raw
        assert len(up.heard) == 1
        usage = told.json["usage"]
        (row,) = await gateway.rows()
        assert row["cost_nano"] == usage["prompt_tokens"] * 1_000 + usage["completion_tokens"] * 2_000


@pytest.mark.parametrize("kind", sorted(SERVICES))
async def test_a_cut_answer_is_told_and_never_kept(tmp_path: Path, kind: str) -> None:
    """A client must see that its answer broke off, the next one must be asked afresh, and the money is an estimate."""
    async with served(tmp_path, kind, cut=True) as (gateway, up):
        for _ in range(2):
            told = await gateway.chat(
                model=f"{kind}/{SERVICES[kind].model}", messages=PROMPT, stream=True, max_completion_tokens=12
            )
            assert told.status == 200
            assert "[DONE]" not in told.events
            assert told.events[-1]["error"]["code"] == "upstream_disconnected"
            await gateway.settled()
        assert len(up.heard) == 2
        assert all(row["cost_nano"] > 0 for row in await gateway.rows())


async def test_gemini_embeds_in_openais_shape_for_what_it_counts(tmp_path: Path) -> None:
    """OpenAI's clients ask for base64 and for a thousand texts at once; Google takes a hundred and tells no usage."""
    async with (
        served(tmp_path, "gemini") as (gateway, up),
        AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.key, max_retries=0) as client,
    ):
        texts = [f"text {number}" for number in range(250)]
        asked: Any = {"model": "gemini/gemini-embedding-001", "input": texts, "dimensions": 3}
        told = await client.embeddings.create(**asked)
        assert [row.index for row in told.data] == list(range(250))
        assert told.data[7].embedding == [len(texts[7]) / 8 + place for place in range(3)]
        assert (told.usage.prompt_tokens, len(up.heard)) == (500, 4)
        as_floats = await client.embeddings.create(**asked, encoding_format="float", extra_body={"taskType": "X"})
        assert as_floats.data[7].embedding == told.data[7].embedding
        assert up.heard[-2].body["requests"][0]["taskType"] == "X"
        refused = await gateway.post("/v1/embeddings", {**asked, "input": [1, 2]})
        assert (refused.status, refused.json["error"]["param"]) == (400, "input")
        first, *_ = await gateway.rows()
        assert first["cost_nano"] == 500 * 150


async def test_bedrock_embeds_in_openais_shape_for_what_it_counts(tmp_path: Path) -> None:
    """Titan takes one text at a time, Cohere 96; each call counts, and the sum is what is charged."""
    async with (
        served(tmp_path, "bedrock") as (gateway, up),
        AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.key, max_retries=0) as client,
    ):
        texts = [f"text {number}" for number in range(100)]
        titan: Any = {"model": "bedrock/amazon.titan-embed-text-v2:0", "input": texts, "dimensions": 3}
        told = await client.embeddings.create(**titan)
        assert [row.index for row in told.data] == list(range(100))
        assert told.data[7].embedding == [len(texts[7]) / 8 + place for place in range(3)]
        assert (told.usage.prompt_tokens, len(up.heard)) == (200, 100)
        assert all("titan-embed-text-v2%3A0/invoke" in heard.path for heard in up.heard)
        await gateway.services.prices.set(
            "bedrock/eu.cohere.embed-v4:0", input_usd="0.12", output_usd="0", actor="test", effective_from=0.0
        )
        cohere: Any = {**titan, "model": "bedrock/eu.cohere.embed-v4:0"}
        told = await client.embeddings.create(**cohere, extra_body={"input_type": "search_query"})
        assert told.data[99].embedding == [len(texts[99]) / 8 + place for place in range(3)]
        assert (told.usage.prompt_tokens, [len(heard.body["texts"]) for heard in up.heard[100:]]) == (200, [96, 4])
        assert up.heard[-1].body["input_type"] == "search_query"
        chat = await gateway.post("/v1/embeddings", {**titan, "model": f"bedrock/{SERVICES['bedrock'].model}"})
        assert (chat.status, chat.json["error"]["code"]) == (400, "unsupported_operation")
        refused = await gateway.post("/v1/embeddings", {**titan, "input": [1, 2]})
        assert (refused.status, refused.json["error"]["param"]) == (400, "input")
        rows = {row["model"]: row["cost_nano"] for row in await gateway.rows() if row["status"] == 200}
        assert rows == {titan["model"]: 200 * 20, cohere["model"]: 200 * 120}


async def test_anthropic_counts_the_tokens_of_its_models(tmp_path: Path) -> None:
    """A coding agent refuses files and shortens conversations by this number, so four times too much is a fault."""
    async with served(tmp_path, "anthropic") as (gateway, up):
        asked: dict[str, Any] = {"model": "anthropic/claude-haiku-4-5", "messages": PROMPT, "max_tokens": 5}
        told = await gateway.post("/v1/messages/count_tokens", {**asked, "thinking": {"type": "adaptive"}})
        assert (told.headers["x-nearhit-token-count"], told.json["input_tokens"]) == ("exact", 4_011)
        assert up.heard[-1].body["thinking"] == {"type": "adaptive"}
    async with served(tmp_path, "anthropic", fails=True) as (gateway, _):
        told = await gateway.post("/v1/messages/count_tokens", asked)
        assert (told.headers["x-nearhit-token-count"], told.json["input_tokens"] < 100) == ("estimate", True)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])
async def test_a_faster_answer_costs_what_it_costs(tmp_path: Path, path: str, stream: bool) -> None:
    """Anthropic sells speed at a price of its own; agents ask for it, and no budget must be overspent by it."""
    async with served(tmp_path, "anthropic") as (gateway, up):
        asked = {"model": "anthropic/claude-fable-5-2", "max_tokens": 24, "messages": PROMPT, "stream": stream}
        for speed in ({}, {"speed": "fast"}):
            told = await gateway.post(path, {**asked, **speed}, headers={"x-nearhit-cache": "off"})
            assert told.status == 200, told.raw
        assert up.heard[-1].body["speed"] == "fast"
        usual, fast = (row["cost_nano"] for row in await gateway.rows())
        assert fast == 2 * usual > 0


async def test_a_faster_answer_costs_that_in_a_batch_too(tmp_path: Path) -> None:
    """Lines of batches were charged at the usual price, half of what Anthropic asks."""
    async with served(tmp_path, "anthropic") as (gateway, up), client_of(gateway) as client:
        for speed in ({}, {"speed": "fast"}):
            row = line("x", model="anthropic/claude-fable-5-2", max_tokens=24, **speed)
            await over(client, await made(client, lines(row)))
        assert up.heard[-1].body["speed"] == "fast"
        usual, fast = (row["cost_nano"] for row in await gateway.rows())
        assert fast == 2 * usual > 0


class _Searching(Anthropic):
    """Answers as a search would, whole or streamed."""

    async def answer(self, asked: Request) -> Answer:
        if asked.body is None or not asked.body.get("stream"):
            head = {"type": "message", "id": "msg_up", "role": "assistant", "model": "claude", "usage": USAGE}
            return Answer(body=encode({**head, "content": RICH, **STOP}))
        events = [event(told) for told in events_of(RICH, STOP)]
        return Answer(headers=("content-type: text/event-stream",), opening=events[0], events=events[1:])


async def test_what_anthropics_tools_did_comes_back_to_its_clients(tmp_path: Path) -> None:
    """`pause_turn`, searches, citations and shortened conversations: a client must send all of it back to go on."""
    async with wire_upstream(_Searching(), Manner()) as up:
        base = f"http://127.0.0.1:{up.port}"
        providers = {"anthropic": {"kind": "anthropic", "base_url": base}, "up": {"kind": "scripted"}}
        models = {"safe": {"route": ["up/scripted", "anthropic/claude-haiku-4-5"]}}
        async with (
            live(settings(tmp_path, providers=providers, models=models)) as gateway,
            AsyncAnthropic(base_url=gateway.url, api_key=gateway.key, max_retries=0) as client,
        ):
            search: Any = {"type": "web_search_20250305", "name": "web_search"}
            asked: Any = {"model": "safe", "max_tokens": 90, "tools": [search]}
            question: Any = {"role": "user", "content": "Look it up."}
            whole = await client.beta.messages.create(**asked, messages=[question])
            async with client.beta.messages.stream(**asked, messages=[question]) as stream:
                streamed = await stream.get_final_message()
            for message in (whole, streamed):
                assert [block.model_dump(exclude_unset=True) for block in message.content] == RICH
                assert message.stop_reason == "pause_turn"
                assert message.container is not None
            said: Any = {"role": "assistant", "content": [block.model_dump() for block in whole.content]}
            await client.beta.messages.create(**asked, messages=[question, said])
            assert up.heard[-1].body["messages"][1]["content"][3]["type"] == "web_search_tool_result"
            told = await gateway.post("/v1/messages", {**asked, "model": "up/scripted", "messages": [question]})
            assert (told.status, told.json["error"]["param"]) == (400, "tools[0].type")


async def test_anthropics_own_clients_reach_it_untranslated(tmp_path: Path) -> None:
    """Cache marks, thinking and betas are worth money to a coding agent and have no counterpart in between."""
    async with served(tmp_path, "anthropic") as (gateway, up):
        body = {
            "model": "anthropic/claude-haiku-4-5",
            "max_tokens": 24,
            "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Hi.", "cache_control": {"type": "x"}}]}
            ],
            "thinking": {"type": "adaptive"},
            "context_management": {"edits": []},
            "tools": [{"type": "web_search_20250305", "name": "web_search"}, {"name": "f", "input_schema": {}}],
        }
        headers = {"anthropic-beta": "one-2025,two-2025", "anthropic-version": "2023-06-01"}
        told = await gateway.post("/v1/messages?beta=true", body, headers=headers)
        assert told.status == 200, told.raw
        assert told.json["content"][0]["type"] == "text"
        assert told.json["model"] == body["model"]
        assert "x-nearhit-ignored" not in told.headers
        sent = up.heard[-1]
        assert sent.body == {**body, "model": "claude-haiku-4-5", "stream": False}
        assert sent.headers["anthropic-beta"] == "one-2025,two-2025"
        streamed = await gateway.post("/v1/messages", {**body, "stream": True}, headers=headers)
        assert streamed.raw.endswith(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')
        (first, _) = await gateway.entries()
        assert first["amount_nano"] > 0
