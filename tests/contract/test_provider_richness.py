"""What every service must carry both ways, whatever it speaks: tools, pictures, system prompts, every count, refusals.

One answer said in each language over a real socket. What is peculiar to a service is in its golden cases.
"""

from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from gateway.call import Body, Chunk
from gateway.errors import UpstreamRefused
from gateway.providers import Sending, known, load
from gateway.settings import ProviderSettings
from gateway.stream import fold
from gateway.tasks import Tasks
from gateway.transport.direct import DirectTransport
from policies.money import Usage
from tests.languages.bedrock import frame
from tests.unit.upstream.raw_upstream import fixed, raw_upstream, response

KINDS = sorted(set(known()) - {"local", "scripted", "prefill_decode"})
NATIVE = {"anthropic", "bedrock", "gemini"}
NO_REASONING_COUNT = {"anthropic", "bedrock"}
APART = {"xai"}  # counts its reasoning beside the completion
PNG = "iVBORw0KGgo="
ARGUMENTS = {"city": "Oslo", "days": [1, 2]}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a place, told by day.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
SPENT = Usage(prompt=100, cached=60, completion=30, reasoning=10)
encode, decode = msgspec.json.encode, msgspec.json.decode
Made = Callable[[str, bool], bytes]


class Heard(Struct):
    """What came of one request: how it went out, and how it was told."""

    sent: str
    chunks: list[Chunk]

    @property
    def body(self) -> Any:
        return self.chunks[0].data if self.chunks[0].final else fold(chunk.data for chunk in self.chunks)

    @property
    def choice(self) -> Any:
        return self.body["choices"][0]

    @property
    def usage(self) -> Usage | None:
        return next((chunk.usage for chunk in reversed(self.chunks) if chunk.usage is not None), None)


# -- one answer in every language: a thought, a word, a call, and what it took --------------------------------------


def openai(kind: str, stream: bool) -> bytes:
    call = {"id": "Ab3Ab3Ab3", "type": "function", "function": {"name": "get_weather", "arguments": ""}}
    whole = {**call, "function": {"name": "get_weather", "arguments": encode(ARGUMENTS).decode()}}
    made = 20 if kind in APART else 30
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": made,
        "total_tokens": 130,
        "prompt_tokens_details": {"cached_tokens": 60},
        "completion_tokens_details": {"reasoning_tokens": 10},
    }
    head: Body = {"id": "c-1", "created": 1, "model": "m"}
    if not stream:
        message = {"role": "assistant", "content": "See.", "reasoning_content": "Hm.", "tool_calls": [whole]}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        return encode({**head, "object": "chat.completion", "choices": [choice], "usage": usage})
    pieces: list[Body] = [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "Hm."},
        {"content": "See."},
        {"tool_calls": [{"index": 0, **call}]},
        *({"tool_calls": [{"index": 0, "function": {"arguments": letter}}]} for letter in encode(ARGUMENTS).decode()),
    ]
    told: list[Body] = [{"index": 0, "delta": piece, "finish_reason": None} for piece in pieces]
    told.append({"index": 0, "delta": {}, "finish_reason": "tool_calls"})
    events: list[Body] = [{**head, "object": "chat.completion.chunk", "choices": [choice]} for choice in told]
    events.append({**head, "object": "chat.completion.chunk", "choices": [], "usage": usage})
    return b"".join(b"data: %b\n\n" % encode(one) for one in events) + b"data: [DONE]\n\n"


def anthropic(_: str, stream: bool) -> bytes:
    blocks: list[Body] = [
        {"type": "thinking", "thinking": "Hm.", "signature": "s"},
        {"type": "text", "text": "See."},
        {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": ARGUMENTS},
    ]
    usage = {"input_tokens": 40, "cache_read_input_tokens": 60, "cache_creation_input_tokens": 0, "output_tokens": 30}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_sequence": None}
    if not stream:
        return encode({**message, "content": blocks, "stop_reason": "tool_use", "usage": usage})
    begun = {**message, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    told: list[Body] = [{"type": "message_start", "message": begun}]
    emptied: list[Body] = [{"thinking": "", "signature": ""}, {"text": ""}, {"input": {}}]
    deltas: list[list[Body]] = [
        [{"type": "thinking_delta", "thinking": "Hm."}, {"type": "signature_delta", "signature": "s"}],
        [{"type": "text_delta", "text": "See."}],
        [{"type": "input_json_delta", "partial_json": letter} for letter in encode(ARGUMENTS).decode()],
    ]
    for index, (block, empty, some) in enumerate(zip(blocks, emptied, deltas, strict=True)):
        told.append({"type": "content_block_start", "index": index, "content_block": {**block, **empty}})
        told.extend({"type": "content_block_delta", "index": index, "delta": delta} for delta in some)
        told.append({"type": "content_block_stop", "index": index})
    told.append({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 30}})
    told.append({"type": "message_stop"})
    return b"".join(b"event: %b\ndata: %b\n\n" % (str(one["type"]).encode(), encode(one)) for one in told)


def gemini(_: str, stream: bool) -> bytes:
    parts: list[Body] = [
        {"text": "Hm.", "thought": True},
        {"text": "See."},
        {"functionCall": {"name": "get_weather", "args": ARGUMENTS}},
    ]
    usage = {
        "promptTokenCount": 100,
        "cachedContentTokenCount": 60,
        "candidatesTokenCount": 20,
        "thoughtsTokenCount": 10,
        "totalTokenCount": 130,
    }
    head: Body = {"responseId": "r", "modelVersion": "m"}
    if not stream:
        candidate = {"index": 0, "content": {"role": "model", "parts": parts}, "finishReason": "STOP"}
        return encode({**head, "candidates": [candidate], "usageMetadata": usage})
    events: list[Body] = []
    for number, part in enumerate(parts):
        last = {"finishReason": "STOP"} if number == len(parts) - 1 else {}
        candidate = {"index": 0, "content": {"role": "model", "parts": [part]}, **last}
        events.append({**head, "candidates": [candidate], "usageMetadata": usage})
    return b"".join(b"data: %b\r\n\r\n" % encode(one) for one in events)


def bedrock(_: str, stream: bool) -> bytes:
    used = {"toolUseId": "tooluse_1", "name": "get_weather"}
    usage = {"inputTokens": 40, "cacheReadInputTokens": 60, "outputTokens": 30, "totalTokens": 130}
    thought = {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "s"}}}
    if not stream:
        content = [thought, {"text": "See."}, {"toolUse": {**used, "input": ARGUMENTS}}]
        message = {"role": "assistant", "content": content}
        return encode({"output": {"message": message}, "stopReason": "tool_use", "usage": usage})
    deltas: list[list[Body]] = [
        [{"reasoningContent": {"text": "Hm."}}, {"reasoningContent": {"signature": "s"}}],
        [{"text": "See."}],
        [{"toolUse": {"input": letter}} for letter in encode(ARGUMENTS).decode()],
    ]
    told = [frame("messageStart", {"role": "assistant"})]
    for index, some in enumerate(deltas):
        if index == len(deltas) - 1:
            told.append(frame("contentBlockStart", {"contentBlockIndex": index, "start": {"toolUse": used}}))
        told += [frame("contentBlockDelta", {"contentBlockIndex": index, "delta": delta}) for delta in some]
        told.append(frame("contentBlockStop", {"contentBlockIndex": index}))
    told.append(frame("messageStop", {"stopReason": "tool_use"}))
    return b"".join([*told, frame("metadata", {"usage": usage})])


LANGUAGES: dict[str, Made] = {"anthropic": anthropic, "bedrock": bedrock, "gemini": gemini}


async def asked(kind: str, body: Body, *, stream: bool, answer: bytes | None = None) -> Heard:
    """One request to a service of that kind. Raises as its provider does."""
    media = "application/vnd.amazon.eventstream" if kind == "bedrock" else "text/event-stream"
    made = LANGUAGES.get(kind, openai)(kind, stream)
    good = response("200 OK", made, f"content-type: {media if stream else 'application/json'}")
    transport, tasks = DirectTransport(), Tasks()
    extra: dict[str, Any] = {"region": "eu-central-1"} if kind == "bedrock" else {}
    async with raw_upstream(fixed(answer or good)) as up:
        settings = ProviderSettings(kind=kind, base_url=up.url, **extra)
        provider = load(kind).build("up", settings, transport=transport, tasks=tasks)
        what = Sending(
            id="a-1",
            operation="chat",
            model="m",
            body={"max_completion_tokens": 64, **body, "model": "m", "stream": stream},
            stream=stream,
            tenant="t",
            timeout=30.0,
            idle=30.0,
        )
        try:
            async with aclosing(provider.send(what)) as chunks:
                found = [chunk async for chunk in chunks]
        finally:
            await tasks.finish(5.0)
            await transport.close()
        return Heard(up.heard[0].body.decode(), found)


def user(content: object) -> Body:
    return {"role": "user", "content": content}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_call_of_a_tool_is_openais_call(kind: str, stream: bool) -> None:
    """Agents run what stands there: name, arguments as text, an id to answer to, and the finish that says so."""
    heard = await asked(kind, {"messages": [user("Weather?")], "tools": [TOOL]}, stream=stream)
    message = heard.choice["message"]
    (call,) = message["tool_calls"]
    assert (call["type"], call["function"]["name"]) == ("function", "get_weather")
    assert decode(call["function"]["arguments"]) == ARGUMENTS
    assert call["id"]
    assert (message["content"], message["reasoning_content"]) == ("See.", "Hm.")
    assert heard.choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("kind", KINDS)
async def test_tools_and_their_results_reach_the_service(kind: str) -> None:
    """A description or a result that is lost changes the answer, and nobody sees why."""
    call = {
        "id": "Ab3Ab3Ab3",
        "type": "function",
        "function": {"name": "get_weather", "arguments": encode(ARGUMENTS).decode()},
    }
    turns = [
        user("Weather?"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "Ab3Ab3Ab3", "content": "Eleven degrees."},
    ]
    sent = (await asked(kind, {"messages": turns, "tools": [TOOL]}, stream=False)).sent
    for piece in ("Weather of a place, told by day.", "get_weather", "Oslo", "Eleven degrees.", '"city"'):
        assert piece in sent
    assert "Ab3Ab3Ab3" in sent or kind == "gemini", "which call is answered; Google goes by name and order"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_picture_reaches_the_service(kind: str) -> None:
    """Bytes and kind of it; a service without eyes says so itself."""
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
    content = [{"type": "text", "text": "What is it?"}, picture]
    sent = (await asked(kind, {"messages": [user(content)]}, stream=False)).sent
    assert PNG in sent
    assert "png" in sent.replace(PNG, "")
    assert sent.index("What is it?") >= 0


@pytest.mark.parametrize("role", ["system", "developer"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_system_prompt_reaches_the_service(kind: str, role: str) -> None:
    """As what it takes for one: a role it does not know is refused by some and read as a user's words by others."""
    turns = [{"role": role, "content": "Be terse."}, user("Hi.")]
    body = decode((await asked(kind, {"messages": turns}, stream=False)).sent)
    if kind not in NATIVE:
        knows = load(kind).build("up", ProviderSettings(kind=kind, base_url="http://127.0.0.1/v1"), **_parts())
        expected = role if knows.manner.quirks.developer else "system"
        assert body["messages"][0] == {"role": expected, "content": "Be terse."}
        return
    apart = {name: value for name, value in body.items() if name not in ("messages", "contents")}
    assert "Be terse." in encode(apart).decode()
    assert "Be terse." not in encode(body.get("messages") or body["contents"]).decode()


def _parts() -> dict[str, Any]:
    return {"transport": DirectTransport(), "tasks": Tasks()}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("kind", KINDS)
async def test_every_count_is_read(kind: str, stream: bool) -> None:
    """Cached tokens cost a tenth, thoughts are output: what is read wrongly is charged wrongly."""
    heard = await asked(kind, {"messages": [user("Hi.")]}, stream=stream)
    expected = msgspec.structs.replace(SPENT, reasoning=0 if kind in NO_REASONING_COUNT else 10)
    assert heard.usage == expected
    told = heard.body["usage"]
    assert (told["prompt_tokens"], told["completion_tokens"]) == (100, 30)
    assert told["prompt_tokens_details"]["cached_tokens"] == 60


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_limit_that_is_reached_is_told_as_one(kind: str, stream: bool) -> None:
    """Routing leaves the place alone for as long as it asks; a client reads its words."""
    body = encode({"error": {"message": "Slow down, please.", "type": "x", "status": "RESOURCE_EXHAUSTED"}})
    if kind == "bedrock":
        body = encode({"message": "Slow down, please."})
    raw = response("429 Too Many Requests", body, "retry-after: 7", "x-amzn-errortype: ThrottlingException")
    with pytest.raises(UpstreamRefused) as refusal:
        await asked(kind, {"messages": [user("Hi.")]}, stream=stream, answer=raw)
    assert (refusal.value.http_status, refusal.value.retry_after) == (429, 7.0)
    assert refusal.value.message == "up: Slow down, please."  # not a limit of ours, which has the same code
