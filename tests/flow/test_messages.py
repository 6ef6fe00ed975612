"""Anthropic's dialect with Anthropic's own client over real sockets: against any model, whole and streamed."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import msgspec
import pytest
from anthropic import AsyncAnthropic

from tests.flow.dialect_upstream import Script, scripted
from tests.live import Live, live, settings

HI: list[Any] = [{"role": "user", "content": "What is a KV block?"}]
WEATHER: Any = {
    "name": "get_weather",
    "description": "Weather in a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@asynccontextmanager
async def client_of(gateway: Live, key: str | None = None) -> AsyncGenerator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=gateway.url, api_key=key or gateway.key, max_retries=0, timeout=60) as client:
        yield client


@asynccontextmanager
async def playing(home: Path) -> AsyncGenerator[tuple[Script, Live, AsyncAnthropic]]:
    """A gateway in front of a scripted OpenAI-compatible server, and a client of it. Its model is `lab/m`."""
    async with scripted() as (script, upstream):
        lab = {"kind": "openai", "base_url": upstream.url, "api_key": "none", "billing": "stops-on-close"}
        async with live(settings(home, providers={"up": {"kind": "scripted"}, "lab": lab})) as gateway:
            await gateway.services.prices.set(
                "lab/m", input_usd="1.00", output_usd="2.00", actor="test", effective_from=0.0
            )
            async with client_of(gateway) as client:
                yield script, gateway, client


async def test_the_engines_model_answers_anthropics_client(tmp_path: Path) -> None:
    """A client that knows only Anthropic must work against a model that has never heard of it."""
    async with live(settings(tmp_path)) as gateway, client_of(gateway) as client:
        told = await client.messages.create(model="local/sim", max_tokens=16, messages=HI)
        assert told.content[0].type == "text"
        assert told.content[0].text
        assert told.model == "local/sim"
        assert told.stop_reason in ("end_turn", "max_tokens")
        assert told.usage.input_tokens > 0
        assert told.usage.cache_read_input_tokens is not None
        assert told._request_id


async def test_a_stream_begins_with_what_the_engine_has_read(tmp_path: Path) -> None:
    """Agents show how full their context is by `message_start`; it told 0 tokens of every prompt."""
    async with live(settings(tmp_path)) as gateway, client_of(gateway) as client:
        for _ in range(2):  # the second is a hit
            asked = await client.messages.create(model="local/sim", max_tokens=16, messages=HI, stream=True)
            events: list[Any] = [event async for event in asked]
            begun = next(event.message.usage for event in events if event.type == "message_start")
            ended = next(event.usage for event in events if event.type == "message_delta")
            assert begun.input_tokens == ended.input_tokens + ended.cache_read_input_tokens > 0
            assert begun.output_tokens == 0


async def test_a_stream_amounts_to_the_whole_answer(tmp_path: Path) -> None:
    """Both forms are one answer; the client's own accumulator is the judge of our events."""
    async with playing(tmp_path) as (script, _, client):
        script.thought = "Bread wants heat."
        script.calls = [("call_1", "get_weather", '{"city": "Oslo"}'), ("call_2", "get_weather", '{"city": "Bergen"}')]
        asked: Any = {
            "model": "lab/m", "max_tokens": 64, "messages": HI, "tools": [WEATHER], "thinking": {"type": "adaptive"},
        }  # fmt: skip
        whole = await client.messages.create(**asked)
        async with client.messages.stream(**asked) as stream:
            names = [event.type async for event in stream]
            streamed = await stream.get_final_message()
        assert [block.type for block in whole.content] == ["thinking", "text", "tool_use", "tool_use"]
        assert _plain(streamed) == _plain(whole)
        assert whole.stop_reason == "tool_use"
        assert (whole.usage.input_tokens, whole.usage.cache_read_input_tokens) == (17, 4)
        assert names[0] == "message_start"
        assert names[-1] == "message_stop"
        assert names.count("content_block_start") == names.count("content_block_stop") == 4


def _plain(message: Any) -> dict[str, Any]:
    told = message.model_dump(exclude={"id", "_request_id"})
    told["content"] = [
        {name: value for name, value in block.items() if value is not None and name != "parsed_output"}
        for block in told["content"]
    ]
    told["usage"].pop("cost", None)
    return told


async def test_a_conversation_with_tools_reaches_the_model_whole(tmp_path: Path) -> None:
    """Ids, arguments and results must be the same at both ends, or the next turn makes no sense."""
    async with playing(tmp_path) as (script, _, client):
        turns: list[Any] = [
            *HI,
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Tromsø"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "-3 °C"}]},
                {"type": "text", "text": "And now?"},
            ]},
        ]  # fmt: skip
        await client.messages.create(
            model="lab/m", max_tokens=64, messages=turns, tools=[WEATHER], system="Be brief.",
            tool_choice={"type": "any", "disable_parallel_tool_use": True}, stop_sequences=["END"],
        )  # fmt: skip
        (sent,) = script.sent
        system, _, said, result, last = sent["messages"]
        assert system == {"role": "system", "content": "Be brief."}
        (call,) = said["tool_calls"]
        assert call["id"] == result["tool_call_id"] == "toolu_1"
        assert msgspec.json.decode(call["function"]["arguments"]) == {"city": "Tromsø"}
        assert (said["content"], result["content"], last["content"]) == ("I look.", "-3 °C", "And now?")
        assert sent["tool_choice"] == "required"
        assert sent["parallel_tool_calls"] is False
        assert sent["stop"] == ["END"]
        assert sent["max_completion_tokens"] == 64


@pytest.mark.parametrize("stream", [False, True])
async def test_one_kept_answer_serves_every_dialect(tmp_path: Path, stream: bool) -> None:
    """A question is paid for once, whichever client asks it next and in whichever form."""
    async with live(settings(tmp_path)) as gateway, client_of(gateway) as client:
        asked = await gateway.chat(max_completion_tokens=4096, stream=not stream)
        await gateway.settled()
        raw = await client.messages.with_raw_response.create(
            model="up/scripted", max_tokens=4096, messages=HI, stream=stream
        )
        assert raw.headers["x-nearhit-cache"] == "hit-exact"
        if stream:
            parsed: Any = await raw.parse()
            events = [event async for event in parsed]
            text = "".join(event.delta.text for event in events if event.type == "content_block_delta")
            assert events[0].message.usage.input_tokens > 0
        else:
            told: Any = await raw.parse()
            text = told.content[0].text
        if not stream:
            expected = "".join(e["choices"][0]["delta"].get("content") or "" for e in asked.events[:-1])
        else:
            expected = asked.text
        assert text == expected != ""
        assert len(await gateway.entries()) == 1
        assert [row["source"] for row in await gateway.rows()] == ["upstream", "exact"]


async def test_an_answer_to_this_dialect_is_kept_for_the_others(tmp_path: Path) -> None:
    """The reverse direction: what was asked as a message is a hit for a chat client."""
    async with live(settings(tmp_path)) as gateway, client_of(gateway) as client:
        told: Any = await client.messages.create(model="up/scripted", max_tokens=4096, messages=HI)
        await gateway.settled()
        again = await gateway.chat(max_completion_tokens=4096)
        assert again.headers["x-nearhit-cache"] == "hit-exact"
        assert again.text == told.content[0].text


async def test_what_a_coding_agent_sends_is_answered(tmp_path: Path) -> None:
    """80 KB, dozens of tools, roles and fields no reference names, beta headers: they must not be refused."""
    async with playing(tmp_path) as (script, gateway, _):
        tools = [{**WEATHER, "name": f"mcp__{'server' * 12}__tool_{n}", "description": "d" * 2_000} for n in range(36)]
        body = {
            "model": "lab/m",
            "max_tokens": 32_000,
            "stream": True,
            "system": [
                {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=0a1b2;"},
                {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": "Be careful.", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
            ],
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "Fix it.", "cache_control": {"type": "ephemeral"}}],
                },
                {"role": "system", "content": "The date has changed."},
            ],
            "tools": [*tools, {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}],
            "thinking": {"type": "adaptive"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "output_config": {"effort": "medium"},
            "metadata": {"user_id": '{"device_id":"d","account_uuid":"a","session_id":"s"}'},
        }
        script.calls = [("call_1", "", "{}")]
        script.text = ""
        # The model is told a short name; the client gets its own back.
        told = await gateway.post("/v1/messages?beta=true", body | {"stream": False}, headers=_AGENT)
        assert told.status == 200, told.raw
        (sent,) = script.sent
        names = [tool["function"]["name"] for tool in sent["tools"]]
        assert len(set(names)) == 36
        assert all(len(name) <= 64 for name in names)
        assert [message["role"] for message in sent["messages"]] == ["system", "user", "system"]
        assert "billing" not in str(sent["messages"])
        assert sent["user"] == '{"account_uuid":"a","device_id":"d"}'
        ignored = told.headers["x-nearhit-ignored"]
        assert "context_management" in ignored
        assert "tools[36].type=web_search_20250305" in ignored
        assert "output_config.effort" in ignored
        script.calls = [("call_2", names[7], '{"city": "Oslo"}')]
        streamed = await gateway.post("/v1/messages?beta=true", body, headers=_AGENT)
        assert tools[7]["name"].encode() in streamed.raw
        assert names[7].encode() not in streamed.raw


_AGENT = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27",
    "x-app": "cli",
}


async def test_tokens_are_counted_exactly_where_the_model_runs_here(tmp_path: Path) -> None:
    """An agent plans its context by this number, so it says what it is worth."""
    async with live(settings(tmp_path)) as gateway, client_of(gateway) as client:
        raw = await client.messages.with_raw_response.count_tokens(model="local/sim", messages=HI, system="Be brief.")
        counted = await raw.parse()
        assert raw.headers["x-nearhit-token-count"] == "exact"
        told = await client.messages.create(model="local/sim", max_tokens=1, messages=HI, system="Be brief.")
        assert counted.input_tokens == told.usage.input_tokens
        bounded = await client.messages.with_raw_response.count_tokens(model="up/scripted", messages=HI)
        assert bounded.headers["x-nearhit-token-count"] == "estimate"
        assert (await bounded.parse()).input_tokens >= 5
        assert len(await gateway.entries()) == 1


@pytest.mark.parametrize(
    ("change", "error", "kind", "says"),
    [
        ({"model": "up/nothing"}, anthropic.NotFoundError, "not_found_error", "up/nothing"),
        ({"extra_body": {"temperature": 1.5}}, anthropic.BadRequestError, "invalid_request_error", "temperature"),
        ({"messages": []}, anthropic.BadRequestError, "invalid_request_error", "messages"),
        ({"max_tokens": 0}, anthropic.BadRequestError, "invalid_request_error", "max_tokens"),
        ({"stream": True, "model": "no/where"}, anthropic.NotFoundError, "not_found_error", "no/where"),
    ],
)
async def test_a_refusal_has_anthropics_shape(
    tmp_path: Path, change: dict[str, Any], error: type[anthropic.APIStatusError], kind: str, says: str
) -> None:
    """The client picks its exception by the status and its users read the type."""
    async with live(settings(tmp_path)) as gateway, client_of(gateway) as client:
        asked: Any = {"model": "up/scripted", "max_tokens": 9, "messages": HI, **change}
        with pytest.raises(error) as raised:
            await client.messages.create(**asked)
        body: Any = raised.value.body
        assert body["type"] == "error"
        assert body["error"]["type"] == kind
        assert says in body["error"]["message"]
        assert body["request_id"] == raised.value.request_id
        assert await gateway.entries() == []


@pytest.mark.parametrize("thread", [{"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}])
async def test_a_conversation_held_by_the_server_is_refused_as_its_clients_know_it(
    tmp_path: Path, thread: dict[str, Any]
) -> None:
    """Anthropic's tool runner sends the rest only, unless it is told so: `create` was taken, the second turn a 400."""
    async with live(settings(tmp_path)) as gateway, client_of(gateway) as client:
        asked: Any = {"model": "up/scripted", "max_tokens": 9, "messages": HI, "thread": thread}
        with pytest.raises(anthropic.BadRequestError) as raised:
            await client.beta.messages.create(**asked)
        body: Any = raised.value.body
        told = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
        assert (body["error"]["param"], body["error"]["details"]) == ("thread", told)
        assert await gateway.entries() == []


async def test_a_wrong_key_and_an_empty_budget_are_told_apart(tmp_path: Path) -> None:
    """One is mended by the operator, the other by waiting; neither is worth a retry."""
    async with live(settings(tmp_path)) as gateway:
        async with client_of(gateway, "sk-wrong") as client:
            with pytest.raises(anthropic.AuthenticationError) as raised:
                await client.messages.create(model="up/scripted", max_tokens=9, messages=HI)
            body: Any = raised.value.body
            assert body["error"]["type"] == "authentication_error"
        async with gateway.client.put(
            f"{gateway.url}/api/v1/budgets/team:acme",
            json={"limit_usd": "0.000000001", "window": "day", "mode": "hard"},
            headers={"authorization": "Bearer sk-test-admin-key-of-some-length"},
        ) as response:
            assert response.status < 300, await response.text()
        async with client_of(gateway) as client:
            with pytest.raises(anthropic.RateLimitError) as refused:
                await client.messages.create(model="up/scripted", max_tokens=9, messages=HI)
            assert refused.value.response.headers["x-should-retry"] == "false"


async def test_an_upstreams_refusal_keeps_its_status(tmp_path: Path) -> None:
    """A 4xx of the upstream is about the request: it must not become a 5xx that clients repeat."""
    async with playing(tmp_path) as (script, _, client):
        script.refuses = ("422 Unprocessable", {"message": "tools are not for me", "type": "bad", "code": None})
        with pytest.raises(anthropic.UnprocessableEntityError, match="tools are not for me"):
            await client.messages.create(model="lab/m", max_tokens=9, messages=HI)


async def test_a_stream_that_breaks_off_ends_in_an_error_event(tmp_path: Path) -> None:
    """Half an answer must never look like a whole one: no stop event, and the client raises."""
    async with playing(tmp_path) as (script, gateway, client):
        script.breaks = True
        seen: list[str] = []
        with pytest.raises(anthropic.APIStatusError, match="broke off"):
            await _read(seen, client)
        assert "content_block_delta" in seen
        assert "message_stop" not in seen
        assert [row["error"] for row in await gateway.rows()] == ["upstream_disconnected"]


async def _read(seen: list[str], client: AsyncAnthropic) -> None:
    """The types of the events, kept also where the stream breaks off."""
    async for event in await client.messages.create(model="lab/m", max_tokens=9, messages=HI, stream=True):
        seen.append(event.type)  # noqa: PERF401 - what came before it raised is looked at


async def test_a_client_that_leaves_is_noticed_and_charged(tmp_path: Path) -> None:
    """Translation must not hide a disconnect: the upstream is closed and what it made is paid."""
    async with playing(tmp_path) as (script, gateway, client):
        script.stalls = True
        stream = await client.messages.create(model="lab/m", max_tokens=500, messages=HI, stream=True)
        async for event in stream:
            if event.type == "content_block_delta":
                break
        await stream.close()
        while not (rows := await gateway.rows()):  # noqa: ASYNC110 - the database does not tell
            await asyncio.sleep(0.05)
        assert rows[0]["client_gone"], rows
        assert (await gateway.entries())[0]["amount_nano"] > 0


async def test_the_row_says_which_dialect_was_spoken(tmp_path: Path) -> None:
    """Whoever reads why a request went the way it went must see how it came."""
    async with live(settings(tmp_path)) as gateway, client_of(gateway) as client:
        await client.messages.create(model="up/scripted", max_tokens=9, messages=HI)
        (row,) = await gateway.rows()
        admin = {"authorization": "Bearer sk-test-admin-key-of-some-length"}
        async with gateway.client.get(f"{gateway.url}/api/v1/requests/{row['id']}", headers=admin) as response:
            assert b'"dialect":"messages"' in await response.read()


async def test_other_methods_are_refused_in_this_dialects_shape(tmp_path: Path) -> None:
    """The framework must not answer on these paths in another one."""
    async with live(settings(tmp_path)) as gateway, gateway.client.get(gateway.url + "/v1/messages") as response:
        assert response.status == 405
        assert (await response.json())["type"] == "error"


async def test_somebody_is_there(tmp_path: Path) -> None:
    """Claude Code asks `HEAD /` before anything else."""
    async with live(settings(tmp_path)) as gateway, gateway.client.head(gateway.url + "/") as response:
        assert response.status == 200
        assert await response.read() == b""


async def test_models_are_listed_for_anthropics_client(tmp_path: Path) -> None:
    """Its shape has other names for the same, and OpenAI's client must go on seeing its own."""
    async with live(settings(tmp_path)) as gateway, client_of(gateway) as client:
        page = await client.models.list()
        assert "local/sim" in [model.id for model in page.data]
        assert page.has_more is False
        one = await client.models.retrieve("local/sim")
        assert one.type == "model"
        assert one.model_fields_set >= set(anthropic.types.ModelInfo.model_fields)  # null, and not left out
        headers = {"authorization": f"Bearer {gateway.key}"}
        async with gateway.client.get(gateway.url + "/v1/models", headers=headers) as response:
            assert (await response.json())["object"] == "list"
