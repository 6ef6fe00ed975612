"""OpenAI's Responses as an upstream: clients of that dialect reach it as they came, others where only it answers."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.json import encode
from openai import AsyncOpenAI

from gateway.upstream.responses_answers import Events, body_of
from tests.languages.responses import Responses
from tests.live import Live, live, settings
from tests.wire_upstream import Answer, Manner, Request, WireUpstream, wire_upstream

FUNCTION = {"name": "look", "parameters": {"type": "object"}}
SEARCH = {"type": "web_search", "search_context_size": "low"}


@asynccontextmanager
async def served(
    home: Path, language: Responses | None = None, **manner: Any
) -> AsyncGenerator[tuple[Live, WireUpstream]]:
    async with wire_upstream(language or Responses(), Manner(**manner)) as up:
        base = f"http://127.0.0.1:{up.port}/v1"
        providers = {
            "openai": {"kind": "openai", "base_url": base, "responses": True},
            "azure": {"kind": "azure", "base_url": f"http://127.0.0.1:{up.port}", "api_version": "v1"},
            "up": {"kind": "scripted"},
        }
        models = {
            "agent": {"route": ["openai/gpt-5.6-sol"], "free": True},
            "codex": {"route": ["openai/gpt-5-codex"], "free": True},
            "safe": {"route": ["up/scripted", "openai/gpt-5-codex"], "free": True},
            "other": {"route": ["up/scripted"], "free": True},
            "east": {"route": ["azure/gpt-5-codex"], "free": True},
            "short": {
                "route": [
                    {"to": "up/scripted", "context": 3_000},
                    {"to": "openai/gpt-5-codex", "context": 2_000},
                ],
                "free": True,
            },
            "search": {"route": ["openai/gpt-4o-mini-search-preview"], "free": True},
            "rungs": {"route": ["openai/gpt-5-mini", "openai/gpt-5-codex"], "strategy": "cascade", "free": True},
        }
        async with live(settings(home, providers=providers, models=models)) as gateway:
            yield gateway, up


def client_of(gateway: Live) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.key, max_retries=0)


async def test_openais_own_events_are_kept_with_numbers_of_ours(tmp_path: Path) -> None:
    """Its stream begins with events that were told before it was asked: clients that count them must see them once."""
    async with served(tmp_path) as (gateway, up), client_of(gateway) as client:
        asked: Any = {"model": "codex", "input": "Hi.", "tools": [SEARCH], "background": True, "stream": True}
        events: list[Any] = [event async for event in await client.responses.create(**asked)]
        kinds = [event.type for event in events]
        assert [kinds.count(f"response.{name}") for name in ("created", "queued", "in_progress")] == [1, 1, 1]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert "web_search_call" in [event.item.type for event in events if event.type == "response.output_item.done"]
        assert kinds[-1] == "response.completed"
        name = events[0].response.id
        assert {event.response.id for event in events if hasattr(event, "response")} == {name}
        kept: Any = [event async for event in await client.responses.retrieve(name, stream=True)]
        assert [event.to_dict() for event in kept] == [event.to_dict() for event in events]
        assert "background" not in up.heard[0].body


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


async def test_what_seems_too_long_goes_to_whom_it_is_for(tmp_path: Path) -> None:
    """The length is only guessed: who has a larger window and no search must not answer in their place."""
    async with served(tmp_path) as (gateway, _):
        told = await gateway.post("/v1/responses", {"model": "short", "input": "Hi. " * 5_000, "tools": [SEARCH]})
        assert (told.status, told.headers.get("x-nearhit-provider")) == (200, "openai"), told.raw


async def test_a_response_that_breaks_off_is_told_and_not_kept(tmp_path: Path) -> None:
    """Half an answer is a failure in this dialect too."""
    async with served(tmp_path, cut=True) as (gateway, _):
        told = await gateway.post("/v1/responses", {"model": "codex", "input": "Hi.", "stream": True})
        assert told.status == 200
        assert b"event: response.failed" in told.raw
        assert b"response.completed" not in told.raw


def test_a_kept_answer_says_of_its_texts_which_were_the_last_word() -> None:
    """OpenAI wants the phase of a message back; told as chat alone it would be lost from the cache."""
    said = {"type": "output_text", "text": "Let me see.", "annotations": []}
    output = [{"id": "m", "type": "message", "role": "assistant", "phase": "commentary", "content": [said]}]
    response: dict[str, Any] = {"id": "r", "status": "completed", "output": output}
    told: Any = body_of(response, "m", 0.0, native=True).data
    assert told["choices"][0]["message"]["native_output"] == output


@pytest.mark.parametrize("native", [False, True])
def test_a_sign_of_life_keeps_an_answer_waiting_and_reaches_nobody(native: bool) -> None:
    """OpenAI sends it while a model thinks, longer than a stream may be silent; its own clients do not know it."""
    events, alive = Events("m", 0.0, native=native), encode({"type": "keepalive", "sequence_number": 3})
    assert events.feed(encode({"type": "response.created", "response": {"id": "r"}})) == []
    assert events.feed(alive) == []  # another place may still be asked
    events.feed(encode({"type": "response.output_text.delta", "delta": "Hi"}))
    (chunk,) = events.feed(alive)
    assert chunk.data["choices"] == []
    assert chunk.native is not None
    assert chunk.native.events == []


async def test_azures_events_reach_the_client_all_of_them(tmp_path: Path) -> None:
    """What its filter says of a prompt is told with the next event; no other event may be held back for it."""
    async with served(tmp_path) as (gateway, _):
        kinds: list[list[bytes]] = []
        for model in ("codex", "east"):
            told = await gateway.post(
                "/v1/responses", {"model": model, "input": "Hi.", "tools": [SEARCH], "stream": True}
            )
            kinds.append([line for line in told.raw.split(b"\n") if line.startswith(b"event: ")])
        assert kinds[0] == kinds[1]


async def test_an_answer_that_waits_for_the_clients_shell_is_not_kept(tmp_path: Path) -> None:
    """It calls a tool, as a function's call does: the next client would run the command of another."""
    async with served(tmp_path) as (gateway, up):
        asked = {"model": "codex", "input": "List the files.", "temperature": 0, "tools": [{"type": "local_shell"}]}
        for _ in range(2):
            told = await gateway.post("/v1/responses", asked)
            assert told.json["output"][-1]["type"] == "local_shell_call"
        assert len(up.heard) == 2


class _TooLong(Responses):
    """Says so as OpenAI does, once the stream has begun. `how`: the type of the event, or a whole response."""

    def __init__(self, how: str) -> None:
        self.how = how

    async def answer(self, asked: Request) -> Answer:
        fault = {"code": "context_length_exceeded", "message": "Your input exceeds the context window of this model."}
        failed = {"id": "resp_up", "object": "response", "status": "failed", "error": fault, "output": []}
        if self.how == "whole":
            return Answer(body=encode(failed))
        last: dict[str, Any] = {"response": failed} if self.how == "response.failed" else {"error": fault}
        told: list[dict[str, Any]] = [
            {"type": "response.created", "response": {"id": "resp_up"}},
            {"type": self.how, **last},
        ]
        begun, ended = (b"event: %b\ndata: %b\n\n" % (one["type"].encode(), encode(one)) for one in told)
        return Answer(headers=("content-type: text/event-stream",), opening=begun, events=[ended])


@pytest.mark.parametrize("how", ["whole", "response.failed", "error"])
async def test_a_conversation_that_is_too_long_is_refused_once_and_for_nothing(tmp_path: Path, how: str) -> None:
    """Agents shorten theirs when they hear this word; asked again it would be charged as if it had been answered."""
    async with served(tmp_path, _TooLong(how)) as (gateway, up):
        asked = {"model": "openai/gpt-5-codex", "input": "Hi.", "stream": how != "whole"}
        told = await gateway.post("/v1/responses", asked)
        assert (told.status, told.json["error"]["code"], len(up.heard)) == (400, "context_length_exceeded", 1)
        assert not any(entry["amount_nano"] for entry in await gateway.entries())


async def test_models_without_responses_are_asked_by_chat(tmp_path: Path) -> None:
    """OpenAI's models that search or hear have no Responses; clients of that dialect reached them before, too."""
    async with served(tmp_path) as (gateway, up):
        await gateway.post("/v1/responses", {"model": "search", "input": "Hi."})
        assert up.heard[-1].path == "/v1/chat/completions"
        await gateway.post("/v1/responses", {"model": "search", "input": "Hi.", "tools": [SEARCH]})
        assert up.heard[-1].path == "/v1/responses"  # which refuses what would be left out otherwise


async def test_a_rung_is_asked_how_sure_it_is_whatever_the_client_speaks(tmp_path: Path) -> None:
    """Without log probabilities every request of such a client would be paid for at both places."""
    async with served(tmp_path) as (gateway, up):
        await gateway.post("/v1/responses", {"model": "rungs", "input": "Hi."})
        assert [asked.path for asked in up.heard] == ["/v1/chat/completions", "/v1/responses"]
        assert up.heard[0].body["logprobs"] is True
