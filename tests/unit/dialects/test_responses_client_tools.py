"""OpenAI's own tools that clients run, at a model that knows only functions: offered, called, answered."""

import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher
from openai.types.responses import ResponseOutputItem, ResponseStreamEvent
from pydantic import TypeAdapter

from engine.api import Tools
from engine.toolforms import check_tools, form_of, grammar
from gateway.dialects.responses_answer import ResponsesVoice
from gateway.dialects.responses_client_tools import KINDS
from gateway.dialects.responses_relay import events_of
from gateway.dialects.responses_request import translate
from tests.unit.dialects.test_responses_answer import body, call, streamed

OWN: list[dict[str, Any]] = [
    {"type": "local_shell"},
    {"type": "shell"},
    {"type": "apply_patch"},
    {"type": "tool_search", "execution": "client", "parameters": {"type": "object"}},
]
LOOK: dict[str, Any] = {"type": "function", "name": "look", "parameters": {"type": "object"}}
ITEM: TypeAdapter[Any] = TypeAdapter(ResponseOutputItem)
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def voice(tools: list[dict[str, Any]]) -> ResponsesVoice:
    return ResponsesVoice(translate({"model": "m", "input": "hi", "tools": tools}), now=lambda: 9.0)


def called(name: str, arguments: str, finish: str = "tool_calls") -> dict[str, Any]:
    """The item that a model's call becomes: as OpenAI's package reads it, and the same streamed."""
    answer = body({"content": None, "tool_calls": [call(1, name, arguments)]}, finish)
    (item,) = msgspec.json.decode(voice(OWN).whole(answer))["output"]
    assert ITEM.validate_python(item).type == item["type"] == KINDS[name].item
    events = streamed(answer, tools=OWN)
    assert all(EVENT.validate_python(event).type == event["type"] for event in events)
    added, *_, done = [event for event in events if event["type"].startswith("response.output_item.")]
    assert (added["item"]["id"], added["item"]["status"], done["item"]) == (item["id"], "in_progress", item)
    return item


RIGHT: list[tuple[str, str, dict[str, Any]]] = [
    (
        "local_shell",
        '{"command": ["ls", "-la"], "timeout_ms": 500, "working_directory": "/x", "env": {"A": "b"}, "user": "ann"}',
        {"action": {"type": "exec", "command": ["ls", "-la"], "env": {"A": "b"}, "timeout_ms": 500, "user": "ann",
                    "working_directory": "/x"}},
    ),
    (
        "local_shell",
        '{"command": ["ls"]}',
        {"action": {"type": "exec", "command": ["ls"], "env": {}, "timeout_ms": None, "user": None,
                    "working_directory": None}},
    ),
    (
        "shell",
        '{"commands": ["ls", "pwd"], "timeout_ms": 500, "max_output_length": 9}',
        {"action": {"commands": ["ls", "pwd"], "timeout_ms": 500, "max_output_length": 9}, "environment": None},
    ),
    (
        "apply_patch",
        '{"type": "update_file", "path": "a.py", "diff": "@@\\n-a\\n+b"}',
        {"operation": {"type": "update_file", "path": "a.py", "diff": "@@\n-a\n+b"}},
    ),
    (
        "apply_patch",
        '{"type": "delete_file", "path": "a.py", "diff": ""}',
        {"operation": {"type": "delete_file", "path": "a.py"}},
    ),
    ("tool_search", '{"query": "mail"}', {"arguments": {"query": "mail"}, "execution": "client"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments", "expected"), RIGHT, ids=lambda value: value if len(value) < 20 else "")
def test_a_call_comes_back_as_the_item_a_client_waits_for(name: str, arguments: str, expected: dict[str, Any]) -> None:
    """Whoever offers such a tool knows no functions: a call of one would be left lying."""
    item = called(name, arguments)
    assert {key: item[key] for key in expected} == expected
    assert (item["call_id"], item["status"]) == ("c1", "completed")


WRONG: list[tuple[str, str, Any]] = [
    ("local_shell", "ls -la | wc", ["ls -la | wc"]),
    ("local_shell", '{"command": ["rm", "-rf", "/tmp/x', ['{"command": ["rm", "-rf", "/tmp/x']),
    ("local_shell", '{"command": "ls -la | wc"}', ["sh", "-c", "ls -la | wc"]),
    ("local_shell", '"ls -la | wc"', ["sh", "-c", "ls -la | wc"]),
    ("local_shell", '["ls"]', ["ls"]),
    ("local_shell", '{"command": ["sleep", 5]}', ["sleep", "5"]),
    ("local_shell", '{"command": []}', ['{"command": []}']),
    ("local_shell", "", [""]),
    ("local_shell", '{"command": ["sh", "-c", {"a": "`reboot`"}]}', ['{"command": ["sh", "-c", {"a": "`reboot`"}]}']),
    ("shell", '{"commands": ["ls", 5, null]}', ["ls", "5", "null"]),
    ("shell", '{"commands": "ls; pwd"}', ["ls; pwd"]),
    ("shell", '["ls", "pwd"]', ["ls", "pwd"]),
    ("shell", "I run `reboot` now", ["'I run `reboot` now'"]),
    ("apply_patch", "not JSON", {"type": "update_file", "path": ".", "diff": "not JSON"}),
    ("apply_patch", '{"type":"update_file","path":"a"}', {"type": "update_file", "path": "a",
                                                           "diff": '{"type":"update_file","path":"a"}'}),
    ("apply_patch", '{"type":"rename","path":"a"}', {"type": "update_file", "path": "a",
                                                      "diff": '{"type":"rename","path":"a"}'}),
    ("tool_search", "mail", "mail"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments", "expected"), WRONG)
def test_a_call_that_was_written_wrongly_is_one_that_the_client_can_answer(
    name: str, arguments: str, expected: Any
) -> None:
    """The client runs it, fails and tells the model; nothing of it runs that the model did not spell out."""
    item = called(name, arguments)
    told = item.get("action") or item.get("operation") or item
    assert expected in (told.get("command"), told.get("commands"), told, told.get("arguments"))


def test_numbers_that_are_none_are_left_out() -> None:
    """A client reads them as whole milliseconds, and refuses the call for anything else."""
    for written, told in (('"500"', 500), ("1.5", 1), ("-1", None), ("1e40", None), ("true", None), ('"soon"', None)):
        item = called("local_shell", f'{{"command": ["ls"], "timeout_ms": {written}, "env": {{"A": 1, "B": null}}}}')
        assert (item["action"]["timeout_ms"], item["action"]["env"]) == (told, {"A": "1"})


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60))
def test_whatever_a_model_writes_has_openais_form(text: str) -> None:
    """A client's parser must never be the one to find out; and a shell runs nothing of what is no command."""
    for name in KINDS:
        called(name, text)


@pytest.mark.parametrize("text", ["$(echo ran)", "`echo ran`", "x; echo ran", "x\necho ran", "' ; echo ran #", ""])
def test_a_shell_that_is_given_no_command_runs_none(text: str) -> None:
    """Prose about a command holds one between backticks."""
    (line,) = called("shell", text)["action"]["commands"]
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 127)


@pytest.mark.parametrize("one", [{"why": "instead of `touch ran`"}, ["bash", "-lc", "echo $(touch ran)"]])
def test_what_is_no_line_of_a_shell_is_run_by_none(tmp_path: Path, one: Any) -> None:
    """As JSON it is a word between quotes, and a shell looks into those."""
    (line,) = called("shell", msgspec.json.encode({"commands": [one]}).decode())["action"]["commands"]
    done = subprocess.run(["sh", "-c", line], capture_output=True, cwd=tmp_path, check=False)
    assert (done.returncode, [*tmp_path.iterdir()]) == (127, [])


@pytest.mark.parametrize("depth", [49, 50, 60, 800, 977, 5_000])
def test_arguments_too_deep_to_be_told_again_are_a_text(depth: int) -> None:
    """JSON can be read deeper than it can be written, and a stream that has begun would be cut there."""
    text = '{"a":' * depth + "1" + "}" * depth
    found = called("tool_search", text)["arguments"]
    assert (found == text) == (depth > 50)
    called("shell", f'{{"commands": [{"[" * depth}{"]" * depth}]}}')
    called("local_shell", f'{{"command": ["a"], "env": {{"b": {text}}}}}')


def test_a_call_that_was_cut_is_not_taken_for_a_whole_one() -> None:
    """A streaming client runs what is done: half a command must not look like it."""
    assert called("local_shell", '{"command": ["rm", "-rf", "/tm', "length")["status"] == "incomplete"
    assert called("apply_patch", '{"type": "upd', "length")["status"] == "in_progress"
    done = [event for event in streamed(body({"content": "a"}, "length")) if event["type"].endswith("item.done")]
    assert [event["item"]["status"] for event in done] == ["incomplete"]


def test_items_are_told_in_their_order_and_whole() -> None:
    """OpenAI's client keeps items as they are added: one that waits for its end must not be overtaken."""
    calls = [call(1, "look", "{}"), call(2, "shell", '{"commands": ["ls"]}'), call(3, "look", '{"a": 1}')]
    answer = body({"content": "So.", "tool_calls": calls}, "tool_calls")
    tools = [*OWN, LOOK]
    whole = msgspec.json.decode(voice(tools).whole(answer))
    assert [item["type"] for item in whole["output"]] == ["message", "function_call", "shell_call", "function_call"]
    events = streamed(answer, tools=tools)
    assert events[-1]["response"] == whole
    added = [event["output_index"] for event in events if event["type"] == "response.output_item.added"]
    assert added == [0, 1, 2, 3]
    deltas = [event for event in events if event["type"] == "response.function_call_arguments.delta"]
    assert [(event["output_index"], event["delta"]) for event in deltas] == [(1, "{}"), (3, '{"a": 1}')]
    commands = [event for event in events if event["type"].startswith("response.shell_call_command.")]
    assert [event["type"].rpartition(".")[2] for event in commands] == ["added", "delta", "done"]
    assert (commands[1]["delta"], commands[2]["command"]) == ("ls", "ls")


def test_a_kept_item_is_streamed_as_it_would_have_been() -> None:
    """A hit must not be told from a fresh answer by what a client's parser makes of it."""
    item = called("shell", '{"commands": ["ls", "pwd"]}')
    answer = body({"tool_calls": [call(1, "shell", '{"commands": ["ls", "pwd"]}')]}, "tool_calls")
    fresh = [(event.pop("type"), event) for event in streamed(answer, tools=OWN)[2:-1]]
    for _, event in fresh:
        del event["sequence_number"]
    assert [*events_of(item, 0)] == fresh


def asked(**change: Any) -> Any:
    return translate({"model": "m", "input": "hi", **change})


def names(found: Any) -> list[str]:
    return [tool["function"]["name"] for tool in found.body["tools"]]


def test_own_tools_are_offered_beside_functions_of_the_same_name() -> None:
    """Codex has a function `shell` too; the call of either must come back as what it was offered as."""
    function = {**LOOK, "name": "shell"}
    for tools in ([*OWN, function], [function, *OWN]):
        found = asked(tools=[*tools, {"type": "shell"}])
        own, theirs = [name for name in names(found) if name.startswith("shell")]
        calls = [call(1, own, '{"commands": ["ls"]}'), call(2, theirs, "{}")]
        whole = msgspec.json.decode(
            ResponsesVoice(found, now=lambda: 9.0).whole(body({"tool_calls": calls}, "tool_calls"))
        )
        assert sorted(item["type"] for item in whole["output"]) == ["function_call", "shell_call"]
        assert [item["name"] for item in whole["output"] if item["type"] == "function_call"] == ["shell"]
    assert (found.ignored, found.need) == ((), None)


def test_own_tools_can_be_chosen() -> None:
    """A choice among tools names these by their type."""
    found = asked(tools=[LOOK, *OWN], tool_choice={"type": "shell"})
    assert found.body["tool_choice"] == {"type": "function", "function": {"name": "shell"}}
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "apply_patch"}, {"type": "web_search"}]}
    found = asked(tools=[LOOK, *OWN, {"type": "web_search"}], tool_choice=choice)
    assert (names(found), found.need) == (["apply_patch"], None)
    choice["tools"] = [{"type": "web_search"}]
    found = asked(tools=[LOOK, {"type": "web_search"}], tool_choice=choice)
    assert found.need.param == "tool_choice.tools[0].type"


def test_a_shell_in_a_container_is_nobody_elses() -> None:
    """The command would run on the client's own machine instead, which is what a container is there to prevent."""
    for environment in (
        {"type": "container_auto", "skills": [{"type": "skill_reference"}]},
        {"type": "container_reference"},
    ):
        found = asked(tools=[{"type": "shell", "environment": environment}])
        assert (found.need.param, "Responses API" in found.need.message) == ("tools[0].type", True)
        chosen = {"type": "shell"}
        found = asked(tools=[LOOK, {"type": "shell", "environment": environment}], tool_choice=chosen)
        assert found.need.param == "tool_choice.type"
        found = asked(tools=[{"type": "shell"}, {"type": "shell", "environment": environment}], tool_choice=chosen)
        assert (names(found), found.need) == (["shell"], None)
    skills = [{"name": "csv", "description": "Reads CSV.", "path": "/skills/csv"}]
    found = asked(tools=[{"type": "shell", "environment": {"type": "local", "skills": skills}}])
    assert "/skills/csv" in found.body["tools"][0]["function"]["description"]
    assert asked(tools=[{"type": "tool_search"}]).need.param == "tools[0].type"


def test_the_bundled_engine_takes_what_models_are_offered() -> None:
    """It holds a call to its schema, and knows only some of what a schema can say."""
    offered = [dict(tool["function"]) for tool in asked(tools=OWN).body["tools"]]
    tools = Tools(functions=offered, choice="required")
    check_tools(tools)
    rules = grammar(tools, form_of("<tool_call>"), special=False)
    assert rules is not None
    assert LLMatcher.validate_grammar(rules) == ""


HISTORY: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = [
    (
        {"type": "local_shell_call", "id": "lsh_1", "call_id": "c1", "status": "completed",
         "action": {"type": "exec", "command": ["ls"], "env": {}, "timeout_ms": None}},
        {"type": "local_shell_call_output", "id": "c1", "output": "a.py"},
        {"command": ["ls"], "env": {}}, "a.py",
    ),
    (
        {"type": "local_shell_call", "id": "lsh_1", "status": "completed",
         "action": {"type": "exec", "command": ["ls"]}},
        {"type": "function_call_output", "call_id": "lsh_1", "output": "a.py"},
        {"command": ["ls"]}, "a.py",
    ),
    (
        {"type": "local_shell_call", "id": "lsh_1", "call_id": "c1", "status": "completed",
         "action": {"type": "exec", "command": ["ls"]}},
        {"type": "local_shell_call_output", "id": "item_r_0", "call_id": "c1", "output": "a.py"},
        {"command": ["ls"]}, "a.py",
    ),
    (
        {"type": "local_shell_call", "id": "lsh_1", "call_id": "c1", "status": "completed",
         "action": {"type": "exec", "command": ["ls"]}},
        {"type": "local_shell_call_output", "id": "lsh_1", "output": "a.py"},
        {"command": ["ls"]}, "a.py",
    ),
    (
        {"type": "shell_call", "call_id": "c1", "action": {"commands": ["ls"], "timeout_ms": 5}, "status": "completed"},
        {"type": "shell_call_output", "call_id": "c1",
         "output": [{"stdout": "a.py", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]},
        {"commands": ["ls"], "timeout_ms": 5},
        '[{"stdout":"a.py","stderr":"","outcome":{"type":"exit","exit_code":0}}]',
    ),
    (
        {"type": "apply_patch_call", "call_id": "c1", "status": "completed",
         "operation": {"type": "create_file", "path": "a", "diff": "+x"}},
        {"type": "apply_patch_call_output", "call_id": "c1", "status": "failed", "output": "No room."},
        {"type": "create_file", "path": "a", "diff": "+x"}, '{"status":"failed","output":"No room."}',
    ),
    (
        {"type": "tool_search_call", "call_id": "c1", "execution": "client", "arguments": {"query": "mail"}},
        {"type": "tool_search_output", "call_id": "c1", "execution": "client",
         "tools": [{"type": "namespace", "name": "mail", "tools": [{**LOOK, "defer_loading": True}]}]},
        {"query": "mail"}, '{"tools":["mail__look"]}',
    ),
]  # fmt: skip


@pytest.mark.parametrize(("item", "result", "arguments", "told"), HISTORY)
def test_a_call_and_its_result_are_read_as_a_functions(
    item: dict[str, Any], result: dict[str, Any], arguments: dict[str, Any], told: str
) -> None:
    """Clients send both back with every later turn, and name the call as the specification or as its examples do."""
    found = asked(input=[{"role": "user", "content": "hi"}, item, result], tools=OWN)
    _, asked_for, answer = found.body["messages"]
    (one,) = asked_for["tool_calls"]
    assert one["function"]["name"] == item["type"].removesuffix("_call")
    assert msgspec.json.decode(one["function"]["arguments"]) == arguments
    assert (answer["role"], answer["tool_call_id"], answer["content"]) == ("tool", one["id"], told)
    assert (found.need, found.ignored) == (None, ())


def test_tools_that_items_bring_are_offered_once_and_can_be_called() -> None:
    """Codex looks for tools instead of offering hundreds: what it has found is of no use if it is not offered."""
    space = {"type": "namespace", "name": "mail", "tools": [LOOK]}
    brought = {"type": "additional_tools", "role": "developer", "tools": [LOOK, space, {"type": "web_search"}]}
    found = asked(input=[brought, {"role": "user", "content": "hi"}], tools=[LOOK])
    assert names(found) == ["look", "mail__look"]
    assert found.ignored == ("input[0].tools[2].type=web_search",)
    assert found.native.apart["tools"] == [{"type": "web_search"}]  # which changes the answer where it is run
    whole = msgspec.json.decode(
        ResponsesVoice(found, now=lambda: 9.0).whole(body({"tool_calls": [call(1, "mail__look", "{}")]}))
    )
    assert (whole["output"][0]["namespace"], whole["output"][0]["name"]) == ("mail", "look")


def test_a_call_of_free_text_in_a_name_space_is_read_as_the_tool_that_is_offered() -> None:
    """A model that sees another name in its own words calls that one."""
    space = {"type": "namespace", "name": "files", "tools": [{"type": "custom", "name": "patch"}]}
    item = {"type": "custom_tool_call", "call_id": "c", "name": "patch", "namespace": "files", "input": "x"}
    found = asked(input=[{"role": "user", "content": "hi"}, item], tools=[space])
    assert [found.body["messages"][1]["tool_calls"][0]["function"]["name"]] == names(found)


def test_what_a_conversation_says_of_its_settings_holds() -> None:
    """A later word goes before an earlier one and before the request's own."""
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
    items = [
        {"type": "configuration_update", "reasoning": {"effort": "low"}},
        {"role": "user", "content": "hi"},
        {"type": "configuration_update", "reasoning": {"effort": "high"}, "text": {"format": schema}},
    ]
    found = asked(input=items, reasoning={"effort": "minimal", "summary": "auto"}, text={"verbosity": "low"})
    assert (found.body["reasoning_effort"], found.body["verbosity"]) == ("high", "low")
    assert found.body["response_format"]["json_schema"]["name"] == "n"
    assert [message["role"] for message in found.body["messages"]] == ["user"]
