"""OpenAI's own tools that clients run, with OpenAI's client over real sockets, at a model that knows only functions."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.json import decode

from tests.flow.test_responses import ASKED, client_of, playing
from tests.flow.test_responses_upstream import served

Item = dict[str, Any]
# By tool: how it is offered, what the model writes, the result's item behind its call, what the model is told.
LOOPS: dict[str, tuple[Item, str, Item, str]] = {
    "local_shell": (
        {"type": "local_shell"},
        '{"command": ["ls"]}',
        {"type": "local_shell_call_output", "id": "call_1", "output": "{}"},
        "{}",
    ),
    "shell": (
        {"type": "shell", "environment": {"type": "local"}},
        '{"commands": ["ls"], "timeout_ms": 5}',
        {
            "type": "shell_call_output",
            "call_id": "call_1",
            "output": [{"stdout": "{}", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
        },
        '[{"stdout":"{}","stderr":"","outcome":{"type":"exit","exit_code":0}}]',
    ),
    "apply_patch": (
        {"type": "apply_patch"},
        '{"type": "create_file", "path": "a.py", "diff": "+x"}',
        {"type": "apply_patch_call_output", "call_id": "call_1", "status": "completed", "output": "{}"},
        '{"status":"completed","output":"{}"}',
    ),
    "tool_search": (
        {"type": "tool_search", "execution": "client", "parameters": {"type": "object"}},
        '{"query": "mail"}',
        {
            "type": "tool_search_output",
            "call_id": "call_1",
            "execution": "client",
            "tools": [{"type": "function", "name": "t{}", "parameters": {"type": "object"}, "strict": False}],
        },
        '{"tools":["t{}"]}',
    ),
}


def filled(value: Any, word: str) -> Any:
    """A result with a word of its own."""
    if isinstance(value, dict):
        return {name: filled(one, word) for name, one in value.items()}
    if isinstance(value, list):
        return [filled(one, word) for one in value]
    return value.replace("{}", word) if isinstance(value, str) else value


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", LOOPS)
async def test_a_tool_is_called_and_its_result_goes_back(tmp_path: Path, name: str, stream: bool) -> None:
    """This loop is what an agent is; and it may leave the conversation here or send all of it with every turn."""
    tool, arguments, result, told = LOOPS[name]
    async with playing(tmp_path) as (script, _, client):
        script.text, script.calls = "", [("call_1", name, arguments)]
        asked: Any = {"model": "lab/m", "input": ASKED, "tools": [tool]}
        if stream:
            async with client.responses.stream(**asked) as events:
                done = [event.item async for event in events if event.type == "response.output_item.done"]
                first: Any = await events.get_final_response()
            assert [item.to_dict() for item in done] == [item.to_dict() for item in first.output]
        else:
            first = await client.responses.create(**asked)
        (item,) = first.output
        assert (item.type, item.call_id, item.status) == (f"{name}_call", "call_1", "completed")
        (offered,) = script.sent[0]["tools"]
        assert offered["function"]["name"] == name
        script.text, script.calls = "Done.", []
        more: Any = {"model": "lab/m", "tools": [tool], "input": [filled(result, "a")]}
        second = await client.responses.create(**more, previous_response_id=first.id)
        assert second.output_text == "Done."
        more["input"] = [{"role": "user", "content": ASKED}, item.to_dict(), *more["input"]]
        await client.responses.create(**more, store=False)
        for sent in script.sent[1:]:
            _, call, answer = sent["messages"]
            assert decode(call["tool_calls"][0]["function"]["arguments"]).items() >= decode(arguments).items()
            assert (answer["tool_call_id"], answer["content"]) == ("call_1", filled(told, "a"))


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("offered", [False, True])
async def test_two_results_never_share_an_answer(tmp_path: Path, name: str, offered: bool) -> None:
    """What a command printed is the question: an answer about another folder would be acted upon."""
    tool, arguments, result, _ = LOOPS[name]
    async with playing(tmp_path) as (script, gateway, _):
        script.text, script.calls = "", [("call_1", name, arguments)]
        first = await gateway.post("/v1/responses", {"model": "lab/m", "input": ASKED, "tools": [tool]})
        script.text, script.calls = "Done.", []
        seen: list[str] = []
        for word in ("a", "b", "a", "b"):
            items = [{"role": "user", "content": ASKED}, *first.json["output"], filled(result, word)]
            asked = {"model": "lab/m", "input": items, "temperature": 0, "tools": [tool] if offered else []}
            told = await gateway.post("/v1/responses", asked)
            assert told.status == 200, told.raw
            seen.append(told.headers["x-nearhit-cache"])
            await gateway.settled()
        assert seen == ["miss", "miss", "hit-exact", "hit-exact"]


async def test_an_own_tool_and_a_function_that_looks_like_it_are_two_requests(tmp_path: Path) -> None:
    """A kept answer is told to one with items that the other does not know."""
    async with playing(tmp_path) as (script, gateway, _):
        asked: Any = {"model": "lab/m", "input": ASKED, "temperature": 0}
        await gateway.post("/v1/responses", {**asked, "tools": [{"type": "shell"}]})
        (tool,) = script.sent[0]["tools"]
        await gateway.settled()
        told = await gateway.post("/v1/responses", {**asked, "tools": [{"type": "function", **tool["function"]}]})
        assert told.headers["x-nearhit-cache"] == "miss"
        assert script.sent[1]["tools"] == script.sent[0]["tools"]


async def test_a_conversation_begun_at_openai_goes_on_at_another_model(tmp_path: Path) -> None:
    """After a failover, or with a cheaper model: its shell's calls were a 400 until it began anew."""
    async with served(tmp_path) as (gateway, up), client_of(gateway) as client:
        tools: Any = [{"type": "local_shell"}]
        first = await client.responses.create(model="codex", input="List.", tools=tools)
        assert up.heard[-1].body["tools"] == tools
        kept = [item.to_dict() for item in first.output if item.type in ("message", "local_shell_call")]
        result: Any = {"type": "local_shell_call_output", "id": "c", "output": "a.py"}
        asked: Any = [{"role": "user", "content": "List."}, *kept, result]
        assert (await client.responses.create(model="other", input=asked, tools=tools)).output_text
        more: Any = {"model": "codex", "tools": tools}
        await client.responses.create(**more, input=[result], previous_response_id=first.id)
        assert up.heard[-1].body["input"][-1] == result  # as OpenAI knows it
        result = {"type": "local_shell_call_output", "call_id": "c", "output": "a.py"}  # as its examples write it
        second = await client.responses.create(**more, input=[result], previous_response_id=first.id)
        await client.responses.create(**more, input="And?", previous_response_id=second.id)
        assert result in up.heard[-1].body["input"]
