"""Every item, tool and choice that OpenAI's package knows, and what becomes of it where an upstream knows only chat.

The package's own unions are walked: what a newer one adds is missing in these tables by its name.
"""

from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from openai.types.responses.response_create_params import ToolChoice
from openai.types.responses.response_input_item_param import ResponseInputItemParam
from openai.types.responses.tool_param import ToolParam
from pydantic import TypeAdapter, ValidationError

from gateway.dialects.responses_request import Inner, translate
from gateway.errors import InvalidRequest

API = Path(__file__).parents[3] / "docs" / "api.md"
CHAT, NEEDED, NAMED = "translated", "only where Responses are spoken", "looked up before"
Row = tuple[str, dict[str, Any]]
PRINTED = {"stdout": "", "stderr": "", "outcome": {"type": "timeout"}}
SHOT = {"type": "computer_screenshot", "image_url": "https://x/"}
LOOK = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}
EXEC = {"type": "exec", "command": ["ls"], "env": {}}
DELETE = {"type": "delete_file", "path": "a"}
# Results stand behind their call.
ITEMS: dict[str, Row] = {
    "message": (CHAT, {"role": "user", "content": "hi"}),
    "function_call": (CHAT, {"call_id": "c", "name": "look", "arguments": "{}"}),
    "function_call_output": (CHAT, {"call_id": "c", "output": "x"}),
    "custom_tool_call": (CHAT, {"call_id": "c", "name": "patch", "input": "x", "namespace": "s"}),
    "custom_tool_call_output": (CHAT, {"call_id": "c", "output": "x"}),
    "local_shell_call": (CHAT, {"id": "l", "call_id": "c", "action": EXEC, "status": "completed"}),
    "local_shell_call_output": (CHAT, {"id": "c", "output": "x"}),
    "shell_call": (CHAT, {"call_id": "c", "action": {"commands": ["ls"]}}),
    "shell_call_output": (CHAT, {"call_id": "c", "output": [PRINTED]}),
    "apply_patch_call": (CHAT, {"call_id": "c", "operation": DELETE, "status": "completed"}),
    "apply_patch_call_output": (CHAT, {"call_id": "c", "status": "completed"}),
    "tool_search_call": (CHAT, {"call_id": "c", "arguments": {}, "execution": "client"}),
    "tool_search_output": (CHAT, {"call_id": "c", "tools": [LOOK], "execution": "client"}),
    "additional_tools": (CHAT, {"role": "developer", "tools": [LOOK]}),
    "configuration_update": (CHAT, {"reasoning": {"effort": "low"}}),
    "reasoning": (CHAT, {"id": "r", "summary": []}),
    "compaction": (CHAT, {"encrypted_content": "nearhit-1:eA=="}),
    "compaction_trigger": (CHAT, {}),
    "item_reference": (NAMED, {"id": "msg_1"}),
    "file_search_call": (NEEDED, {"id": "f", "queries": [], "status": "completed"}),
    "computer_call": (NEEDED, {"id": "f", "call_id": "c", "pending_safety_checks": [], "status": "completed"}),
    "computer_call_output": (NEEDED, {"call_id": "c", "output": SHOT}),
    "web_search_call": (NEEDED, {"id": "w", "status": "completed", "action": {"type": "search", "query": "x"}}),
    "image_generation_call": (NEEDED, {"id": "i", "result": None, "status": "completed"}),
    "code_interpreter_call": (
        NEEDED,
        {"id": "i", "code": None, "container_id": "c", "outputs": None, "status": "completed"},
    ),
    "mcp_list_tools": (NEEDED, {"id": "m", "server_label": "s", "tools": []}),
    "mcp_approval_request": (NEEDED, {"id": "m", "server_label": "s", "name": "n", "arguments": "{}"}),
    "mcp_approval_response": (NEEDED, {"approval_request_id": "m", "approve": True}),
    "mcp_call": (NEEDED, {"id": "m", "server_label": "s", "name": "n", "arguments": "{}"}),
    "program": (NEEDED, {"id": "p", "call_id": "c", "code": "", "fingerprint": "f"}),
    "program_output": (NEEDED, {"id": "p", "call_id": "c", "result": "", "status": "completed"}),
}
TOOLS: dict[str, Row] = {
    "function": (CHAT, LOOK),
    "custom": (CHAT, {"name": "patch"}),
    "namespace": (CHAT, {"name": "s", "description": "", "tools": [LOOK]}),
    "local_shell": (CHAT, {}),
    "shell": (CHAT, {"environment": {"type": "local"}}),
    "apply_patch": (CHAT, {}),
    "tool_search": (CHAT, {"execution": "client", "parameters": {"type": "object"}}),
    "file_search": (NEEDED, {"vector_store_ids": ["v"]}),
    "computer": (NEEDED, {}),
    "computer_use_preview": (NEEDED, {"display_height": 9, "display_width": 9, "environment": "linux"}),
    "web_search": (NEEDED, {}),
    "web_search_2025_08_26": (NEEDED, {}),
    "web_search_preview": (NEEDED, {}),
    "web_search_preview_2025_03_11": (NEEDED, {}),
    "mcp": (NEEDED, {"server_label": "s", "server_url": "https://x/"}),
    "code_interpreter": (NEEDED, {"container": {"type": "auto"}}),
    "programmatic_tool_calling": (NEEDED, {}),
    "image_generation": (NEEDED, {}),
}
SERVED = (
    *("file_search", "computer", "computer_use", "computer_use_preview", "image_generation", "code_interpreter"),
    *("web_search_preview", "web_search_preview_2025_03_11", "programmatic_tool_calling"),
)
CHOICES: dict[str, Row] = {
    "allowed_tools": (CHAT, {"mode": "auto", "tools": [{"type": "function", "name": "look"}]}),
    "function": (CHAT, {"name": "look"}),
    "custom": (CHAT, {"name": "patch"}),
    "shell": (CHAT, {}),
    "apply_patch": (CHAT, {}),
    "mcp": (NEEDED, {"server_label": "s"}),
    **{kind: (NEEDED, {}) for kind in SERVED},
}


def published(shape: Any) -> dict[str, list[Any]]:
    """The shapes of a union by the types they may have."""
    if get_origin(shape) is Annotated:
        return published(get_args(shape)[0])
    found: dict[str, list[Any]] = {}
    if get_origin(shape) in (Union, UnionType):
        for one in get_args(shape):
            for kind, shapes in published(one).items():
                found.setdefault(kind, []).extend(shapes)
    elif hasattr(shape, "__required_keys__"):
        for kind in _words(get_type_hints(shape).get("type")):
            found.setdefault(kind, []).append(shape)
    return found


def _words(hint: Any) -> list[str]:
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    return [word for one in get_args(hint) for word in _words(one)]


ItemShapes, ToolShapes = published(ResponseInputItemParam), published(ToolParam)


@pytest.mark.parametrize(
    ("union", "table"),
    [(ResponseInputItemParam, ITEMS), (ToolParam, TOOLS), (ToolChoice, CHOICES)],
    ids=["items", "tools", "choices"],
)
def test_the_tables_hold_what_the_package_knows(union: Any, table: dict[str, Row]) -> None:
    """What is new there has to be decided on here, and each row is what a client of that package would send."""
    shapes = published(union)
    assert set(shapes) == set(table)
    for kind, (_, fields) in table.items():
        assert any(_fits(shape, {"type": kind, **fields}) for shape in shapes[kind]), kind


def _fits(shape: Any, row: dict[str, Any]) -> bool:
    try:
        TypeAdapter(shape).validate_python(row)
    except ValidationError:
        return False
    return True


def _asked(items: list[dict[str, Any]]) -> Inner:
    return translate({"model": "m", "input": items}, earlier=[])


def _named(found: Inner, place: str, kind: str) -> bool:
    """Whether a need says what it is, where it stands and what would do."""
    assert found.need is not None
    words = (place, f"'{kind}'", "speaks the Responses API")
    return found.need.param == f"{place}.type" and all(word in found.need.message for word in words)


@pytest.mark.parametrize("kind", ITEMS)
def test_every_item_is_read_or_named(kind: str) -> None:
    """A request with one must not fail in the words of another dialect, nor be answered as if it were not there."""
    what, fields = ITEMS[kind]
    before = [ITEMS["message"][1]]
    if what == CHAT and (call := kind.removesuffix("_output")) != kind:
        call = call if call in ITEMS else f"{call}_call"
        before.append({"type": call, **ITEMS[call][1]})
    items, place = [*before, {"type": kind, **fields}], f"input[{len(before)}]"
    if what == NAMED:
        with pytest.raises(InvalidRequest) as raised:
            _asked(items)
        assert raised.value.param == f"{place}.type"
        assert "send the item itself" in str(raised.value)
    elif what == NEEDED:
        assert _named(_asked(items), place, kind)
    else:
        assert _asked(items).need is None


@pytest.mark.parametrize("kind", ["tool_search_call", "tool_search_output"])
def test_a_search_of_the_services_own_is_named(kind: str) -> None:
    """It has no call to be answered, and nobody has looked at its tools yet."""
    fields = {"arguments": {}, "tools": [5], "execution": "server", "call_id": None}
    assert _named(_asked([ITEMS["message"][1], {"type": kind, **fields}]), "input[1]", kind)


@pytest.mark.parametrize("kind", TOOLS)
def test_every_tool_is_offered_or_named(kind: str) -> None:
    """Beside others a tool that nobody can offer is left out by name; alone it is what is asked for."""
    what, fields = TOOLS[kind]
    alone = translate({"model": "m", "input": "hi", "tools": [{"type": kind, **fields}]})
    among = translate({"model": "m", "input": "hi", "tools": [LOOK, {"type": kind, **fields}]})
    assert among.need is None
    assert among.ignored == ((f"tools[1].type={kind}",) if what == NEEDED else ())
    assert ("tools" in alone.body) == (what == CHAT)
    assert (alone.need is not None) == (what == NEEDED)
    assert what == CHAT or _named(alone, "tools[0]", kind)


@pytest.mark.parametrize("kind", CHOICES)
def test_every_choice_is_made_or_named(kind: str) -> None:
    """Whether a tool that has to be called can be is no matter of chance."""
    what, fields = CHOICES[kind]
    tools = [{"type": name, **TOOLS[name][1]} for name in ("function", "custom", "shell", "apply_patch")]
    if what == NEEDED:
        tools.append({"type": kind})
    found = translate({"model": "m", "input": "hi", "tools": tools, "tool_choice": {"type": kind, **fields}})
    assert (found.need is not None) == (what == NEEDED)
    assert ("tool_choice" in found.body) == (what == CHAT)
    assert what == CHAT or _named(found, "tool_choice", kind)


def test_the_documentation_names_them_all() -> None:
    """Whoever writes a client looks there first."""
    text = API.read_text("utf-8")
    assert [kind for table in (ITEMS, TOOLS) for kind in table if f"`{kind}`" not in text] == []
