"""OpenAI's Responses as an upstream: clients of that dialect reach it as they came, others where only it answers."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.languages.responses import Responses
from tests.live import Live, live, settings
from tests.wire_upstream import Manner, WireUpstream, wire_upstream

FUNCTION = {"name": "look", "parameters": {"type": "object"}}
SEARCH = {"type": "web_search", "search_context_size": "low"}


@asynccontextmanager
async def served(home: Path, **manner: Any) -> AsyncGenerator[tuple[Live, WireUpstream]]:
    async with wire_upstream(Responses(), Manner(**manner)) as up:
        base = f"http://127.0.0.1:{up.port}/v1"
        providers = {
            "openai": {"kind": "openai", "base_url": base, "responses": True},
            "up": {"kind": "scripted"},
        }
        models = {
            "agent": {"route": ["openai/gpt-5.6-sol"], "free": True},
            "codex": {"route": ["openai/gpt-5-codex"], "free": True},
            "safe": {"route": ["up/scripted", "openai/gpt-5-codex"], "free": True},
            "other": {"route": ["up/scripted"], "free": True},
        }
        async with live(settings(home, providers=providers, models=models)) as gateway:
            yield gateway, up


def client_of(gateway: Live) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.key, max_retries=0)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_reaches_openai_as_it_came_and_comes_back_whole(tmp_path: Path, stream: bool) -> None:
    """Searches, sealed thoughts and citations are worth the client's money, and chat has no words for them."""
    async with served(tmp_path) as (gateway, up), client_of(gateway) as client:
        asked: dict[str, Any] = {
            "model": "codex",
            "input": [{"role": "user", "content": "Hi."}],
            "tools": [SEARCH],
            "reasoning": {"effort": "low", "summary": "auto"},
            "include": ["web_search_call.action.sources"],
        }
        if stream:
            final: Any = None
            async with client.responses.stream(**asked) as events:
                seen = [event.type async for event in events]
                final = await events.get_final_response()
            assert seen[0] == "response.created"
            assert seen[-1] == "response.completed"
        else:
            final = await client.responses.create(**asked)
        assert [item.type for item in final.output] == ["reasoning", "web_search_call", "message"]
        assert final.output[0].encrypted_content == "sealed"
        assert final.output[2].content[0].annotations[0].url == "https://x/"
        assert (final.model, final.store) == ("codex", True)
        assert final.id != "resp_up"
        assert (final.usage.output_tokens, final.usage.output_tokens_details.reasoning_tokens) == (12, 5)
        sent = up.heard[-1].body
        assert sent["tools"] == [SEARCH]
        assert (sent["model"], sent["store"], sent["include"]) == ("gpt-5-codex", False, asked["include"])
        kept = await client.responses.retrieve(final.id)
        assert [item.type for item in kept.output] == [item.type for item in final.output]


async def test_a_conversation_goes_on_with_its_sealed_thoughts(tmp_path: Path) -> None:
    """What is kept here is unknown at OpenAI: it is sent again, without names of ours, thoughts and searches too."""
    async with served(tmp_path) as (gateway, up), client_of(gateway) as client:
        first = await client.responses.create(model="codex", input="Hi.", tools=[FUNCTION | {"type": "function"}])  # pyright: ignore[reportArgumentType]
        result = {"type": "function_call_output", "call_id": "call_up", "output": "42"}
        second = await client.responses.create(model="codex", input=[result], previous_response_id=first.id)  # pyright: ignore[reportArgumentType]
        assert second.previous_response_id == first.id
        kinds = [item.get("type") for item in up.heard[-1].body["input"]]
        assert kinds == ["message", "reasoning", "web_search_call", "message", "function_call", "function_call_output"]


async def test_sealed_thoughts_of_earlier_turns_are_held_for(tmp_path: Path) -> None:
    """They are read as input with every turn: a hold that knew of the words alone would be overspent."""
    async with served(tmp_path) as (gateway, _), client_of(gateway) as client:
        first = await client.responses.create(model="openai/gpt-5-codex", input="Think long.")
        again = {"model": "openai/gpt-5-codex", "input": "More.", "previous_response_id": first.id}
        told = await gateway.post("/v1/responses", again, headers={"x-nearhit-dry-run": "1"})
        assert float(told.json["worst_case_usd"]) > 0.075, told.json  # 60,000 bytes, a token each, at 1.25 USD


async def test_an_equal_question_is_answered_from_the_cache_in_full(tmp_path: Path) -> None:
    """A kept answer is told with the items it came with, streamed or not."""
    async with served(tmp_path) as (gateway, up), client_of(gateway) as client:
        asked: Any = {"model": "codex", "input": "Hi.", "temperature": 0, "tools": [SEARCH]}
        first = await client.responses.create(**asked)
        again = await client.responses.create(**asked)
        async with client.responses.stream(**asked) as events:
            third = await events.get_final_response()
        assert len(up.heard) == 1
        told = [[item.model_dump() for item in found.output] for found in (first, again, third)]
        assert told[0] == told[1]
        assert [item["type"] for item in told[2]] == [item["type"] for item in told[0]]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_that_openai_answers_nowhere_else_is_asked_as_a_response(tmp_path: Path, stream: bool) -> None:
    """Its newer models refuse functions in chat completions, and some answer no chat at all."""
    async with served(tmp_path) as (gateway, up):
        asked: dict[str, Any] = {
            "messages": [{"role": "system", "content": "Brief."}, {"role": "user", "content": "Hi."}],
            "tools": [{"type": "function", "function": FUNCTION}],
            "reasoning_effort": "low",
            "max_completion_tokens": 400,
            "stream": stream,
        }
        told = await gateway.chat(model="agent", **asked)
        assert told.status == 200, told.raw
        sent = up.heard[-1].body
        assert sent["tools"] == [{"type": "function", **FUNCTION, "strict": False}]
        assert (sent["reasoning"], sent["max_output_tokens"]) == ({"effort": "low"}, 400)
        if stream:
            deltas = [choice["delta"] for event in told.events[:-1] for choice in event["choices"]]
            calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
            assert "".join(call["function"].get("arguments", "") for call in calls) == '{"a":1}'
            thoughts = [block for delta in deltas for block in delta.get("thinking_blocks", [])]
        else:
            message = told.json["choices"][0]["message"]
            assert message["tool_calls"][0]["id"] == "call_up"
            assert told.json["choices"][0]["finish_reason"] == "tool_calls"
            thoughts = message["thinking_blocks"]
            assert told.json["usage"]["completion_tokens_details"]["reasoning_tokens"] == 5
            assert message["annotations"][0]["url_citation"]["url"] == "https://x/"
        call = {"id": "call_up", "type": "function", "function": {"name": "look", "arguments": '{"a":1}'}}
        earlier = {"role": "assistant", "content": None, "tool_calls": [call], "thinking_blocks": thoughts}
        result = {"role": "tool", "tool_call_id": "call_up", "content": "42"}
        asked["messages"] += [earlier, result]
        told = await gateway.chat(model="agent", **asked)
        assert told.status == 200, told.raw
        assert [item.get("type") for item in up.heard[-1].body["input"]][2:] == [
            "reasoning",
            "function_call",
            "function_call_output",
        ]


async def test_anthropics_clients_reach_such_a_model_too(tmp_path: Path) -> None:
    """Coding agents offer tools with every request, whatever they speak."""
    async with served(tmp_path) as (gateway, _):
        body = {
            "model": "agent",
            "max_tokens": 400,
            "messages": [{"role": "user", "content": "Hi."}],
            "tools": [{"name": "look", "input_schema": {"type": "object"}}],
        }
        told = await gateway.post("/v1/messages", body)
        assert told.status == 200, told.raw
        assert [block["type"] for block in told.json["content"]] == ["text", "tool_use"]


async def test_what_only_openai_runs_goes_there_or_is_refused_by_name(tmp_path: Path) -> None:
    """A place that does not have it must not answer as if nothing had been asked."""
    async with served(tmp_path) as (gateway, up):
        body = {"input": "Hi.", "tools": [SEARCH]}
        told = await gateway.post("/v1/responses", {**body, "model": "safe"})
        assert told.status == 200, told.raw
        assert (told.headers["x-nearhit-provider"], len(up.heard)) == ("openai", 1)
        told = await gateway.post("/v1/responses", {**body, "model": "other"})
        assert (told.status, told.json["error"]["param"]) == (400, "tools[0].type")


async def test_a_response_that_breaks_off_is_told_and_not_kept(tmp_path: Path) -> None:
    """Half an answer is a failure in this dialect too."""
    async with served(tmp_path, cut=True) as (gateway, _):
        told = await gateway.post("/v1/responses", {"model": "codex", "input": "Hi.", "stream": True})
        assert told.status == 200
        assert b"event: response.failed" in told.raw
        assert b"response.completed" not in told.raw
