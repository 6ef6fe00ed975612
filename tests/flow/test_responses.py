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

from gateway.routes import responses_background
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
    async with AsyncOpenAI(base_url=url, api_key=key or gateway.key, max_retries=0, timeout=60) as client:
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


REFUSED: list[tuple[dict[str, Any], int, str, str]] = [
    ({"model": "up/nothing"}, 400, "model", "model_not_found"),
    ({"previous_response_id": "resp_1"}, 400, "previous_response_id", "previous_response_not_found"),
    ({"conversation": "conv_1"}, 404, "conversation", "conversation_not_found"),
    ({"background": True, "store": False}, 400, "background", "invalid_value"),
    ({"background": True, "store": False, "stream": True}, 400, "background", "invalid_value"),
    ({"temperature": 3}, 400, "temperature", "invalid_value"),
    ({"tools": [{"type": "code_interpreter", "container": "c"}]}, 400, "tools[0].type", "unsupported_tool"),
    ({"stream": True, "input": []}, 400, "input", "invalid_value"),
]


async def test_a_refusal_has_openais_shape(tmp_path: Path) -> None:
    """Clients branch on these fields; a state that is not kept is refused by name, never ignored."""
    async with live(settings(tmp_path)) as gateway, client_of(gateway) as client:
        for change, status, param, code in REFUSED:
            asked: Any = {"model": "up/scripted", "input": ASKED, **change}
            with pytest.raises(openai.APIStatusError) as raised:
                await client.responses.create(**asked)
            error = raised.value
            assert (error.status_code, error.param, error.code) == (status, param, code)
        assert await gateway.entries() == []


async def test_what_is_not_kept_is_refused_with_a_way_that_works(tmp_path: Path) -> None:
    """Whoever moves a client here has to change it: the refusal says into what."""
    async with live(settings(tmp_path)) as gateway:
        asked = {"model": "up/scripted", "input": ASKED, "prompt": {"id": "pmpt_1"}}
        told = await gateway.post("/v1/responses", asked)
        assert told.status == 400
        assert "'instructions'" in told.json["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_is_kept_and_continued(tmp_path: Path, stream: bool) -> None:
    """Clients that leave the conversation to the server send only what is new; the model must see all of it."""
    async with playing(tmp_path) as (script, gateway, client):
        script.calls = [("call_1", "get_weather", '{"city": "Oslo"}')]
        first: Any = await client.responses.create(model="lab/m", input=ASKED, tools=[WEATHER], instructions="Brief.")
        script.calls = []
        result: Any = [{"type": "function_call_output", "call_id": "call_1", "output": "-3"}]
        more: Any = {"model": "lab/m", "input": result, "previous_response_id": first.id}
        if stream:
            async with client.responses.stream(**more) as events:
                second = await events.get_final_response()
        else:
            second = await client.responses.create(**more)
        assert second.previous_response_id == first.id
        assert [message["role"] for message in script.sent[-1]["messages"]] == ["user", "assistant", "tool"]
        kept: Any = await client.responses.retrieve(second.id)
        for name in ("id", "created_at", "status", "usage", "output_text", "tools", "store"):
            assert getattr(kept, name) == getattr(second, name)
        assert kept.store is True
        items: Any = [item async for item in client.responses.input_items.list(first.id)]
        assert [item.content[0].text for item in items] == [ASKED]
        counted = await gateway.post("/v1/responses/input_tokens", more)
        assert counted.json["input_tokens"] > 0
        async with client_of(gateway, await gateway.new_key("rivals")) as rival:
            for ask in (rival.responses.retrieve, rival.responses.delete, rival.responses.cancel):
                with pytest.raises(openai.NotFoundError):
                    await ask(first.id)
            with pytest.raises(openai.BadRequestError):
                await rival.responses.create(**more)
        await client.responses.delete(first.id)
        with pytest.raises(openai.BadRequestError, match="not found"):
            await client.responses.create(model="lab/m", input="And?", previous_response_id=second.id)
        unkept = await client.responses.create(model="lab/m", input=ASKED, store=False)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(unkept.id)


async def test_a_response_is_made_in_the_background(tmp_path: Path) -> None:
    """The client reads when it is begun, and comes back for the answer, for a refusal, or to cancel it."""
    async with playing(tmp_path) as (script, _, client):
        script.wait = asyncio.Event()
        asked: Any = {"model": "lab/m", "background": True}
        first = await client.responses.create(**asked, input=ASKED)
        second = await client.responses.create(**asked, input="Something else?")
        assert (first.status, first.background) == ("queued", True)
        assert (await _now(client, first.id, "queued")).status == "in_progress"
        cancelled = await client.responses.cancel(second.id)
        assert cancelled.status == "cancelled"
        script.wait.set()
        unknown = await client.responses.create(model="nobody/knows", background=True, input=ASKED)
        assert (await _over(client, first.id)).output_text == script.text
        failed = await _over(client, unknown.id)
        assert failed.status == "failed"
        assert failed.error is not None
        assert (await _over(client, second.id)).status == "cancelled"
        with pytest.raises(openai.BadRequestError, match=r"Cannot cancel a synchronous response\..*background"):
            await client.responses.cancel((await client.responses.create(model="lab/m", input=ASKED)).id)


async def test_a_response_in_the_background_outlives_an_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a minute without the database it was given up, and stayed `in_progress` for whoever polled, for ever."""
    monkeypatch.setattr(responses_background, "_SHORTEST_PAUSE", 0.001)
    away, finish = [10], responses_background.Responses.finish

    async def tried(*given: Any) -> None:
        if away[0]:
            away[0] -= 1
            raise OSError("connection refused")
        await finish(*given)

    monkeypatch.setattr(responses_background.Responses, "finish", tried)
    async with playing(tmp_path) as (script, _, client):
        made = await client.responses.create(model="lab/m", input=ASKED, background=True)
        assert (await _over(client, made.id)).output_text == script.text
        assert away == [0]


async def _over(client: AsyncOpenAI, response_id: str) -> Any:
    return await _now(client, response_id, "queued", "in_progress")


async def _now(client: AsyncOpenAI, response_id: str, *before: str) -> Any:
    async with asyncio.timeout(60):
        while (found := await client.responses.retrieve(response_id)).status in before:  # noqa: ASYNC110 - clients poll
            await asyncio.sleep(0.05)
    return found


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
