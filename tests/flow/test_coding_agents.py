"""What coding agents send by base URL alone, as they were seen to send it, in small: one tool is called and answered.

Recorded of Codex 0.169, Claude Code 2.1.330, opencode 1.18 and qwen-code 0.24 and written anew without their prompts.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.flow.dialect_upstream import scripted
from tests.live import Told, live, settings

SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {"command": {"type": "string", "description": "c" * 4_000}},
    "required": ["command"],
    "additionalProperties": False,
}
LONG = "You are an agent. " * 2_000
RUN = '{"command": "ls"}'
Body = dict[str, Any]


def _codex(call_id: str | None) -> Body:
    """Developers' and users' messages apart, functions, name spaces and a service; thoughts wanted sealed."""
    passed = {"internal_chat_message_metadata_passthrough": {"turn_id": "t1"}}
    items: list[Body] = [
        {"type": "message", "role": "developer", "id": "msg_1", "content": [{"type": "input_text", "text": LONG}]},
        {"type": "message", "role": "user", "id": "msg_2", "content": [{"type": "input_text", "text": "List."}]},
    ]
    if call_id is not None:
        items += [
            {
                "type": "function_call",
                "status": "completed",
                "id": "fc_1",
                "name": "run",
                "arguments": RUN,
                "call_id": call_id,
                **passed,
            },
            {"type": "function_call_output", "id": "fco_1", "call_id": call_id, "output": "a.py", **passed},
        ]
    tools: list[Body] = [
        {"type": "function", "name": "run", "description": "Runs.", "strict": False, "parameters": SCHEMA},
        {
            "type": "namespace",
            "name": "mcp__files",
            "description": "",
            "tools": [
                {"type": "function", "name": "read", "description": "Reads.", "strict": False, "parameters": SCHEMA}
            ],
        },
        {"type": "web_search", "external_web_access": False},
    ]
    return {
        "model": "lab/m",
        "stream": True,
        "input": items,
        "tools": tools,
        "tool_choice": "auto",
        "store": False,
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "s1",
        "client_metadata": {"x-codex-installation-id": "i1"},
    }


def _claude(call_id: str | None) -> Body:
    """A note to the biller first, cache marks, reminders beside the question, thinking, edits of the context."""
    mark = {"cache_control": {"type": "ephemeral"}}
    messages: list[Body] = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>r</system-reminder>"},
                {"type": "text", "text": "List.", **mark},
            ],
        },
        {"role": "system", "content": "The user has opened a.py."},
    ]
    if call_id is not None:
        used = {"type": "tool_use", "id": call_id, "name": "run", "input": {"command": "ls"}}
        result = {"tool_use_id": call_id, "type": "tool_result", "content": "a.py", "is_error": False, **mark}
        messages += [{"role": "assistant", "content": [used]}, {"role": "user", "content": [result]}]
    return {
        "model": "lab/m",
        "max_tokens": 32_000,
        "stream": True,
        "messages": messages,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2;"},
            {"type": "text", "text": LONG, **mark},
        ],
        "tools": [{"name": "run", "description": "Runs.", "input_schema": SCHEMA}],
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
        "metadata": {"user_id": '{"device_id":"d","account_uuid":"","session_id":"s1"}'},
    }


def _chat(call_id: str | None) -> Body:
    """opencode and qwen-code: an answer of the assistant before the question, tools with a dialect of JSON schema."""
    messages: list[Body] = [
        {"role": "system", "content": LONG},
        {"role": "user", "content": [{"type": "text", "text": "This is where we are."}]},
        {"role": "assistant", "content": "Got it."},
        {"role": "user", "content": "List."},
    ]
    if call_id is not None:
        call = {"id": call_id, "type": "function", "function": {"name": "run", "arguments": RUN}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": call_id, "content": [{"type": "text", "text": "a.py"}]})
    tool = {"type": "function", "function": {"name": "run", "description": "Runs.", "parameters": SCHEMA}}
    return {
        "model": "lab/m",
        "max_tokens": 32_000,
        "messages": messages,
        "tools": [tool],
        "tool_choice": "auto",
        "stream": True,
        "stream_options": {"include_usage": True},
    }


AGENTS: list[tuple[str, Callable[[str | None], Body], dict[str, str]]] = [
    ("/v1/responses", _codex, {"session-id": "s1", "originator": "codex_exec", "x-codex-beta-features": "f"}),
    ("/v1/messages?beta=true", _claude, {
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14", "anthropic-version": "2023-06-01",
        "x-claude-code-session-id": "s1", "anthropic-dangerous-direct-browser-access": "true", "x-app": "cli"}),
    ("/v1/chat/completions", _chat, {"x-session-affinity": "s1", "accept": "*/*"}),
]  # fmt: skip


def _events(told: Told) -> list[Any]:
    lines = [line[6:] for line in told.raw.split(b"\n") if line.startswith(b"data: ")]
    return [msgspec.json.decode(line) for line in lines if line != b"[DONE]"]


def _called(path: str, told: Told) -> tuple[str, str]:
    """The id of the call that the client is asked to make, and its arguments."""
    events = _events(told)
    if "responses" in path:
        (item,) = [e["item"] for e in events if e["type"].endswith("item.done") and e["item"]["type"] != "message"]
        return item["call_id"], item["arguments"]
    if "messages" in path:
        (block,) = [e["content_block"] for e in events if e.get("content_block", {}).get("type") == "tool_use"]
        return block["id"], "".join([e["delta"].get("partial_json", "") for e in events if "delta" in e])
    calls = [c for e in events for choice in e["choices"] for c in choice["delta"].get("tool_calls", [])]
    return calls[0]["id"], "".join([call["function"].get("arguments", "") for call in calls])


@pytest.mark.parametrize(("path", "shape", "headers"), AGENTS)
async def test_a_tool_is_called_and_its_result_comes_back(
    tmp_path: Path, path: str, shape: Callable[[str | None], Body], headers: dict[str, str]
) -> None:
    """An agent is this loop; a field, header or item that was refused would end it in its first minute."""
    async with scripted() as (script, upstream):
        lab = {"kind": "openai", "base_url": upstream.url, "api_key": "none"}
        async with live(settings(tmp_path, providers={"up": {"kind": "scripted"}, "lab": lab})) as gateway:
            prices: Body = {"input_usd": "1.00", "output_usd": "2.00", "actor": "test", "effective_from": 0.0}
            await gateway.services.prices.set("lab/m", **prices)
            for greeting in ("/", "/api/hello"):
                async with gateway.client.head(gateway.url + greeting) as there:
                    assert there.status == 200
            script.calls = [("call_1", "run", RUN)]
            told = await gateway.post(path, shape(None), headers=headers)
            assert told.status == 200, told.raw
            call_id, arguments = _called(path, told)
            assert msgspec.json.decode(arguments) == {"command": "ls"}
            script.calls = []
            told = await gateway.post(path, shape(call_id), headers=headers)
            assert told.status == 200, told.raw
            asked, result = script.sent[-1]["messages"][-2:]
            assert asked["tool_calls"][0]["id"] == result["tool_call_id"] == call_id
            assert "a.py" in str(result["content"])
