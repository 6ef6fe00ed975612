"""Translation there and back, in every language: what was said and what was called is what arrives, in any packets."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from gateway.call import Body, Chunk
from gateway.errors import InvalidRequest
from gateway.providers import Sending
from gateway.stream import EventParser, fold
from gateway.upstream import (
    anthropic_answers,
    anthropic_requests,
    bedrock_answers,
    bedrock_requests,
    gemini_answers,
    gemini_requests,
)
from gateway.upstream.event_frames import FrameParser
from gateway.upstream.reader import Framing, Translator
from tests.languages import anthropic, bedrock, gemini
from tests.proofs import examples

encode = msgspec.json.encode
decode = msgspec.json.decode

NAMES = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=8)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
CALLS = st.lists(st.tuples(NAMES, st.dictionaries(TEXTS, VALUES, max_size=3)), max_size=3)


class Spoken(Struct, frozen=True):
    """One language. `answer`: an assistant's turn of a request as a whole answer; `streamed`: the same as events."""

    request: Callable[[Sending], Body]
    answer: Callable[[Body], Chunk]
    streamed: Callable[[Body, int], bytes]
    translator: Callable[[], Translator]
    framing: Callable[[], Framing] = EventParser
    ends_by_itself: bool = True


def turn_of(body: Body, role: str) -> Body:
    turns: Any = body.get("messages") or body.get("contents")
    return next(turn for turn in turns if turn["role"] == role)


def anthropic_answer(body: Body) -> Chunk:
    content = turn_of(body, "assistant")["content"]
    usage = {"input_tokens": 1, "output_tokens": 1}
    message: Body = {"type": "message", "id": "m", "content": content, "stop_reason": "end_turn", "usage": usage}
    return anthropic_answers.body_of(decode(encode(message)), "m", 0)


def anthropic_stream(body: Body, size: int) -> bytes:
    blocks: Any = decode(encode(turn_of(body, "assistant")["content"]))
    return b"".join(map(anthropic.event, anthropic.message(blocks, size)))


def gemini_answer(body: Body) -> Chunk:
    content = turn_of(body, "model")
    usage = {"promptTokenCount": 1, "candidatesTokenCount": 1}
    told: Body = {"candidates": [{"content": content, "finishReason": "STOP"}], "usageMetadata": usage}
    return gemini_answers.body_of(decode(encode(told)), "m", 0)


def gemini_stream(body: Body, size: int) -> bytes:
    parts: Any = decode(encode(turn_of(body, "model")["parts"]))
    return b"".join(map(gemini.event, gemini.answer(parts, size)))


def bedrock_answer(body: Body) -> Chunk:
    usage = {"inputTokens": 1, "outputTokens": 1}
    told: Body = {"output": {"message": turn_of(body, "assistant")}, "stopReason": "end_turn", "usage": usage}
    return bedrock_answers.body_of(decode(encode(told)), bedrock_answers.Events("m", 0, "a"))


def bedrock_stream(body: Body, size: int) -> bytes:
    blocks: Any = decode(encode(turn_of(body, "assistant")["content"]))
    return b"".join(bedrock.answer(blocks, size))


LANGUAGES = {
    "anthropic": Spoken(
        request=anthropic_requests.translated,
        answer=anthropic_answer,
        streamed=anthropic_stream,
        translator=lambda: anthropic_answers.Events("m", 0),
    ),
    "gemini": Spoken(
        request=gemini_requests.translated,
        answer=gemini_answer,
        streamed=gemini_stream,
        translator=lambda: gemini_answers.Events("m", 0),
        ends_by_itself=False,
    ),
    "bedrock": Spoken(
        request=bedrock_requests.translated,
        answer=bedrock_answer,
        streamed=bedrock_stream,
        translator=lambda: bedrock_answers.Events("m", 0, "a"),
        framing=FrameParser,
    ),
}


@pytest.fixture(params=sorted(LANGUAGES), scope="module")
def spoken(request: pytest.FixtureRequest) -> Spoken:
    return LANGUAGES[request.param]


def asked(text: str, calls: list[tuple[str, dict[str, Any]]]) -> Sending:
    made = [
        {"id": f"call_{at}", "type": "function", "function": {"name": name, "arguments": encode(given).decode()}}
        for at, (name, given) in enumerate(calls)
    ]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "done"} for call in made]
    earlier: Body = {"role": "assistant", "content": text or None, **({"tool_calls": made} if made else {})}
    messages = [{"role": "user", "content": "go"}, earlier, *results, {"role": "user", "content": "on"}]
    body: Body = {"messages": messages, "max_tokens": 5}
    return Sending(id="a", operation="chat", model="m", body=body, stream=True, tenant="t", timeout=5.0, idle=5.0)


def check(body: Body, text: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    choices: Any = body["choices"]
    message = choices[0]["message"]
    assert (message["content"] or "") == text
    found = [call["function"] for call in message.get("tool_calls") or []]
    assert [(call["name"], decode(call["arguments"])) for call in found] == calls
    ids = [call["id"] for call in message.get("tool_calls") or []]
    assert len(set(ids)) == len(ids)
    assert all(ids)


@given(text=TEXTS, calls=CALLS)
@settings(max_examples=examples(60), deadline=None)
def test_text_and_arguments_come_back_as_they_went(spoken: Spoken, text: str, calls: Any) -> None:
    """What a model said once is given back to it in every later turn; a letter lost there is lost for good."""
    if text or calls:
        check(spoken.answer(spoken.request(asked(text, calls))).data, text, calls)


@pytest.mark.parametrize("role", ["system", "user"])
def test_a_conversation_without_a_turn_is_refused_by_name(spoken: Spoken, role: str) -> None:
    """These services want something to answer; their own words for it name nothing that the client has sent."""
    sending = asked("", [])
    nothing = {"role": role, "content": "be brief" if role == "system" else ""}
    with pytest.raises(InvalidRequest) as refused:
        spoken.request(replace(sending, body={"messages": [nothing]}))
    assert refused.value.param == "messages"


@given(text=TEXTS, calls=CALLS, size=st.integers(1, 9), cuts=st.lists(st.integers(0, 4_000), max_size=6))
@settings(max_examples=examples(60), deadline=None)
def test_a_stream_in_any_packets_is_the_same_answer(
    spoken: Spoken, text: str, calls: Any, size: int, cuts: list[int]
) -> None:
    """Packets end where the network pleases: in the middle of a letter, an event or an argument."""
    if not text and not calls:
        return
    raw = spoken.streamed(spoken.request(asked(text, calls)), size)
    places = [0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]
    framing, translator = spoken.framing(), spoken.translator()
    chunks: list[Chunk] = []
    for start, end in pairwise(places):
        for data in framing.feed(raw[start:end]) if end > start else ():
            chunks += translator.feed(data)
    if not spoken.ends_by_itself:
        chunks += translator.end()
    assert translator.done
    check(fold(chunk.data for chunk in chunks), text, calls)
    told: Any = [choice for chunk in chunks for choice in chunk.data["choices"]]  # type: ignore[attr-defined]
    assert [choice["delta"].get("role") for choice in told if "role" in choice["delta"]] == ["assistant"]
    begun = [call for choice in told for call in choice["delta"].get("tool_calls", ()) if "id" in call]
    assert [call["index"] for call in begun] == list(range(len(calls)))


@pytest.mark.parametrize("translated", [anthropic_requests.translated, bedrock_requests.translated])
def test_thoughts_that_openai_sealed_stay_out_of_what_others_read(translated: Callable[[Sending], Body]) -> None:
    """Nobody else can open them, and a conversation that fails over would be refused for them."""
    theirs = {"type": "thinking", "id": "rs_1", "thinking": "Hm.", "signature": "sealed-there"}
    ours = {"type": "thinking", "thinking": "Well.", "signature": "signed-here"}
    earlier = {"role": "assistant", "content": "Hi.", "thinking_blocks": [theirs, ours]}
    user = {"role": "user", "content": "hello"}
    waits: dict[str, Any] = {"timeout": 5.0, "idle": 5.0}
    body: Body = {"messages": [user, earlier, user], "max_tokens": 9}
    sent = encode(
        translated(Sending(id="a", operation="chat", model="m", body=body, stream=False, tenant="t", **waits))
    )
    assert (b"sealed-there" in sent, b"signed-here" in sent) == (False, True)
