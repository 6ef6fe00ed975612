"""Items of kept responses that a client names instead of sending them, with OpenAI's client over real sockets."""

from pathlib import Path
from typing import Any

import openai
import pytest

from tests.flow.test_responses import ASKED, client_of, playing
from tests.flow.test_responses_upstream import served


async def test_items_that_are_only_named_are_looked_up(tmp_path: Path) -> None:
    """The AI SDK names each earlier answer by its id instead of sending it."""
    async with playing(tmp_path) as (script, gateway, client):
        script.calls = [("call_1", "local_shell", '{"command": ["ls"]}')]
        tools: Any = [{"type": "local_shell"}]
        first = await client.responses.create(model="lab/m", input=[{"role": "user", "content": ASKED}], tools=tools)
        script.calls = []
        said, called = first.output
        (asked,) = [item async for item in client.responses.input_items.list(first.id)]
        result = {"type": "local_shell_call_output", "id": "call_1", "output": "a.py"}
        names: Any = [
            {"type": "item_reference", "id": asked.id},
            {"id": said.id},
            {"type": "item_reference", "id": called.id},
        ]
        more: Any = {"model": "lab/m", "input": [*names, result], "tools": tools}
        second = await client.responses.create(**more)
        assert [message["role"] for message in script.sent[-1]["messages"]] == ["user", "assistant", "tool"]
        assert script.sent[-1]["messages"][0]["content"] == ASKED
        assert script.sent[-1]["messages"][1]["tool_calls"][0]["id"] == "call_1"
        await client.responses.delete(first.id)  # what was named is a part of what was asked
        await client.responses.create(model="lab/m", input="And?", previous_response_id=second.id)
        assert len(script.sent[-1]["messages"]) == 5
        with pytest.raises(openai.BadRequestError) as raised:
            await client.responses.create(**more)
        assert (raised.value.param, raised.value.code) == ("input[0].id", "item_not_found")
        assert asked.id in raised.value.message
        again = await client.responses.create(model="lab/m", input=ASKED)
        named: Any = [{"type": "item_reference", "id": again.output[0].id}]
        async with client_of(gateway, await gateway.new_key("rivals")) as rival:
            with pytest.raises(openai.BadRequestError, match="not found"):
                await rival.responses.create(model="lab/m", input=named)


async def test_what_is_only_named_is_held_for(tmp_path: Path) -> None:
    """A name is some bytes, and what it stands for is read: a hold that knew of the name alone would be overspent."""
    async with served(tmp_path) as (gateway, _), client_of(gateway) as client:
        sealed: Any = {"type": "reasoning", "id": "", "summary": [], "encrypted_content": "s" * 60_000}
        asked: Any = {"model": "openai/gpt-5-codex", "input": [sealed, {"role": "user", "content": "Hi."}]}
        first = await client.responses.create(**asked)
        thought, _ = [item async for item in client.responses.input_items.list(first.id, order="asc")]
        asked["input"][0] = {"type": "item_reference", "id": thought.id}
        told = await gateway.post("/v1/responses", asked, headers={"x-nearhit-dry-run": "1"})
        assert float(told.json["worst_case_usd"]) > 0.075, told.json  # 60,000 bytes, a token each, at 1.25 USD
