"""Items of an answer in their order: a call that is told at its end holds up what comes behind it."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.dialects.test_responses_answer import told
from tests.unit.dialects.test_responses_client_tools import LOOK, OWN, voice

Delta = dict[str, Any]


def piece(number: int, name: str | None, arguments: str) -> Delta:
    one: Delta = {"index": number, "function": {"arguments": arguments}}
    if name is not None:
        one |= {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"tool_calls": [one]}


SHELL = [piece(0, "shell", '{"commands":'), piece(0, None, '["ls"]}')]
THOUGHT, TEXT, REFUSAL = {"reasoning_content": "hm"}, {"content": "So."}, {"refusal": "No."}
PATCH, FUNCTION = piece(1, "apply_patch", "{}"), piece(2, "look", "{}")


def streamed(deltas: list[Delta], finish: str = "tool_calls") -> list[dict[str, Any]]:
    speaker = voice([*OWN, LOOK])
    raw = b"".join(speaker.events({"id": "chatcmpl-7", "choices": [{"index": 0, "delta": one}]}) for one in deltas)
    raw += speaker.events({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    return told(raw + speaker.end())


def check(deltas: list[Delta]) -> list[dict[str, Any]]:
    """As an older client of OpenAI's reads it: by the place in the list of what was added."""
    snapshot: list[str] = []
    texts: dict[str, str] = {}
    events = streamed(deltas)
    for event in events:
        if event["type"] == "response.output_item.added":
            assert event["output_index"] == len(snapshot)
            snapshot.append(event["item"]["id"])
        elif "output_index" in event:
            name = event.get("item_id") or (event.get("item") or {}).get("id")
            assert name in (None, snapshot[event["output_index"]])
        if event["type"].endswith(("text.delta", "refusal.delta")):
            texts[event["item_id"]] = texts.get(event["item_id"], "") + event["delta"]
    output = events[-1]["response"]["output"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert sorted(map(msgspec.json.encode, done)) == sorted(map(msgspec.json.encode, output))
    assert [item["id"] for item in output] == snapshot
    for item in output:
        if item["type"] in ("message", "reasoning"):
            (part,) = item["content"]
            assert texts[item["id"]] == part.get("text", part.get("refusal"))
    return done


@pytest.mark.parametrize(
    ("deltas", "kinds"),
    [
        ([*SHELL, TEXT, TEXT], ["shell_call", "message"]),
        ([TEXT, *SHELL, TEXT], ["message", "shell_call", "message"]),
        ([THOUGHT, PATCH, THOUGHT, TEXT], ["reasoning", "apply_patch_call", "reasoning", "message"]),
        ([SHELL[0], TEXT, SHELL[1], REFUSAL], ["shell_call", "message", "message"]),
        ([FUNCTION, TEXT], ["function_call", "message"]),
        ([*SHELL, FUNCTION, TEXT], ["shell_call", "function_call", "message"]),
    ],
)  # fmt: skip
def test_what_is_said_behind_a_call_is_told_behind_it(deltas: list[Delta], kinds: list[str]) -> None:
    """OpenAI's clients keep items in the order in which they are added, and die of one that is not there yet."""
    assert [item["type"] for item in check(deltas)] == kinds


@given(st.lists(st.sampled_from([*SHELL, THOUGHT, TEXT, REFUSAL, PATCH, FUNCTION]), max_size=12))
def test_items_are_added_in_their_order_whatever_alternates(deltas: list[Delta]) -> None:
    """Pieces of several calls may come in any order, with words between them."""
    check(deltas)


def test_only_the_last_item_was_cut() -> None:
    """A client runs again what is incomplete; the call before it was written to its end."""
    deltas = [*SHELL, piece(1, "look", '{"a')]
    for events in (streamed(deltas, "length"), streamed(deltas, "content_filter")):
        assert [item["status"] for item in events[-1]["response"]["output"]] == ["completed", "incomplete"]
        done = [event["item"]["status"] for event in events if event["type"] == "response.output_item.done"]
        assert done == ["completed", "incomplete"]
    whole = streamed(deltas)[-1]["response"]["output"]
    assert [item["status"] for item in whole] == ["completed", "completed"]


@pytest.mark.parametrize("field", ["action", "content", "summary", "arguments", "input"])
@pytest.mark.parametrize("kind", ["shell_call", "message", "reasoning", "function_call", "custom_tool_call"])
@pytest.mark.parametrize("value", [1, "x", [1], ["x", {}], {"commands": [1, {}]}, {"commands": "ls"}])
def test_a_kept_item_of_an_odd_server_is_streamed_as_it_is(kind: str, field: str, value: object) -> None:
    """It was told whole before; a hit that is streamed must not be a 500 for what stood in it."""
    item = {"type": kind, "id": "i", field: value}
    assert streamed([{"native_output": [item]}])[-1]["response"]["output"] == [item]
