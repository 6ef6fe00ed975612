"""OpenAI's own response told to its clients as it came: its events, and whole items as events.

Knows: what of a response is ours, how an item that is whole would have been streamed. Does not know: chat completions.
"""

from collections.abc import Iterator
from typing import cast

from gateway.call import Body
from gateway.dialects.chat import dicts
from gateway.dialects.responses_items import Event, begun

_LAST = frozenset(("response.completed", "response.incomplete"))
_DONE = "response.output_item.done"
# By kind of part: the field of its text, and the events of its growth.
_GROWING = {"output_text": "text", "refusal": "refusal"}


class Relay:
    """`used`: there were such events. `response`: as OpenAI told it at the end, nothing before; `items`: so far."""

    def __init__(self) -> None:
        self.used = False
        self.response: Body = {}
        self.items: list[Body] = []

    def told(self, events: list[Body], ours: Body) -> Iterator[Event]:
        """`ours`: what a response of nearhit's says instead. The last event waits until its cost is known."""
        self.used = True
        for event in events:
            kind = str(event.get("type"))
            fields = {name: value for name, value in event.items() if name not in ("type", "sequence_number")}
            if kind == _DONE:
                self.items.append(cast("Body", event.get("item") or {}))
            if isinstance(response := event.get("response"), dict):
                fields["response"] = {**cast("Body", response), **ours}
            if kind in _LAST:
                self.response = cast("Body", fields["response"])
            else:
                yield kind, fields


def events_of(item: Body, index: int) -> Iterator[Event]:
    """The events of one item."""
    where: Body = {"item_id": item.get("id"), "output_index": index}
    kind = item.get("type")
    empty: Body = {name: [] for name in ("content", "summary") if isinstance(item.get(name), list)}
    empty |= {name: "" for name in ("arguments", "input") if isinstance(item.get(name), str)}
    yield from begun({**item, **empty}, index)
    if kind == "message":
        for place, part in enumerate(_parts(item.get("content"))):
            yield from _part(part, {**where, "content_index": place})
    if kind == "reasoning":
        for place, part in enumerate(_parts(item.get("summary"))):
            yield from _summed_up(part, {**where, "summary_index": place})
    if kind == "function_call":
        yield "response.function_call_arguments.delta", {**where, "delta": item.get("arguments")}
        told = {"name": item.get("name"), "arguments": item.get("arguments")}
        yield "response.function_call_arguments.done", {**where, **told}
    if kind == "custom_tool_call":
        yield "response.custom_tool_call_input.delta", {**where, "delta": item.get("input")}
        yield "response.custom_tool_call_input.done", {**where, "input": item.get("input")}
    yield _DONE, {"output_index": index, "item": item}


def _parts(value: object) -> list[Body]:
    """What an upstream has told; a server that is none of OpenAI's may tell anything."""
    return [part for part in dicts(value) if isinstance(cast("object", part), dict)]


def _part(part: Body, where: Body) -> Iterator[Event]:
    kind = str(part.get("type"))
    name = _GROWING.get(kind)
    if name is None:
        return
    logprobs: Body = {"logprobs": part.get("logprobs") or []} if kind == "output_text" else {}
    begun: Body = {**part, name: ""}
    if kind == "output_text":
        begun |= {"annotations": list[Body](), "logprobs": list[Body]()}
    yield "response.content_part.added", {**where, "part": begun}
    yield f"response.{kind}.delta", {**where, "delta": part.get(name), **logprobs}
    for place, note in enumerate(_parts(part.get("annotations"))):
        yield "response.output_text.annotation.added", {**where, "annotation_index": place, "annotation": note}
    yield f"response.{kind}.done", {**where, name: part.get(name), **logprobs}
    yield "response.content_part.done", {**where, "part": part}


def _summed_up(part: Body, where: Body) -> Iterator[Event]:
    yield "response.reasoning_summary_part.added", {**where, "part": {**part, "text": ""}}
    yield "response.reasoning_summary_text.delta", {**where, "delta": part.get("text")}
    yield "response.reasoning_summary_text.done", {**where, "text": part.get("text")}
    yield "response.reasoning_summary_part.done", {**where, "part": part}
