"""What a chat completion becomes for Anthropic's clients, whole and as events, under any cut into chunks."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.messages_answer import MessagesVoice, refusal
from gateway.dialects.tool_names import ToolNames
from gateway.errors import (
    BudgetExhausted,
    GatewayError,
    Internal,
    InvalidRequest,
    NotFound,
    Overloaded,
    UpstreamTimeout,
)
from gateway.stream import unfold

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
USAGE = {
    "prompt_tokens": 10,
    "completion_tokens": 3,
    "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2},
}


def voice(*, thinks: bool = True, stops: tuple[str, ...] = ()) -> MessagesVoice:
    return MessagesVoice(ToolNames(), thinks=thinks, stops=stops)


def body(message: dict[str, Any], finish: str = "stop", **choice: Any) -> dict[str, Any]:
    one = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish, **choice}
    return {"id": "chatcmpl-7", "model": "m", "choices": [one], "usage": USAGE}


def streamed(whole: dict[str, Any], **given: Any) -> list[dict[str, Any]]:
    """The events of the same answer; the name of each is its type."""
    speaker = voice(**given)
    raw = b"".join(speaker.events(event) for event in unfold(whole, "chat", include_usage=True)) + speaker.end()
    found: list[dict[str, Any]] = []
    for piece in raw.decode().split("\n\n")[:-1]:
        name, _, data = piece.partition("\n")
        event = msgspec.json.decode(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found


def folded(events: list[dict[str, Any]]) -> dict[str, Any]:
    """As a client adds events up; fails where they come in an order no client takes."""
    message = events[0]["message"]
    texts: dict[int, str] = {}
    opened = -1
    for event in events[1:]:
        kind = event["type"]
        if kind == "content_block_start":
            assert opened == -1
            assert event["index"] == len(message["content"])
            opened = event["index"]
            message["content"].append(event["content_block"])
        elif kind == "content_block_delta":
            assert event["index"] == opened
            delta = event["delta"]
            field = {"text_delta": "text", "input_json_delta": "partial_json", "thinking_delta": "thinking"}
            if delta["type"] in field:
                texts[opened] = texts.get(opened, "") + delta[field[delta["type"]]]
        elif kind == "content_block_stop":
            assert event["index"] == opened
            opened = -1
        elif kind == "message_delta":
            message |= event["delta"]
            message["usage"] |= event["usage"]
    assert opened == -1
    for index, text in texts.items():
        block = message["content"][index]
        if block["type"] == "tool_use":
            block["input"] = msgspec.json.decode(text)
        else:
            block[block["type"]] = text
    return message


@given(thought=TEXT, text=TEXT, arguments=st.lists(st.dictionaries(TEXT, TEXT, max_size=3), max_size=3))
def test_streamed_and_whole_are_the_same_answer(thought: str, text: str, arguments: list[dict[str, str]]) -> None:
    """A client may ask for either form; texts and tool arguments survive in both."""
    message: dict[str, Any] = {"content": text or None, "reasoning_content": thought}
    if arguments:
        message["tool_calls"] = [
            {
                "id": f"c{n}",
                "type": "function",
                "function": {"name": "look", "arguments": msgspec.json.encode(given).decode()},
            }
            for n, given in enumerate(arguments)
        ]
    answer = body(message, "tool_calls" if arguments else "stop")
    whole = msgspec.json.decode(voice().whole(answer))
    assert folded(streamed(answer)) == whole
    assert "".join(block["text"] for block in whole["content"] if block["type"] == "text") == text
    assert "".join(block["thinking"] for block in whole["content"] if block["type"] == "thinking") == thought
    assert [block["input"] for block in whole["content"] if block["type"] == "tool_use"] == arguments


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (body({"content": "a"}), "end_turn"),
        (body({"content": "a"}, "length"), "max_tokens"),
        (body({"content": "a"}, "content_filter"), "refusal"),
        (body({"content": None, "refusal": "no"}), "refusal"),
        (body({"content": "a"}, stop_reason="END"), "stop_sequence"),
        (
            body({"tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}),
            "tool_use",
        ),
    ],
)
def test_stop_reasons(answer: dict[str, Any], reason: str) -> None:
    """Agents go on or stop by this word alone; OpenAI says `stop` of a forced call."""
    whole = msgspec.json.decode(voice(stops=("END",)).whole(answer))
    assert whole["stop_reason"] == folded(streamed(answer, stops=("END",)))["stop_reason"] == reason


def test_what_there_is_nothing_to_say_of_is_null() -> None:
    """Anthropic's own answers have these fields always; a client that reads them strictly found them missing."""
    answer = body({"content": "a"})
    events = streamed(answer)
    for told in (msgspec.json.decode(voice().whole(answer)), events[0]["message"], events[-2]["delta"]):
        assert [told[name] for name in ("container", "stop_details", "stop_sequence")] == [None, None, None]


def test_usage_counts_cached_input_apart() -> None:
    """Anthropic's input excludes what the prompt cache gave; adding both up must give the prompt."""
    usage = msgspec.json.decode(voice().whole(body({"content": "a"})))["usage"]
    assert usage == {
        "input_tokens": 4,
        "cache_creation_input_tokens": 2,
        "cache_read_input_tokens": 4,
        "output_tokens": 3,
    }


def test_thoughts_are_told_only_to_who_asked() -> None:
    """A client that did not ask for them has no place to put them."""
    answer = body({"content": "a", "reasoning_content": "hm"})
    assert [block["type"] for block in msgspec.json.decode(voice(thinks=False).whole(answer))["content"]] == ["text"]
    assert "thinking" not in {e.get("content_block", {}).get("type") for e in streamed(answer, thinks=False)}


@pytest.mark.parametrize("written", ['{"a": ', "[1]", "x"])
def test_arguments_that_are_no_object_are_not_lost(written: str) -> None:
    """A model's broken JSON is what a developer needs to see, not an empty object."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": written}}
    content = msgspec.json.decode(voice().whole(body({"tool_calls": [call]})))["content"]
    assert content[0]["input"] == {"invalid_json": written}


def test_an_answer_without_a_word_is_still_a_message() -> None:
    """Clients wait for the start and the stop whatever stands between."""
    kinds = [event["type"] for event in streamed(body({"content": ""}))]
    assert kinds == ["message_start", "ping", "message_delta", "message_stop"]


def test_nothing_optional_is_null() -> None:
    """Vercel's client refuses a text block whose citations are null."""
    for event in streamed(body({"content": "a"})):
        assert None not in event.get("content_block", {}).values()
        assert None not in event.get("delta", {"x": 1}).values() or event["type"] == "message_delta"


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (NotFound("no"), 404, "not_found_error"),
        (BudgetExhausted("no"), 429, "rate_limit_error"),
        (Overloaded("no"), 529, "overloaded_error"),
        (UpstreamTimeout("no"), 504, "timeout_error"),
        (Internal("no"), 500, "api_error"),
    ],
)
def test_errors_by_status(error: GatewayError, status: int, kind: str) -> None:
    """The client's exception follows the status, its users' handling the type."""
    found, raw = refusal(error, "req-1")
    told = msgspec.json.decode(raw)
    assert (found, told["type"], told["error"]["type"], told["request_id"]) == (status, "error", kind, "req-1")


def test_a_prompt_that_is_too_long_is_told_in_the_words_its_clients_look_for() -> None:
    """Claude Code shortens its conversation when it reads them, and gives up otherwise."""
    for words in ("The window is 2048 tokens.", "prompt is too long: 9 tokens > 8 maximum"):
        _, raw = refusal(InvalidRequest(words, code="context_length_exceeded"), "req-1")
        message = msgspec.json.decode(raw)["error"]["message"]
        assert message.startswith("prompt is too long: ")
        assert message.endswith(words)
