"""A conversation that has been with other models comes to Anthropic, which refuses what it did not sign itself."""

import re
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic

from tests.languages.anthropic import Anthropic, error
from tests.languages.responses import Responses
from tests.live import live, settings
from tests.wire_upstream import Answer, Manner, Request, wire_upstream

TOOLS = [{"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}]
THINKS = {"type": "enabled", "budget_tokens": 1_024}
CLEARS = {"edits": [{"type": "clear_thinking_20251015"}, {"type": "clear_tool_uses_20250919"}]}
OWN = {"type": "thinking", "thinking": "Mine.", "signature": "EqQBCgIYAhIkown"}


class Strict(Anthropic):
    """Refuses as the service does: thoughts it did not sign, ids it could not have made, turns that go on without."""

    async def answer(self, asked: Request) -> Answer:
        turns = [turn for turn in asked.body["messages"] if isinstance(turn["content"], list)]
        for block in (block for turn in turns for block in turn["content"]):
            if block["type"] == "thinking" and not block["signature"].startswith("Eq"):
                return error("400 Bad Request", "invalid_request_error", "Invalid `signature` in `thinking` block")
            if not re.fullmatch(r"[a-zA-Z0-9_-]*", block.get("id") or block.get("tool_use_id") or ""):
                return error("400 Bad Request", "invalid_request_error", "String should match pattern")
        thinks = asked.body["thinking"]["type"] == "enabled"
        if thinks and turns[-2]["content"][0]["type"] != "thinking":
            return error("400 Bad Request", "invalid_request_error", "Expected `thinking`, but found `tool_use`")
        edits = asked.body.get("context_management", {"edits": []})["edits"]
        if not thinks and any(edit["type"].startswith("clear_thinking") for edit in edits):
            return error("400 Bad Request", "invalid_request_error", "clear_thinking needs thinking")
        return await super().answer(asked)


async def said(client: AsyncAnthropic, stream: bool, **asked: Any) -> list[dict[str, Any]]:
    if not stream:
        return [block.model_dump() for block in (await client.beta.messages.create(**asked)).content]
    async with client.beta.messages.stream(**asked) as answer:
        return [block.model_dump() for block in (await answer.get_final_message()).content]


@pytest.mark.parametrize("stream", [False, True])
async def test_what_another_model_thought_and_called_goes_on_at_anthropic(tmp_path: Path, stream: bool) -> None:
    """After a failover, or a change of the route, every later turn of an agent was a 400 until it began anew."""
    async with (
        wire_upstream(Strict(), Manner()) as theirs,
        wire_upstream(Responses(), Manner()) as sealing,
    ):
        providers = {
            "anthropic": {"kind": "anthropic", "base_url": f"http://127.0.0.1:{theirs.port}"},
            "openai": {"kind": "openai", "base_url": f"http://127.0.0.1:{sealing.port}/v1", "responses": True},
        }
        models = {
            "first": {"route": ["openai/gpt-5-codex"], "free": True},
            "then": {"route": ["anthropic/claude-haiku-4-5"], "free": True},
        }
        async with (
            live(settings(tmp_path, providers=providers, models=models)) as gateway,
            AsyncAnthropic(base_url=gateway.url, api_key=gateway.key, max_retries=0) as client,
        ):
            asked: dict[str, Any] = {"max_tokens": 2_048, "thinking": THINKS, "tools": TOOLS}
            question = {"role": "user", "content": "Look."}
            answer = await said(client, stream, **asked, model="first", messages=[question])
            assert (answer[0]["type"], answer[0]["signature"]) == ("thinking", "")
            called = answer[-1]
            assert called["type"] == "tool_use"
            called["id"] = "functions.look:0"
            result = {"type": "tool_result", "tool_use_id": called["id"], "content": "Seen."}
            turns = [
                question,
                {"role": "assistant", "content": [OWN, {"type": "text", "text": "Yes."}]},
                question,
                {"role": "assistant", "content": answer},
                {"role": "user", "content": [result]},
            ]
            found = await said(
                client, stream, **asked, model="then", messages=turns, context_management=CLEARS, betas=["x"]
            )
            assert found[0]["type"] == "text"
            sent = theirs.heard[-1].body
            assert sent["messages"][1] == turns[1]
            assert sent["messages"][3]["content"][-1]["id"] == "functions_look_0"
            assert sent["messages"][4]["content"][0]["tool_use_id"] == "functions_look_0"
            assert sent["thinking"] == {"type": "disabled"}


async def test_a_turn_of_foreign_thoughts_alone_is_left_out(tmp_path: Path) -> None:
    """An answer that was cut while it thought holds nothing else, and Anthropic refuses an empty turn."""
    async with wire_upstream(Strict(), Manner()) as theirs:
        provider = {"kind": "anthropic", "base_url": f"http://127.0.0.1:{theirs.port}"}
        models = {"then": {"route": ["anthropic/claude-haiku-4-5"], "free": True}}
        async with live(settings(tmp_path, providers={"anthropic": provider}, models=models)) as gateway:
            text = {"type": "text", "text": "Go on."}
            foreign = {"type": "thinking", "thinking": "Hm.", "signature": ""}
            turns = [
                {"role": "user", "content": [text]},
                {"role": "assistant", "content": [foreign]},
                {"role": "user", "content": [text]},
            ]
            body = {"model": "then", "max_tokens": 24, "thinking": {"type": "adaptive"}, "messages": turns}
            told = await gateway.post("/v1/messages", body)
            assert told.status == 200, told.raw
            assert theirs.heard[-1].body["messages"] == [turns[0], turns[2]]
            assert theirs.heard[-1].body["thinking"] == {"type": "adaptive"}
