"""What dialects make is not checked again, since it is right by construction: here it is checked all the same."""

from typing import Any

import pytest

from gateway import wire
from gateway.bench import translation
from gateway.dialects.messages import Messages
from gateway.dialects.responses import Responses

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
