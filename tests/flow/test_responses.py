"""OpenAI's Responses with OpenAI's own client over real sockets: against any model, whole and streamed."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from tests.flow.dialect_upstream import Script, scripted
from tests.live import Live, live, settings

ASKED = "What is a KV block?"
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather in a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}


@asynccontextmanager
async def client_of(gateway: Live, key: str | None = None) -> AsyncGenerator[AsyncOpenAI]:
    url = f"{gateway.url}/v1"
    async with AsyncOpenAI(base_url=url, api_key=key or gateway.key, max_retries=0, timeout=20) as client:
        yield client


@asynccontextmanager
async def playing(home: Path) -> AsyncGenerator[tuple[Script, Live, AsyncOpenAI]]:
    """A gateway in front of a scripted OpenAI-compatible server, and a client of it. Its model is `lab/m`."""
    async with scripted() as (script, upstream):
        lab = {"kind": "openai", "base_url": upstream.url, "api_key": "none", "billing": "stops-on-close"}
        async with live(settings(home, providers={"up": {"kind": "scripted"}, "lab": lab})) as gateway:
            await gateway.services.prices.set(
                "lab/m", input_usd="1.00", output_usd="2.00", actor="test", effective_from=0.0
            )
            async with client_of(gateway) as client:
                yield script, gateway, client


async def test_the_engines_model_answers(tmp_path: Path) -> None:
    """A client that knows no other route must work against a model that has never heard of it."""
    async with live(settings(tmp_path)) as gateway, client_of(gateway) as client:
        told = await client.responses.create(model="local/sim", input=ASKED, max_output_tokens=16, store=False)
        assert told.output_text
        assert told.model == "local/sim"
        assert told.status in ("completed", "incomplete")
        assert told.usage is not None
        assert told.usage.input_tokens > 0
        assert told._request_id


async def test_a_stream_amounts_to_the_whole_answer(tmp_path: Path) -> None:
    """Both forms are one answer; the client's own accumulator is the judge of our events."""
    async with playing(tmp_path) as (script, _, client):
        script.thought = "Bread wants heat."
        script.calls = [("call_1", "get_weather", '{"city": "Oslo"}'), ("call_2", "get_weather", '{"city": "Bergen"}')]
        whole = await client.responses.create(model="lab/m", input=ASKED, tools=[WEATHER])
        async with client.responses.stream(model="lab/m", input=ASKED, tools=[WEATHER]) as stream:
            numbers = [event.sequence_number async for event in stream if hasattr(event, "sequence_number")]
            final = await stream.get_final_response()
        assert numbers == sorted(set(numbers))
        assert [item.type for item in whole.output] == ["reasoning", "message", "function_call", "function_call"]
        assert whole.output_text == final.output_text == script.text
        found: list[Any] = [item for item in final.output if item.type == "function_call"]
        assert [(item.call_id, item.arguments) for item in found] == [
            ("call_1", '{"city": "Oslo"}'),
            ("call_2", '{"city": "Bergen"}'),
        ]
        assert whole.usage is not None
        assert whole.usage.input_tokens_details.cached_tokens == 4


async def test_a_conversation_goes_on_with_what_the_client_was_given(tmp_path: Path) -> None:
    """Clients send our own items back; they must be read as what they were."""
    async with playing(tmp_path) as (script, _, client):
        script.thought, script.calls = "hm", [("call_1", "get_weather", '{"city": "Tromsø"}')]
        first: Any = await client.responses.create(
            model="lab/m", input=ASKED, tools=[WEATHER], instructions="Be brief."
        )
        items = [item.model_dump(exclude_none=True) for item in first.output]
        result = {"type": "function_call_output", "call_id": "call_1", "output": "-3 °C"}
        script.calls = []
        asked: Any = [{"role": "user", "content": ASKED}, *items, result]
        await client.responses.create(model="lab/m", input=asked, tools=[WEATHER], instructions="Be brief.")
        system, user, said, told = script.sent[-1]["messages"]
        assert (system["content"], user["content"]) == ("Be brief.", ASKED)
        assert said["content"] == script.text
        assert said["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": '{"city": "Tromsø"}'}
        assert told == {"role": "tool", "tool_call_id": "call_1", "content": "-3 °C"}


@pytest.mark.parametrize("stream", [False, True])
async def test_one_kept_answer_serves_three_dialects(tmp_path: Path, stream: bool) -> None:
    """A question is paid for once, whichever client asks it next and in whichever form."""
    async with live(settings(tmp_path)) as gateway, client_of(gateway) as client:
        first = await gateway.chat(max_completion_tokens=4096)
        await gateway.settled()
        raw = await client.responses.with_raw_response.create(
            model="up/scripted", input=ASKED, max_output_tokens=4096, stream=stream
        )
        assert raw.headers["x-nearhit-cache"] == "hit-exact"
        told: Any = raw.parse()
        if stream:
            text = "".join([event.delta async for event in told if event.type == "response.output_text.delta"])
        else:
            text = told.output_text
        async with AsyncAnthropic(base_url=gateway.url, api_key=gateway.key, max_retries=0) as other:
            message: Any = await other.messages.create(
                model="up/scripted", max_tokens=4096, messages=[{"role": "user", "content": ASKED}]
            )
        assert text == message.content[0].text == first.text
        assert len(await gateway.entries()) == 1


async def test_what_a_coding_agent_sends_is_answered(tmp_path: Path) -> None:
    """40 KB, name spaces, tools of services, free-text tools, encrypted thoughts, session headers: not refused."""
    async with playing(tmp_path) as (script, gateway, _):
        inner = [{"type": "function", "name": "read", "description": "d" * 1_000, "parameters": {}, "strict": False}]
        body = {
            "model": "lab/m",
            "instructions": "You are an agent. " * 1_000,
            "input": [
                {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Sandboxed."}]},
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Fix it."}]},
                {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "gAAAA"},
            ],
            "tools": [
                {**WEATHER, "name": "shell"},
                {"type": "custom", "name": "apply_patch", "description": "Edits files.",
                 "format": {"type": "grammar", "syntax": "lark", "definition": "start: begin"}},
                *({"type": "namespace", "name": f"mcp__s{n}", "description": "", "tools": inner} for n in range(20)),
                {"type": "web_search", "external_web_access": False},
            ],
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "reasoning": {"effort": "medium", "summary": "auto"},
            "store": False,
            "stream": True,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": "0198-session",
            "client_metadata": {"session": "s"},
        }  # fmt: skip
        script.text = ""
        script.calls = [("call_1", "mcp__s3__read", "{}"), ("call_2", "apply_patch", '{"input": "*** Begin"}')]
        headers = {"originator": "codex_cli_rs", "session-id": "s", "x-codex-turn-metadata": "{}"}
        told = await gateway.post("/v1/responses", body, headers=headers)
        assert told.status == 200, told.raw
        assert "tools[22].type=web_search" in told.headers["x-nearhit-ignored"]
        assert b'"namespace":"mcp__s3"' in told.raw
        assert b'"type":"custom_tool_call"' in told.raw
        assert b'"input":"*** Begin"' in told.raw
        assert len(script.sent[0]["tools"]) == 22


async def test_tokens_are_counted(tmp_path: Path) -> None:
    """The number says what it is worth."""
    async with live(settings(tmp_path)) as gateway, client_of(gateway) as client:
        told = await gateway.post("/v1/responses/input_tokens", {"model": "local/sim", "input": ASKED})
        assert told.json["object"] == "response.input_tokens"
        assert told.headers["x-nearhit-token-count"] == "exact"
        answered = await client.responses.create(model="local/sim", input=ASKED, max_output_tokens=16)
        assert answered.usage is not None
        assert told.json["input_tokens"] == answered.usage.input_tokens


@pytest.mark.parametrize(
    ("change", "status", "param", "code"),
    [
        ({"model": "up/nothing"}, 400, "model", "model_not_found"),
        ({"previous_response_id": "resp_1"}, 400, "previous_response_id", "unsupported_parameter"),
        ({"background": True}, 400, "background", "unsupported_parameter"),
        ({"temperature": 3}, 400, "temperature", "invalid_value"),
        ({"tools": [{"type": "code_interpreter", "container": "c"}]}, 400, "tools[0].type", "unsupported_tool"),
        ({"stream": True, "input": []}, 400, "input", "invalid_value"),
    ],
)
async def test_a_refusal_has_openais_shape(
    tmp_path: Path, change: dict[str, Any], status: int, param: str, code: str
) -> None:
    """Clients branch on these fields; a state that is not kept is refused by name, never ignored."""
    async with live(settings(tmp_path)) as gateway, client_of(gateway) as client:
        asked: Any = {"model": "up/scripted", "input": ASKED, **change}
        with pytest.raises(openai.APIStatusError) as raised:
            await client.responses.create(**asked)
        error = raised.value
        assert (error.status_code, error.param, error.code) == (status, param, code)
        assert await gateway.entries() == []


async def test_a_response_of_before_is_refused_with_the_reason(tmp_path: Path) -> None:
    """Nothing is kept, and the client must not look for a wrong path."""
    async with live(settings(tmp_path)) as gateway, client_of(gateway) as client:
        told: Any = await client.responses.create(model="up/scripted", input=ASKED)
        assert told.store is False
        for ask in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
            with pytest.raises(openai.NotFoundError, match="not kept here"):
                await ask(told.id)
        async with client_of(gateway, "sk-wrong") as stranger:
            with pytest.raises(openai.AuthenticationError):
                await stranger.responses.retrieve(told.id)


async def test_a_stream_that_breaks_off_has_failed(tmp_path: Path) -> None:
    """Half an answer must never look like a whole one."""
    async with playing(tmp_path) as (script, gateway, client):
        script.breaks = True
        kinds = [event.type async for event in await client.responses.create(model="lab/m", input=ASKED, stream=True)]
        assert kinds[-2:] == ["error", "response.failed"]
        assert "response.output_text.delta" in kinds
        assert [row["error"] for row in await gateway.rows()] == ["upstream_disconnected"]


async def test_a_client_that_leaves_is_noticed_and_charged(tmp_path: Path) -> None:
    """Translation must not hide a disconnect: the upstream is closed and what it made is paid."""
    async with playing(tmp_path) as (script, gateway, client):
        script.stalls = True
        stream = await client.responses.create(model="lab/m", input=ASKED, stream=True)
        async for event in stream:
            if event.type == "response.output_text.delta":
                break
        await stream.close()
        while not (rows := await gateway.rows()):  # noqa: ASYNC110 - the database does not tell
            await asyncio.sleep(0.05)
        assert rows[0]["client_gone"], rows
        assert (await gateway.entries())[0]["amount_nano"] > 0
