"""What dialects make is not checked again, since it is right by construction: here it is checked all the same."""

from typing import Any

import pytest

from gateway import wire
from gateway.bench import translation
from gateway.dialects.messages import Messages
from gateway.dialects.responses import Responses
from gateway.errors import InvalidRequest

TEXT = {"type": "text", "text": "x"}
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
LONG = "a" * 128
USE = {"type": "tool_use", "id": "t", "name": LONG, "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t", "content": [TEXT, PICTURE]}
TOOL = {"name": LONG, "input_schema": {"type": "object"}}
MESSAGES: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": [TEXT, PICTURE]}], "tools": [TOOL], "tool_choice": {"type": "any"}},
    {
        "messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "", "signature": ""}, USE]},
            {"role": "user", "content": [RESULT, {**RESULT, "content": ""}, TEXT]},
            {"role": "assistant", "content": []},
            {"role": "system", "content": [TEXT, TEXT]},
        ],
        "tools": [TOOL, {**TOOL, "name": "b", "type": "custom"}, {"type": "web_search_20250305", "name": "w"}],
        "tool_choice": {"type": "tool", "name": LONG, "disable_parallel_tool_use": True},
    },
    {"messages": [{"role": "user", "content": [{"type": "container_upload", "file_id": "f"}]}]},
]
CALL = {"type": "function_call", "call_id": "c", "name": "f", "namespace": LONG, "arguments": "{}"}
FUNCTIONS = [{"type": "function", "name": "f"}, {"type": "custom", "name": "g"}]
SPACE = {"type": "namespace", "name": LONG, "tools": FUNCTIONS}
CHOICE = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f", "namespace": LONG}]}
SHOWN = [{"type": "input_text", "text": "x"}, {"type": "input_image", "image_url": "https://x/"}]
RESPONSES: list[dict[str, Any]] = [
    {"input": [CALL, {"type": "function_call_output", "call_id": "c", "output": SHOWN}], "tools": [SPACE]},
    {"input": [{"role": "user", "content": SHOWN}, {"role": "assistant", "content": []}], "tools": [SPACE]},
    {"input": "x", "tools": [SPACE, {"type": "web_search"}], "tool_choice": CHOICE},
    {"input": "x", "tools": [SPACE], "tool_choice": {"type": "custom", "name": "g", "namespace": LONG}},
    {"input": [{"role": "user", "content": SHOWN}, {"type": "web_search_call", "id": "w", "status": "completed"}]},
]


@pytest.mark.parametrize("body", [*MESSAGES, translation.as_messages(translation.agent())])
def test_a_message_becomes_a_chat_that_is_right(body: dict[str, Any]) -> None:
    """A chat that providers cannot read would be a failure of theirs in the eyes of a client."""
    wire.check_chat(Messages().read({"model": "m", "max_tokens": 8, **body}).body)


@pytest.mark.parametrize("body", [*RESPONSES, translation.as_responses(translation.agent())])
def test_a_response_becomes_a_chat_that_is_right(body: dict[str, Any]) -> None:
    """The same for items, name spaces and tools that take free text."""
    wire.check_chat(Responses().read({"model": "m", **body}).body)


REFUSAL = [{"type": "refusal", "refusal": "No."}]


@pytest.mark.parametrize(
    ("items", "param"),
    [
        ([{"type": ["message"], "role": "user", "content": "x"}], "input[0].type"),
        ([{"type": {}}], "input[0].type"),
        ([{"role": "user", "content": [SHOWN[0], *REFUSAL]}], "input[0].content"),
        ([{"role": "system", "content": REFUSAL}], "input[0].content"),
        ([CALL, {"type": "function_call_output", "call_id": "c", "output": REFUSAL}], "input[1].output"),
    ],
)
def test_what_no_chat_can_say_is_refused_as_a_response(items: list[dict[str, Any]], param: str) -> None:
    """Nobody looks at the chat again: what gets through is a failure of ours, or of a provider's, not a 400."""
    with pytest.raises(InvalidRequest) as refused:
        Responses().read({"model": "m", "input": items})
    assert refused.value.param == param


def test_messages_that_say_nothing_are_refused() -> None:
    """The same for a conversation of empty instructions: no provider answers a chat without messages."""
    with pytest.raises(InvalidRequest) as refused:
        Messages().read({"model": "m", "max_tokens": 8, "messages": [{"role": "system", "content": []}]})
    assert refused.value.param == "messages"
