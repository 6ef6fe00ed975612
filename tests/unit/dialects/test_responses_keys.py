"""What the cache knows of a Responses request: two that an upstream may answer differently never share an answer.

Every item and tool of OpenAI's package is walked, changed in one place, and must be another request then, or refused.
"""

from collections.abc import Iterator
from typing import Any, get_type_hints

import msgspec
import pytest

from gateway.dialects.responses_request import translate
from gateway.errors import InvalidRequest
from tests.unit.dialects.test_responses_published import CHAT, ITEMS, LOOK, TOOLS, ItemShapes, ToolShapes

Row = dict[str, Any]
OTHERS: list[Any] = ["other", 7, True, ["other"], {"other": 1}]
NAMES = ("type", "id", "logprobs")  # say nothing of what is asked
USER: Row = {"type": "message", "role": "user", "content": "hi"}
PARTS: list[Row] = [
    {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
    {"role": "user", "content": [{"type": "input_image", "image_url": "https://x/", "detail": "low"}]},
    {"role": "user", "content": [{"type": "input_file", "file_data": "data:,a", "filename": "a"}]},
    {"role": "assistant", "content": [{"type": "output_text", "text": "a", "annotations": []}]},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "a"}]},
]
_encode = msgspec.json.Encoder(order="deterministic").encode


def asked(**given: Any) -> Any:
    return translate({"model": "m", "input": [USER], **given}, [])


def key(**given: Any) -> bytes | None:
    """What is looked up; None where it is refused."""
    try:
        found = asked(**given)
    except InvalidRequest:
        return None
    return _encode([found.body, found.native.apart])


def changed(given: Any, hints: Any = ()) -> Iterator[tuple[str, Any]]:
    """The same with one thing in it changed, or one more; and the thing's name."""
    if isinstance(given, dict):
        for name in {*given, *hints, "new"} - {*NAMES}:
            for value in OTHERS:
                if value != given.get(name):
                    yield name, {**given, name: value}
            for deeper, inner in changed(given.get(name)):
                yield f"{name}.{deeper}", {**given, name: inner}
    elif isinstance(given, list):
        for place, one in enumerate(given):
            for name, inner in changed(one):
                yield f"{place}.{name}", [*given[:place], inner, *given[place + 1 :]]


def before(kind: str) -> list[Row]:
    """The call that a result is of."""
    call = kind.removesuffix("_output")
    call = call if call in ITEMS else f"{call}_call"
    return [{"type": call, **ITEMS[call][1]}] if kind.endswith("_output") else []


@pytest.mark.parametrize(
    ("kind", "fields"),
    [*((kind, fields) for kind, (what, fields) in ITEMS.items() if what == CHAT), *(("message", row) for row in PARTS)],
)
def test_an_item_that_is_changed_is_another_request(kind: str, fields: Row) -> None:
    """A field that nobody reads here is read at OpenAI."""
    hints = {name for shape in ItemShapes.get(kind, ()) for name in get_type_hints(shape)}
    ahead = [USER, *before(kind)] if kind != "compaction_trigger" else [USER]
    whole = key(input=[*ahead, {"type": kind, **fields}])
    assert whole is not None
    same = [
        (name, row)
        for name, row in changed(fields, hints)
        if name != "role" and key(input=[*ahead, {"type": kind, **row}]) == whole
    ]
    assert same == []


@pytest.mark.parametrize("kind", TOOLS)
def test_a_tool_that_is_changed_is_another_request(kind: str) -> None:
    """Whether the service offers it at once, and what it says of a name space, is a part of what is asked."""
    fields = TOOLS[kind][1]
    hints = {name for shape in ToolShapes[kind] for name in get_type_hints(shape)}
    whole = key(tools=[LOOK, {"type": kind, **fields}])
    assert whole is not None
    same = [row for _, row in changed(fields, hints) if key(tools=[LOOK, {"type": kind, **row}]) == whole]
    assert same == []


def brought(*tools: Row) -> Row:
    return {"type": "additional_tools", "role": "developer", "tools": [*tools]}


def searched(call: str, *tools: Row) -> list[Row]:
    head: Row = {"call_id": call, "execution": "client"}
    asked = {"type": "tool_search_call", **head, "arguments": {}}
    return [asked, {"type": "tool_search_output", **head, "tools": [*tools]}]


OTHER: Row = {**LOOK, "parameters": {"type": "object", "properties": {"p": {"type": "string"}}}}


@pytest.mark.parametrize("way", ["brought", "searched"])
def test_what_items_say_of_a_tool_later_holds(way: str) -> None:
    """The model is offered what it may call by now; an answer to other tools is another answer."""
    if way == "brought":
        said = [[brought(LOOK), USER, brought(tool), USER] for tool in (LOOK, OTHER)]
    else:
        said = [[USER, *searched("1", LOOK), USER, *searched("2", tool)] for tool in (LOOK, OTHER)]
    assert key(input=said[0]) != key(input=said[1])
    found = asked(input=said[1])
    (tool,) = found.body["tools"]
    assert tool["function"]["parameters"] == OTHER["parameters"]


def test_a_name_that_took_free_text_and_is_a_function_now_is_called_as_one() -> None:
    """The client looks for the kind of call that it has offered last."""
    free: Row = {"type": "custom", "name": "look"}
    assert asked(input=[brought(free), USER, brought(LOOK), USER]).custom == frozenset()
    assert asked(input=[brought(LOOK), USER, brought(free), USER]).custom == {"look"}
    own = [{"type": "tool_search", "execution": "client", "description": text} for text in ("a", "b")]
    (tool,) = asked(input=[brought(own[0]), USER, brought(own[1]), USER]).body["tools"]
    assert tool["function"]["description"] == "b"
    assert len(asked(input="hi", tools=own).body["tools"]) == 1


@pytest.mark.parametrize(
    "item",
    [
        brought(LOOK),
        {"type": "configuration_update", "reasoning": {"effort": "high"}},
        {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "sealed"},
    ],
    ids=lambda item: item["type"],
)
def test_where_an_item_stands_is_a_part_of_what_is_asked(item: Row) -> None:
    """What it says holds from there on only."""
    places = [[item, USER, USER], [USER, item, USER], [USER, USER, item]]
    assert len({key(input=items) for items in places}) == 3


def test_an_item_is_no_text_that_reads_like_it() -> None:
    """Where nobody understands it it is told as its own JSON, which anybody may write."""
    for item in ({"type": "web_search_call", "id": "w"}, {"type": "compaction", "encrypted_content": "theirs"}):
        found = asked(input=[USER, item])
        text = found.body["messages"][-1]["content"]
        assert key(input=[USER, item]) != key(input=[USER, {**USER, "content": text}])


def test_what_chat_can_say_is_one_request_with_it() -> None:
    """An answer that was paid for once serves chats and responses alike."""
    call = {
        "type": "function_call",
        "id": "f",
        "call_id": "c",
        "name": "look",
        "arguments": "{}",
        "status": "completed",
    }
    said = {"type": "output_text", "text": "a", "annotations": [], "logprobs": []}
    items = [
        USER,
        {"type": "message", "id": "m", "status": "completed", "role": "assistant", "content": [said]},
        call,
        {"type": "function_call_output", "call_id": "c", "output": "x"},
    ]
    assert asked(input=items, tools=[LOOK]).native.apart == {}


SCHEMA: Row = {"type": "json_schema", "name": "r", "schema": {}}
CHOICES: list[Row] = [{"type": "function", "name": "look"}, {"type": "allowed_tools", "mode": "auto", "tools": [LOOK]}]


@pytest.mark.parametrize("given", [{"text": {"format": SCHEMA}}, *({"tool_choice": choice} for choice in CHOICES)])
def test_settings_nobody_reads_here_are_read_at_openai(given: Row) -> None:
    """What OpenAI adds to the form of an answer or to a choice tomorrow must not share today's answers."""
    whole = key(tools=[LOOK], **given)
    assert whole is not None
    (name,) = given
    added = [{**given[name], "new": 7}]
    if name == "text":
        added.append({"format": {**SCHEMA, "new": 7}})
    assert [one for one in added if key(tools=[LOOK], **{name: one}) == whole] == []


def test_a_picture_in_a_result_is_none_of_the_users() -> None:
    """Chat shows it in a turn of the user's; OpenAI knows who has sent it."""
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    picture = {"type": "input_image", "image_url": "https://x/", "detail": "low"}
    result: Row = {"type": "function_call_output", "call_id": "c"}
    shown = [USER, call, {**result, "output": [{"type": "input_text", "text": "x"}, picture]}]
    told = [USER, call, {**result, "output": "x"}, {**USER, "content": [picture]}]
    assert asked(input=shown).body == asked(input=told).body
    assert key(input=shown) != key(input=told)
