"""Anthropic's language at its edges: fields it cannot honour, refusals, early and late failures, usage."""

import asyncio
from contextlib import aclosing
from typing import Any

import msgspec
import pytest
from pydantic import SecretStr

from gateway.call import Body, Chunk
from gateway.errors import InvalidRequest, Overloaded, UpstreamFailed, UpstreamRefused, UpstreamTimeout
from gateway.providers import Partial, Sending
from gateway.providers.anthropic import AnthropicProvider, build
from gateway.settings import ProviderSettings
from gateway.stream import fold
from gateway.tasks import Tasks
from gateway.transport.direct import DirectTransport
from gateway.upstream.anthropic_answers import body_of, usage_of
from gateway.upstream.anthropic_requests import translated
from tests.unit.upstream.raw_upstream import Answer, Heard, RawUpstream, fixed, raw_upstream, response

SECRET = "sk-ant-secret-1"
USER: Body = {"role": "user", "content": "hello"}
START = b'{"type":"message_start","message":{"id":"m","usage":{"input_tokens":7,"output_tokens":1}}}'
BLOCK = b'{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}'
TEXT = b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hi"}}'
STOP = b'{"type":"content_block_stop","index":0}'
DELTA = b'{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":3}}'
END = b'{"type":"message_stop"}'
WHOLE = (START, BLOCK, TEXT, STOP, DELTA, END)
BUSY = b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}'
decode = msgspec.json.Decoder().decode


def sending(model: str = "claude-opus-4-6", *, stream: bool = True, **body: Any) -> Sending:
    full: Body = {"messages": [USER], "max_tokens": 9, **body, "model": model}
    waits: dict[str, Any] = {"timeout": 5.0, "idle": 5.0}
    return Sending(id="a-1", operation="chat", model=model, body=full, stream=stream, tenant="t", **waits)


def shown(part: Body) -> Body:
    return {"role": "user", "content": [part]}


def called(arguments: str) -> Body:
    return {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": arguments}}]}


def stream_of(*bodies: bytes) -> bytes:
    raw = b"".join(b"event: x\ndata: " + body + b"\n\n" for body in bodies)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(raw), raw)


def provider(up: RawUpstream, transport: DirectTransport, **extra: Any) -> AnthropicProvider:
    settings = ProviderSettings(kind="anthropic", base_url=up.url, api_key=SecretStr(SECRET), **extra)
    return build("up", settings, transport=transport, tasks=Tasks())


async def ask(answer: Answer, what: Sending, **extra: Any) -> tuple[list[Chunk], Exception | None, RawUpstream]:
    seen: list[Chunk] = []
    transport = DirectTransport()
    async with raw_upstream(answer) as up:
        try:
            async with aclosing(provider(up, transport, **extra).send(what)) as chunks:
                async for chunk in chunks:
                    seen.append(chunk)  # noqa: PERF401 - kept also when an error follows
        except (UpstreamFailed, Overloaded, InvalidRequest, Partial) as error:
            return seen, error, up
        finally:
            await transport.close()
    return seen, None, up


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2),
        ("temperature", 1.5),
        ("seed", 0),
        ("presence_penalty", 0.5),
        ("frequency_penalty", -1),
        ("logit_bias", {"1": 5}),
        ("logprobs", True),
        ("response_format", {"type": "json_object"}),
        ("functions", [{"name": "f"}]),
        ("function_call", {"name": "f"}),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "x"}),
        ("prediction", {"type": "content", "content": "x"}),
        ("web_search_options", {}),
        ("store", True),
        ("verbosity", "low"),
        ("reasoning_effort", "extreme"),
        ("service_tier", "flex"),
        ("tool_choice", {"type": "custom", "custom": {"name": "x"}}),
        ("tools", [{"type": "custom", "custom": {"name": "x"}}]),
        ("messages", [{"role": "function", "name": "f", "content": "x"}]),
        ("messages", [shown({"type": "input_audio", "input_audio": {}})]),
        ("messages", [shown({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}})]),
        ("messages", [shown({"type": "image_url", "image_url": {"url": "data:image/png;base64,?"}})]),
        ("messages", [shown({"type": "file", "file": {"file_id": "f-1"}})]),
        ("messages", [called("[1]")]),
        ("messages", [called("{")]),
    ],
)
def test_a_defined_field_it_cannot_honour_is_named(field: str, value: Any) -> None:
    """Dropping what the client asked for in silence gives it another answer than it wanted."""
    tools = {"tools": [{"type": "function", "function": {"name": "f"}}]} if field == "tool_choice" else {}
    with pytest.raises(InvalidRequest) as refusal:
        translated(sending(**tools, **{field: value}))
    assert refusal.value.http_status == 400
    assert (refusal.value.param or "").startswith(field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 1),
        ("temperature", 1),
        ("presence_penalty", 0),
        ("logit_bias", {}),
        ("logprobs", False),
        ("response_format", {"type": "text"}),
        ("modalities", ["text"]),
        ("store", False),
        ("verbosity", "medium"),
        ("seed", None),
        ("prompt_cache_key", "k"),
        ("metadata", {"team": "x"}),
    ],
)
def test_a_default_said_out_loud_is_no_reason_to_refuse(field: str, value: Any) -> None:
    """SDKs write defaults into every request."""
    made = translated(sending(**{field: value}))
    assert made["max_tokens"] == 9
    assert field == "temperature" or field not in made


def test_fields_it_alone_knows_are_passed_on() -> None:
    """The gateway must not have to learn every new feature of an upstream before its clients can use it."""
    made = translated(sending(top_k=5, container="c", thinking={"type": "enabled", "budget_tokens": 1024}, odd=None))
    assert made["top_k"] == 5
    assert made["container"] == "c"
    assert made["thinking"] == {"type": "enabled", "budget_tokens": 1024}
    assert "odd" not in made


@pytest.mark.parametrize(
    ("model", "effort", "thinking", "config"),
    [
        ("claude-opus-4-6", "minimal", {"type": "adaptive"}, {"effort": "low"}),
        ("claude-sonnet-5", "xhigh", {"type": "adaptive"}, {"effort": "xhigh"}),
        ("claude-sonnet-4-5-20250929", "medium", {"type": "enabled", "budget_tokens": 2000}, None),
        ("claude-sonnet-4-20250514", "high", {"type": "enabled", "budget_tokens": 3200}, None),
        ("claude-3-7-sonnet-latest", "low", {"type": "enabled", "budget_tokens": 1024}, None),
        ("claude-opus-4-6", "none", {"type": "disabled"}, None),
    ],
)
def test_effort_becomes_what_that_generation_of_models_takes(
    model: str, effort: str, thinking: Body, config: Body | None
) -> None:
    """Each generation refuses the other's form with a 400."""
    made = translated(sending(model, reasoning_effort=effort, max_tokens=4_000))
    assert made["thinking"] == thinking
    assert made.get("output_config") == config


def test_a_budget_that_fits_no_answer_is_refused() -> None:
    """A thinking budget must be below max_tokens; the upstream's words about it name a field the client never sent."""
    with pytest.raises(InvalidRequest) as refusal:
        translated(sending("claude-haiku-4-5", reasoning_effort="low", max_tokens=1_024))
    assert refusal.value.param == "reasoning_effort"


@pytest.mark.parametrize(
    ("choice", "wanted", "names"),
    [
        ("auto", {"type": "auto"}, ["f", "g"]),
        ("none", {"type": "none"}, ["f", "g"]),
        ({"type": "function", "function": {"name": "g"}}, {"type": "tool", "name": "g"}, ["f", "g"]),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "g"}}]},
            },
            {"type": "any"},
            ["g"],
        ),
    ],
)
def test_every_choice_of_tools_is_said(choice: object, wanted: Body, names: list[str]) -> None:
    """A choice that is lost makes the model answer in words where a call was demanded."""
    tools = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]
    made: Any = translated(sending(tools=tools, tool_choice=choice))
    assert made["tool_choice"] == wanted
    assert [tool["name"] for tool in made["tools"]] == names


def test_turns_alternate_and_empty_texts_are_left_out() -> None:
    """The API refuses empty text blocks and results that do not stand in the turn after their calls."""
    messages = [
        {"role": "system", "content": "a"},
        USER,
        {"role": "user", "content": [{"type": "text", "text": ""}, {"type": "text", "text": "more"}]},
        {"role": "assistant", "content": ""},
        {"role": "system", "content": "b"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        USER,
    ]
    made: Any = translated(sending(messages=messages))
    assert [block["text"] for block in made["system"]] == ["a", "b"]
    assert [turn["role"] for turn in made["messages"]] == ["user", "assistant", "user"]
    assert [block["text"] for block in made["messages"][0]["content"]] == ["hello", "more"]


async def test_credential_and_version_travel_in_its_own_headers() -> None:
    """A bearer's token is not taken there, and a request without a version is refused."""
    answer = fixed(stream_of(*WHOLE))
    _, error, up = await ask(answer, sending(), beta=["a-1", "b-2"], headers={"X-Team": "t"})
    assert error is None
    headers = up.heard[0].headers
    assert headers["x-api-key"] == SECRET
    assert "authorization" not in headers
    assert headers["anthropic-version"] == "2023-06-01"
    assert headers["anthropic-beta"] == "a-1,b-2"
    assert headers["x-team"] == "t"


def test_settings_that_would_give_the_key_away_are_refused() -> None:
    """A configured header must not replace the credential, nor may it cross the network in the clear."""
    for extra in ({"headers": {"X-Api-Key": "x"}}, {"base_url": "http://example.com/v1"}, {"api_key": None}):
        given: Any = {"api_key": SecretStr(SECRET), **extra}
        with pytest.raises(ValueError, match=r"providers\.up"):
            build("up", ProviderSettings(kind="anthropic", **given), transport=DirectTransport(), tasks=Tasks())


@pytest.mark.parametrize(
    ("status", "kind", "message", "code"),
    [
        (400, "invalid_request_error", "prompt is too long: 9 tokens > 8 maximum", "context_length_exceeded"),
        (400, "invalid_request_error", "messages: no", None),
        (401, "authentication_error", "invalid x-api-key", "invalid_api_key"),
        (404, "not_found_error", "model: x", "model_not_found"),
        (413, "request_too_large", "too large", "request_too_large"),
        (429, "rate_limit_error", "slow down", "rate_limit_exceeded"),
    ],
)
async def test_refusals_keep_their_words_and_get_openais_codes(
    status: int, kind: str, message: str, code: str | None
) -> None:
    """Clients branch on OpenAI's codes: LangChain shortens its prompt on context_length_exceeded."""
    body = msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message}, "request_id": "r"})
    raw = response(f"{status} No", body, "retry-after: 7")
    _, error, _ = await ask(fixed(raw), sending())
    assert isinstance(error, UpstreamRefused)
    assert error.http_status == status
    told = f"up: {message}" if status == 429 else message
    assert error.detail() == {"message": told, "type": kind, "param": None, "code": code}
    assert error.retry_after == 7.0


async def test_a_rate_limit_without_retry_after_tells_when_it_is_filled_again() -> None:
    """Only limits that are used up count; the answer's own clock is what its times are measured by."""
    headers = (
        "date: Sat, 21 Nov 2026 12:00:00 GMT",
        "anthropic-ratelimit-requests-remaining: 5",
        "anthropic-ratelimit-requests-reset: 2026-11-21T13:00:00Z",
        "anthropic-ratelimit-tokens-remaining: 0",
        "anthropic-ratelimit-tokens-reset: 2026-11-21T12:00:20Z",
    )
    _, error, _ = await ask(fixed(response("429 Slow", b'{"error":{"type":"rate_limit_error"}}', *headers)), sending())
    assert isinstance(error, UpstreamRefused)
    assert error.retry_after == 20.0


async def test_an_overloaded_upstream_costs_nothing_and_another_may_be_tried() -> None:
    """529 is Anthropic's own; and it may also come as the first event of a stream that began with 200."""
    body = b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}'
    _, error, _ = await ask(fixed(response("529 Overloaded", body, "retry-after: 3")), sending())
    assert isinstance(error, Overloaded)
    assert error.http_status == 503
    assert error.headers == (("retry-after", "3"),)
    for events in ((BUSY,), (START, BUSY), (START, BLOCK, BUSY)):
        seen, error, _ = await ask(fixed(stream_of(*events)), sending())
        assert (seen, type(error)) == ([], Overloaded)
    seen, error, _ = await ask(fixed(stream_of(START, BLOCK, TEXT, BUSY)), sending())
    assert isinstance(error, Partial)
    assert len(seen) == 2


@pytest.mark.parametrize("keep", range(len(WHOLE)))
async def test_a_stream_that_lacks_its_end_is_never_whole(keep: int) -> None:
    """The end of the connection is no end of an answer: a cut that looks whole poisons caches and bills."""
    seen, error, _ = await ask(fixed(stream_of(*WHOLE[:keep])), sending())
    if not seen:
        assert isinstance(error, UpstreamFailed)
        assert error.doubtful
    else:
        assert isinstance(error, Partial)


async def test_words_after_the_end_are_not_waited_for() -> None:
    """Some gateways keep the connection open after message_stop."""
    head, rest = stream_of(*WHOLE).removesuffix(b"0\r\n\r\n").split(b"\r\n\r\n", 1)
    seen, error, _ = await ask(fixed(head + b"\r\n\r\n" + rest), sending())
    assert error is None
    assert seen[-1].usage is not None
    assert seen[-1].usage.completion == 3


@pytest.mark.parametrize("begun", [False, True])
async def test_pings_keep_a_connection_alive_but_no_answer(begun: bool) -> None:
    """An upstream that only pings holds a budget for nothing; the waits are for words."""

    async def pinging(writer: asyncio.StreamWriter, _: Heard) -> None:
        writer.write(stream_of(START, BLOCK, *([TEXT] if begun else [])).removesuffix(b"0\r\n\r\n"))
        while not writer.is_closing():
            writer.write(b"13\r\nevent: ping\ndata:\n\n\r\n")
            await writer.drain()
            await asyncio.sleep(0.01)

    what = msgspec.structs.replace(sending(), timeout=0.2, idle=0.2)
    async with asyncio.timeout(60):
        seen, error, _ = await ask(pinging, what)
    assert isinstance(error, Partial if begun else UpstreamTimeout)
    assert bool(seen) is begun


@pytest.mark.parametrize("raw", [b"null", b"<html>", b"{}", b'{"type":"message","content":[]}'])
async def test_a_body_that_is_no_message_is_a_failure(raw: bytes) -> None:
    """A 200 that holds nothing must not become an empty answer somebody caches."""
    _, error, _ = await ask(fixed(response("200 OK", raw)), sending(stream=False))
    assert type(error) is UpstreamFailed
    assert error.doubtful


async def test_a_secret_that_comes_back_is_not_told() -> None:
    """Some upstreams repeat the key they refuse."""
    for answer in (
        response("400 No", b'{"error":{"type":"x","message":"bad key %b"}}' % SECRET.encode()),
        stream_of(b'{"type":"error","error":{"message":"bad key %b"}}' % SECRET.encode()),
    ):
        _, error, _ = await ask(fixed(answer), sending())
        assert SECRET not in str(error)
        assert "[redacted]" in str(error)


def test_usage_counts_every_token_once() -> None:
    """Anthropic tells cached tokens beside the input, OpenAI inside: counted wrongly, a bill is off by multiples."""
    told: Body = {
        "input_tokens": 10,
        "cache_read_input_tokens": 100,
        "cache_creation_input_tokens": 20,
        "output_tokens": 5,
    }
    usage: Any = usage_of(told)
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (130, 5, 135)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 100, "cache_write_tokens": 20, "audio_tokens": 0}
    assert usage_of({"input_tokens": 10}) is None
    assert usage_of({"input_tokens": True, "output_tokens": 1}) is None


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", "stop"),
        ("max_tokens", "length"),
        ("tool_use", "tool_calls"),
        ("refusal", "content_filter"),
        ("model_context_window_exceeded", "length"),
        ("pause_turn", "stop"),
        ("something_new", "stop"),
    ],
)
def test_every_stop_reason_has_a_finish_and_none_is_lost(reason: str, finish: str) -> None:
    """An unknown reason must not fail an answer that is there, nor pass for a plain stop without a trace."""
    message: Body = {"type": "message", "id": "m", "content": [], "stop_reason": reason, "usage": {}}
    choice: Any = body_of(message, "m", 0).data["choices"]
    assert choice[0]["finish_reason"] == finish
    assert choice[0].get("native_finish_reason") in (None, reason)
    assert choice[0]["message"]["content"] == ""


async def test_the_upstreams_own_tools_keep_their_blocks() -> None:
    """A search done by the upstream is part of its answer, though OpenAI's shape has no place for it."""
    search = (
        b'{"type":"content_block_start","index":0,"content_block":{"type":"server_tool_use","id":"s","name":"web_search","input":{}}}',
        b'{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{\\"query\\""}}',
        b'{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":":\\"x\\"}"}}',
        STOP,
    )
    seen, error, _ = await ask(fixed(stream_of(START, *search, DELTA, END)), sending())
    assert error is None
    message: Any = fold(chunk.data for chunk in seen)["choices"]
    assert message[0]["message"]["native_blocks"] == [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}}
    ]


async def test_models_are_listed_by_their_ids() -> None:
    """The catalog is made of them; a configured list is not asked for."""
    transport = DirectTransport()
    listing = b'{"data":[{"id":"claude-a","type":"model"},{"id":"claude-b"}],"has_more":false}'
    async with raw_upstream(fixed(response("200 OK", listing))) as up:
        assert await provider(up, transport).models() == ["claude-a", "claude-b"]
        assert up.heard[0].line == "GET /v1/models?limit=1000 HTTP/1.1"
        assert await provider(up, transport, models=["x"]).models() == ["x"]
    async with raw_upstream(fixed(response("401 No", b"{}"))) as up:
        with pytest.raises(UpstreamFailed):
            await provider(up, transport).models()
    await transport.close()
