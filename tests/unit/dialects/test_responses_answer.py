"""What a chat completion becomes for Responses clients, whole and as events."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.responses_answer import ResponsesVoice, refusal
from gateway.dialects.responses_object import blank
from gateway.dialects.responses_request import translate
from gateway.errors import NotFound, UpstreamFailed
from gateway.stream import unfold

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
USAGE = {"prompt_tokens": 10, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
# What strict clients look for, null where there is nothing.
_WORDS = """
id object created_at completed_at status error incomplete_details instructions model output parallel_tool_calls
previous_response_id reasoning service_tier store temperature text tool_choice tools top_logprobs top_p presence_penalty
frequency_penalty truncation usage user metadata background max_output_tokens max_tool_calls safety_identifier
prompt_cache_key
"""
KEYS = _WORDS.split()
OVER = 9.5  # when the answer was whole
TOOLS = [
    {"type": "function", "name": "look", "parameters": {"type": "object"}},
    {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"}},
    {"type": "namespace", "name": "files", "tools": [{"type": "function", "name": "look"}]},
]


def voice(**asked: Any) -> ResponsesVoice:
    return ResponsesVoice(translate({"model": "m", "input": "hi", "tools": TOOLS, **asked}), now=lambda: OVER)


def body(message: dict[str, Any], finish: str = "stop", **choice: Any) -> dict[str, Any]:
    one = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish, **choice}
    return {"id": "chatcmpl-7", "created": 5, "model": "m", "choices": [one], "usage": USAGE}


def call(number: int, name: str, arguments: str) -> dict[str, Any]:
    return {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def streamed(whole: dict[str, Any], **asked: Any) -> list[dict[str, Any]]:
    """The events of the same answer, checked for their framing and numbers."""
    speaker = voice(**asked)
    raw = b"".join(speaker.events(event) for event in unfold(whole, "chat", include_usage=True)) + speaker.end()
    return told(raw)


def told(raw: bytes) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for piece in raw.decode().split("\n\n")[:-1]:
        name, _, data = piece.partition("\n")
        event = msgspec.json.decode(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == len(found)
        found.append(event)
    return found


@given(thought=TEXT, text=TEXT, arguments=st.lists(TEXT, max_size=3), free=TEXT)
def test_streamed_and_whole_are_the_same_answer(thought: str, text: str, arguments: list[str], free: str) -> None:
    """A client may ask for either form; texts and arguments survive in both, and in the deltas."""
    calls = [call(n, "look", given) for n, given in enumerate(arguments)]
    calls.append(call(9, "patch", msgspec.json.encode({"input": free}).decode()))
    answer = body({"content": text or None, "reasoning_content": thought, "tool_calls": calls}, "tool_calls")
    whole = msgspec.json.decode(voice().whole(answer))
    events = streamed(answer)
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"] == whole
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == whole["output"]
    deltas = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert deltas == text
    assert [item["arguments"] for item in done if item["type"] == "function_call"] == arguments
    assert [item["input"] for item in done if item["type"] == "custom_tool_call"] == [free]


def test_events_come_in_the_order_clients_wait_for() -> None:
    """A delta for an item that was never added is dropped, or raises."""
    kinds = [event["type"].removeprefix("response.") for event in streamed(body({"content": "a"}))]
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]


def test_every_key_is_there() -> None:
    """Strict validators refuse an object that leaves out what is null."""
    whole = msgspec.json.decode(voice(instructions="x", metadata={"a": "b"}).whole(body({"content": "a"})))
    assert set(KEYS) <= set(whole)
    assert whole["store"] is False
    assert whole["metadata"] == {"a": "b"}
    assert {"name", "description", "parameters", "strict"} <= set(whole["tools"][0])
    assert whole["usage"]["input_tokens_details"] == {"cached_tokens": 4, "cache_write_tokens": 0}
    assert whole["usage"]["total_tokens"] == 13


@pytest.mark.parametrize(("asked", "told"), [("flex", "flex"), ("on_demand", "default"), (None, "default")])
def test_only_published_tiers_are_told(asked: str | None, told: str) -> None:
    """A strict client reads none but these; an upstream's own word still goes to that upstream."""
    inner = translate({"model": "m", "input": "hi", "service_tier": asked})
    assert inner.body.get("service_tier") == asked
    assert blank(inner.asked)["service_tier"] == told


def test_a_call_into_a_name_space_says_which() -> None:
    """The client finds the tool by both."""
    whole = msgspec.json.decode(voice().whole(body({"tool_calls": [call(1, "files__look", "{}")]}, "tool_calls")))
    (item,) = whole["output"]
    assert (item["namespace"], item["name"], item["call_id"]) == ("files", "look", "c1")


@pytest.mark.parametrize(("finish", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
def test_an_answer_that_was_cut_is_incomplete(finish: str, reason: str) -> None:
    """Half an answer must not look like a whole one."""
    answer = body({"content": "a"}, finish)
    whole = msgspec.json.decode(voice().whole(answer))
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": reason})
    assert whole["output"][-1]["status"] == "incomplete"
    assert streamed(answer)[-1]["type"] == "response.incomplete"


def test_a_refusal_is_a_part_of_its_own() -> None:
    """Clients show it differently from an answer."""
    whole = msgspec.json.decode(voice().whole(body({"content": None, "refusal": "no"})))
    assert whole["output"][0]["content"] == [{"type": "refusal", "refusal": "no"}]


def test_log_probabilities_are_told_where_asked() -> None:
    """They ride on the text's part here."""
    token = {"token": "a", "logprob": -0.1, "bytes": [97], "top_logprobs": []}
    answer = body({"content": "a"}, logprobs={"content": [token], "refusal": None})
    asked = msgspec.json.decode(voice(top_logprobs=1).whole(answer))
    assert asked["output"][0]["content"][0]["logprobs"] == [token]
    assert msgspec.json.decode(voice().whole(answer))["output"][0]["content"][0]["logprobs"] == []


def test_an_answer_that_broke_off_has_failed() -> None:
    """Clients look for the error, for the failed response, or for both."""
    speaker = voice()
    first = unfold(body({"content": "a"}), "chat", include_usage=True)[:2]
    events = told(b"".join(map(speaker.events, first)) + speaker.failed(UpstreamFailed("gone")))
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert events[-2]["message"] == "gone"
    assert events[-1]["response"]["status"] == "failed"
    assert events[-1]["response"]["error"] == {"code": "server_error", "message": "gone"}
    assert not [event for event in events if event["type"] == "response.completed"]


def test_an_unknown_model_is_a_bad_request_here() -> None:
    """OpenAI answers 400 on this route and 404 on the others."""
    status, raw = refusal(NotFound("no such model"))
    assert (status, msgspec.json.decode(raw)["error"]["param"]) == (400, "model")


def test_one_that_was_announced_is_not_begun_again() -> None:
    """Its first events are kept before anybody is asked; the numbers of those that follow go on from there."""
    spoken = ResponsesVoice(translate({"model": "m", "input": "hi", "background": True, "stream": True}, []))
    queued = spoken.queued("7", "m", 5.0)
    begun, first = spoken.announced(queued)
    assert (queued["status"], begun["status"], begun["id"]) == ("queued", "in_progress", "resp_7")
    piece = {"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}
    rest = spoken.events({"id": "chatcmpl-7", "created": 5, "model": "m", "choices": [piece]}) + spoken.end()
    events = told(first + rest)
    assert [event["type"] for event in events[:4]] == [
        "response.created", "response.queued", "response.in_progress", "response.output_item.added",
    ]  # fmt: skip
    assert events[-1]["response"] == spoken.final()


def test_an_answer_is_over_when_it_is_over() -> None:
    """It was said to be complete in the moment in which it was begun."""
    found = msgspec.json.decode(voice().whole(body({"content": "Hi."})))
    assert (found["created_at"], found["completed_at"]) == (5, 9)
    assert msgspec.json.decode(voice().whole(body({"content": "Hi."}, "length")))["completed_at"] is None


def test_what_a_service_would_run_is_not_among_the_answers_tools() -> None:
    """It stood there without its fields (`{"type": "mcp"}`), which no client's types know, and nobody ran it."""
    left = [{"type": "mcp", "server_label": "x", "server_url": "https://x"}, {"type": "local_shell"}]
    whole = msgspec.json.decode(voice(tools=[*TOOLS, *left]).whole(body({"content": "x"})))
    assert [tool["type"] for tool in whole["tools"]] == ["function", "custom", "namespace", "local_shell"]
