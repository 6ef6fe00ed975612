"""Google's language at its edges: fields it cannot honour, refusals, blocked prompts, endings, usage."""

import asyncio
from contextlib import aclosing
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from pydantic import SecretStr

from gateway.call import Body, Chunk
from gateway.errors import InvalidRequest, NotFound, Overloaded, UpstreamFailed, UpstreamRefused
from gateway.providers import Partial, Sending
from gateway.providers.gemini import GeminiProvider, build
from gateway.settings import ProviderSettings
from gateway.stream import fold
from gateway.tasks import Tasks
from gateway.transport.direct import DirectTransport
from gateway.upstream.gemini_answers import body_of, usage_of
from gateway.upstream.gemini_embeddings import embedded
from gateway.upstream.gemini_requests import translated
from tests.unit.upstream.raw_upstream import Answer, Heard, RawUpstream, events, fixed, raw_upstream, response

SECRET = "AIza-secret-1"
USER: Body = {"role": "user", "content": "hello"}
FIRST = b'{"candidates":[{"index":0,"content":{"parts":[{"text":"hi"}]}}],"usageMetadata":{"promptTokenCount":3}}'
COUNTS = b'{"promptTokenCount":3,"candidatesTokenCount":2}'
LAST = b'{"candidates":[{"index":0,"finishReason":"STOP"}],"usageMetadata":%b}' % COUNTS
BUSY = b'{"error":{"code":503,"message":"The model is overloaded.","status":"UNAVAILABLE"}}'


def sending(model: str = "gemini-2.5-flash", *, stream: bool = True, **body: Any) -> Sending:
    full: Body = {"messages": [USER], "max_tokens": 9, **body, "model": model}
    waits: dict[str, Any] = {"timeout": 5.0, "idle": 5.0}
    return Sending(id="a-1", operation="chat", model=model, body=full, stream=stream, tenant="t", **waits)


def provider(up: RawUpstream, transport: DirectTransport, **extra: Any) -> GeminiProvider:
    settings = ProviderSettings(kind="gemini", base_url=up.url, api_key=SecretStr(SECRET), **extra)
    return build("up", settings, transport=transport, tasks=Tasks())


async def ask(answer: Answer, what: Sending) -> tuple[list[Chunk], Exception | None, RawUpstream]:
    seen: list[Chunk] = []
    transport = DirectTransport()
    async with raw_upstream(answer) as up:
        try:
            async with aclosing(provider(up, transport).send(what)) as chunks:
                async for chunk in chunks:
                    seen.append(chunk)  # noqa: PERF401 - kept also when an error follows
        except (UpstreamFailed, Overloaded, InvalidRequest, Partial) as error:
            return seen, error, up
        finally:
            await transport.close()
    return seen, None, up


def stream_of(*bodies: bytes) -> bytes:
    return events(*bodies, done=False)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 9),
        ("logit_bias", {"1": 5}),
        ("functions", [{"name": "f"}]),
        ("modalities", ["audio"]),
        ("audio", {"voice": "x"}),
        ("prediction", {"type": "content", "content": "x"}),
        ("web_search_options", {}),
        ("store", True),
        ("verbosity", "high"),
        ("reasoning_effort", "xhigh"),
        ("service_tier", "scale"),
        ("messages", [{"role": "function", "name": "f", "content": "x"}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///x"}}]}]),
        ("messages", [{"role": "user", "content": [{"type": "file", "file": {"file_id": "f-1"}}]}]),
        ("messages", [{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "3"}}]}]),
    ],
)
def test_a_defined_field_it_cannot_honour_is_named(field: str, value: Any) -> None:
    """Dropping what the client asked for in silence gives it another answer than it wanted."""
    with pytest.raises(InvalidRequest) as refusal:
        translated(sending(**{field: value}))
    assert (refusal.value.param or "").startswith(field)


def test_tiers_and_log_probabilities_are_asked_for_in_googles_words() -> None:
    """Batches ask for the cheap tier wherever it is sold, and a cascade for the probabilities it decides by."""
    made: Any = translated(sending(service_tier="flex", logprobs=True, top_logprobs=3))
    assert made["serviceTier"] == "flex"
    assert (made["generationConfig"]["responseLogprobs"], made["generationConfig"]["logprobs"]) == (True, 3)
    plain: Any = translated(sending(service_tier="default", logprobs=False))
    assert "serviceTier" not in plain
    assert not plain["generationConfig"].keys() & {"responseLogprobs", "logprobs"}


def test_log_probabilities_and_the_tier_are_told_in_openais_words() -> None:
    """A client reads them where OpenAI puts them, whole or streamed; the tier decides what is charged."""
    likely = {"token": "Hé", "tokenId": 1, "logProbability": -0.25}
    other = {"token": "Ho", "tokenId": 2, "logProbability": -2}
    result = {"chosenCandidates": [likely], "topCandidates": [{"candidates": [likely, other]}]}
    candidate = {"content": {"parts": [{"text": "Hé"}]}, "finishReason": "STOP", "logprobsResult": result}
    usage = {"promptTokenCount": 3, "candidatesTokenCount": 1, "serviceTier": "standard"}
    told: Any = body_of({"candidates": [candidate], "usageMetadata": usage}, "m", 0).data
    (score,) = told["choices"][0]["logprobs"]["content"]
    assert (score["token"], score["logprob"], score["bytes"]) == ("Hé", -0.25, [72, 195, 169])
    assert [top["token"] for top in score["top_logprobs"]] == ["Hé", "Ho"]
    assert told["choices"][0]["message"]["content"] == "Hé"
    assert told["service_tier"] == "default"


def test_one_call_at_a_time_cannot_be_promised() -> None:
    """Without tools the field means nothing, with them a second call would break a client that asked for one."""
    tools = [{"type": "function", "function": {"name": "f"}}]
    translated(sending(parallel_tool_calls=False))
    with pytest.raises(InvalidRequest) as refusal:
        translated(sending(parallel_tool_calls=False, tools=tools))
    assert refusal.value.param == "parallel_tool_calls"


@pytest.mark.parametrize(
    ("model", "effort", "thinking"),
    [
        ("gemini-2.5-flash", "none", {"thinkingBudget": 0}),
        ("gemini-2.5-pro", "medium", {"thinkingBudget": 8_192, "includeThoughts": True}),
        ("gemini-3-pro-preview", "high", {"thinkingLevel": "high", "includeThoughts": True}),
        ("gemini-3.5-flash", "minimal", {"thinkingLevel": "minimal", "includeThoughts": True}),
    ],
)
def test_effort_becomes_what_that_generation_of_models_takes(model: str, effort: str, thinking: Body) -> None:
    """A budget and a level in one request are a 400, and each generation has but one of them."""
    made: Any = translated(sending(model, reasoning_effort=effort))
    assert made["generationConfig"]["thinkingConfig"] == thinking


def test_a_model_that_always_thinks_is_not_told_to_stop() -> None:
    """It would answer with a 400 about a field the client never sent."""
    with pytest.raises(InvalidRequest) as refusal:
        translated(sending("gemini-3-pro-preview", reasoning_effort="none"))
    assert refusal.value.param == "reasoning_effort"


@pytest.mark.parametrize(("model", "signed"), [("gemini-3-pro-preview", True), ("gemini-2.5-flash", False)])
def test_a_call_without_its_signature_gets_the_documented_stand_in(model: str, signed: bool) -> None:
    """From version 3 on a conversation that another model began is refused otherwise: failover would end there."""
    calls = [{"id": f"c{at}", "type": "function", "function": {"name": "f", "arguments": "{}"}} for at in range(2)]
    made: Any = translated(sending(model, messages=[USER, {"role": "assistant", "tool_calls": calls}]))
    first, second = made["contents"][1]["parts"]
    assert ("thoughtSignature" in first) is signed
    assert "thoughtSignature" not in second


def test_strict_tools_are_validated_unless_a_call_is_forced() -> None:
    """`strict` promises arguments that follow the schema; a forced call follows it anyway."""
    tools = [{"type": "function", "function": {"name": "f", "strict": True}}]
    made: Any = translated(sending(tools=tools))
    assert made["toolConfig"]["functionCallingConfig"] == {"mode": "VALIDATED"}
    made = translated(sending(tools=tools, tool_choice="required"))
    assert made["toolConfig"]["functionCallingConfig"] == {"mode": "ANY"}


@pytest.mark.parametrize("model", ["../secrets", "a/b", "models/../x", "x?alt=1", "", "x:y", "tunedModels/.."])
async def test_a_model_name_never_leads_elsewhere(model: str) -> None:
    """The name comes from a client, and the request carries the operator's key."""
    _, error, up = await ask(fixed(stream_of(FIRST, LAST)), sending(model))
    assert isinstance(error, NotFound)
    assert up.heard == []


async def test_the_key_travels_in_its_header_only() -> None:
    """Keys in addresses end up in logs: gateways have leaked them that way."""
    _, error, up = await ask(fixed(stream_of(FIRST, LAST)), sending())
    assert error is None
    assert up.heard[0].headers["x-goog-api-key"] == SECRET
    assert SECRET not in up.heard[0].line
    assert "authorization" not in up.heard[0].headers


@pytest.mark.parametrize(
    ("status", "error", "found"),
    [
        (400, {"message": "no", "status": "INVALID_ARGUMENT"}, (400, "invalid_request_error", None, None)),
        (
            400,
            {"message": "The input token count (9) exceeds the maximum number of tokens allowed (8)."},
            (400, "invalid_request_error", "context_length_exceeded", None),
        ),
        (
            400,
            {"message": "API key not valid.", "details": [{"reason": "API_KEY_INVALID"}]},
            (401, "authentication_error", "invalid_api_key", None),
        ),
        (404, {"message": "no such model"}, (404, "not_found_error", "model_not_found", None)),
        (
            429,
            {"message": "quota", "details": [{"@type": "x"}, {"@type": "RetryInfo", "retryDelay": "13.5s"}]},
            (429, "rate_limit_error", "rate_limit_exceeded", 13.5),
        ),
    ],
)
async def test_refusals_keep_their_words_and_get_openais_codes(
    status: int, error: Body, found: tuple[int, str, str | None, float | None]
) -> None:
    """Clients branch on OpenAI's codes, and a wait that is told must be kept."""
    raw = response(f"{status} No", msgspec.json.encode({"error": {"code": status, **error}}))
    _, refused, _ = await ask(fixed(raw), sending())
    assert isinstance(refused, UpstreamRefused)
    detail = refused.detail()
    assert (refused.http_status, detail["type"], detail["code"], refused.retry_after) == found
    assert detail["message"] == (f"up: {error['message']}" if status == 429 else error["message"])


async def test_an_overloaded_upstream_costs_nothing_and_another_may_be_tried() -> None:
    """It may be told by the status or inside a stream that began with 200."""
    _, error, _ = await ask(fixed(response("503 Busy", BUSY)), sending())
    assert isinstance(error, Overloaded)
    seen, error, _ = await ask(fixed(stream_of(BUSY)), sending())
    assert (seen, type(error)) == ([], Overloaded)
    _, error, _ = await ask(fixed(stream_of(FIRST, BUSY)), sending())
    assert isinstance(error, Partial)


async def test_the_end_of_the_stream_is_the_end_of_the_answer_only_when_all_finished() -> None:
    """There is no end mark: a finish reason and an orderly end of HTTP are all there is."""
    seen, error, _ = await ask(fixed(stream_of(FIRST, LAST)), sending())
    assert error is None
    assert seen[-1].usage is not None
    assert (seen[-1].usage.prompt, seen[-1].usage.completion) == (3, 2)
    _, error, _ = await ask(fixed(stream_of(FIRST)), sending())
    assert isinstance(error, Partial)
    _, error, _ = await ask(fixed(events(FIRST, LAST, done=False, whole=False), close=True), sending())
    assert isinstance(error, Partial)
    _, error, _ = await ask(fixed(stream_of()), sending())
    assert isinstance(error, UpstreamFailed)


@pytest.mark.parametrize("raw", [b"null", b"[]", b"{}", b'{"candidates":[]}'])
async def test_a_body_that_is_no_answer_is_a_failure(raw: bytes) -> None:
    """A 200 that holds nothing must not become an empty answer somebody caches."""
    _, error, _ = await ask(fixed(response("200 OK", raw)), sending(stream=False))
    assert type(error) is UpstreamFailed


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("STOP", "stop"),
        ("MAX_TOKENS", "length"),
        ("SAFETY", "content_filter"),
        ("RECITATION", "content_filter"),
        ("MALFORMED_FUNCTION_CALL", "stop"),
        ("SOMETHING_NEW", "stop"),
    ],
)
def test_every_finish_reason_has_its_name_and_none_is_lost(reason: str, finish: str) -> None:
    """An unknown reason must not fail an answer that is there, nor pass for a plain stop without a trace."""
    choices: Any = body_of({"candidates": [{"finishReason": reason}]}, "m", 0).data["choices"]
    assert choices[0]["finish_reason"] == finish
    assert choices[0].get("native_finish_reason") in (None, reason)
    assert choices[0]["message"]["content"] == ""


def test_thinking_counts_as_output_and_tools_as_input() -> None:
    """candidatesTokenCount leaves thinking out, though it is billed: bills were off by it elsewhere."""
    told: Body = {
        "promptTokenCount": 10,
        "toolUsePromptTokenCount": 5,
        "candidatesTokenCount": 2,
        "thoughtsTokenCount": 7,
    }
    usage: Any = usage_of(told)
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (15, 9, 24)
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 7
    assert usage_of({"candidatesTokenCount": 2}) is None


async def test_pictures_and_run_code_are_kept() -> None:
    """An answer may hold what OpenAI's chat has no place for; it must not vanish."""
    body = (
        b'{"candidates":[{"finishReason":"STOP","content":{"parts":[{"inlineData":{"mimeType":"image/png","data":"aGk="}},'
        b'{"executableCode":{"language":"PYTHON","code":"1"}}]}}],"usageMetadata":{"promptTokenCount":1}}'
    )
    seen, error, _ = await ask(fixed(stream_of(body)), sending())
    assert error is None
    choices: Any = fold(chunk.data for chunk in seen)["choices"]
    assert choices[0]["message"]["images"] == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    ]
    assert choices[0]["message"]["native_blocks"] == [{"executableCode": {"language": "PYTHON", "code": "1"}}]


async def test_models_are_those_that_answer() -> None:
    """Models that neither chat nor embed (pictures, speech) stand in the same list and would fail every request."""
    listing = (
        b'{"models":[{"name":"models/gemini-a","supportedGenerationMethods":["generateContent"]},'
        b'{"name":"models/embed","supportedGenerationMethods":["embedContent"]},'
        b'{"name":"models/imagen","supportedGenerationMethods":["predict"]}]}'
    )
    transport = DirectTransport()
    async with raw_upstream(fixed(response("200 OK", listing))) as up:
        assert await provider(up, transport).models() == ["gemini-a", "embed"]
    await transport.close()


async def test_embeddings_that_nobody_counts_are_not_thrown_away() -> None:
    """They have been paid for; asked again elsewhere they would be paid for twice."""

    async def asked(method: str, body: Body) -> Body:
        if method == "countTokens":
            raise Overloaded("The model is overloaded.")
        return {"embeddings": [{"values": [0.5]}]}

    what = replace(sending(stream=False), operation="embedding", body={"input": "hi"})
    told = await embedded(what, "models/e", asked)
    assert (told.data["data"], told.usage) == ([{"object": "embedding", "index": 0, "embedding": [0.5]}], None)


async def test_a_field_of_googles_own_is_no_other_text() -> None:
    """What is embedded is `input`, by which the answer is kept and found, at the model that was asked for."""
    asked: list[Any] = []

    async def ask(method: str, body: Body) -> Body:
        asked.append(body)
        return {"embeddings": [{"values": [0.5]}], "totalTokens": 1}

    other = {"content": {"parts": [{"text": "other"}]}, "taskType": "X"}
    what = replace(sending(stream=False), operation="embedding", body={"input": "hi", **other})
    await embedded(what, "models/m", ask)
    assert asked[0]["requests"] == [{"taskType": "X", "model": "models/m", "content": {"parts": [{"text": "hi"}]}}]


async def test_all_questions_for_embeddings_share_one_deadline() -> None:
    """A client that may wait a second must not wait one for each hundred of its texts."""
    transport = DirectTransport()
    row = msgspec.json.encode({"embeddings": [{"values": [0.5]}] * 100})

    async def slowly(writer: asyncio.StreamWriter, heard: Heard) -> None:
        await asyncio.sleep(0.6)
        await fixed(response("200 OK", row))(writer, heard)

    async with raw_upstream(slowly) as up:
        what = replace(sending(stream=False), operation="embedding", body={"input": ["x"] * 200}, timeout=1.0)
        with pytest.raises(UpstreamFailed):
            await anext(provider(up, transport).send(what))
    await transport.close()
