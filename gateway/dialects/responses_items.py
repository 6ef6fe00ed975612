"""The items of a Responses answer while they grow: a message, thoughts, a call, a note.

Knows: the events of one item from its start to its end, and what it is in the end. Does not know: the order of items,
which number an event has.
"""

from collections.abc import Iterator
from typing import cast

import msgspec
from msgspec import Struct, field

from gateway.call import Body
from gateway.dialects import responses_compaction as compaction
from gateway.dialects.responses_client_tools import Kind
from gateway.dialects.responses_tools import INPUT

Event = tuple[str, Body]  # its type and the fields beside it
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, object]).decode
# By kind of part: the field of its text, and the events of its growth.
_FIELDS = {"output_text": "text", "refusal": "refusal", "reasoning_text": "text"}


def on_the_wire(event: Event, number: int) -> bytes:
    """An event on the wire. `number`: its place in the stream; there is no blank line in it but at its end."""
    kind, fields = event
    raw = _encode({"type": kind, "sequence_number": number, **fields})
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), raw)


class Said(Struct):
    """A message with one part, or thoughts. `kind`: of the part.

    `late`: nothing is told of it before its end, since items begin in their order and one before it waits for its own.
    """

    id: str
    index: int
    kind: str
    late: bool = False
    pieces: list[str] = field(default_factory=list[str])
    logprobs: list[Body] = field(default_factory=list[Body])

    def begin(self) -> Iterator[Event]:
        if not self.late:
            yield from self._begun()

    def add(self, text: str, logprobs: list[Body]) -> Event | None:
        self.pieces.append(text)
        self.logprobs += logprobs
        return None if self.late else self._delta(text, logprobs)

    def end(self, status: str) -> Iterator[Event]:
        text = "".join(self.pieces)
        if self.late:
            yield from self._begun()
            yield self._delta(text, self.logprobs)
        told: Body = {**self._place(), _FIELDS[self.kind]: text}
        if self.kind == "output_text":
            told["logprobs"] = self.logprobs
        yield f"response.{self.kind}.done", told
        yield "response.content_part.done", {**self._place(), "part": self._part(text, self.logprobs)}
        yield "response.output_item.done", {"output_index": self.index, "item": self.item(status)}

    def _begun(self) -> Iterator[Event]:
        yield "response.output_item.added", {"output_index": self.index, "item": self._item("in_progress", [])}
        yield "response.content_part.added", {**self._place(), "part": self._part("", [])}

    def _delta(self, text: str, logprobs: list[Body]) -> Event:
        told: Body = {**self._place(), "delta": text}
        if self.kind == "output_text":
            told["logprobs"] = logprobs
        return f"response.{self.kind}.delta", told

    def item(self, status: str) -> Body:
        return self._item(status, [self._part("".join(self.pieces), self.logprobs)])

    def _item(self, status: str, content: list[Body]) -> Body:
        if self.kind == "reasoning_text":
            return {"id": self.id, "type": "reasoning", "summary": [], "content": content, "status": status}
        return {"id": self.id, "type": "message", "status": status, "role": "assistant", "content": content}

    def _place(self) -> Body:
        return {"item_id": self.id, "output_index": self.index, "content_index": 0}

    def _part(self, text: str, logprobs: list[Body]) -> Body:
        if self.kind == "output_text":
            return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
        return {"type": self.kind, _FIELDS[self.kind]: text}


class Called(Struct):
    """A call. `custom`: of a tool that takes free text, which is told only when all of it is there.

    `late`: as of what is said.
    """

    id: str
    index: int
    call_id: str
    name: str
    space: str | None
    custom: bool
    late: bool = False
    pieces: list[str] = field(default_factory=list[str])

    def begin(self) -> Iterator[Event]:
        if not self.late:
            yield self._added()

    def add(self, text: str) -> Event | None:
        self.pieces.append(text)
        return None if self.custom or self.late else self._delta(text)

    def end(self, status: str) -> Iterator[Event]:
        text = self._text()
        if self.late:
            yield self._added()
        if self.custom:
            yield "response.custom_tool_call_input.delta", {**self._place(), "delta": text}
            yield "response.custom_tool_call_input.done", {**self._place(), "input": text}
        else:
            if self.late and text:
                yield self._delta(text)
            yield "response.function_call_arguments.done", {**self._place(), "name": self.name, "arguments": text}
        yield "response.output_item.done", {"output_index": self.index, "item": self.item(status)}

    def item(self, status: str) -> Body:
        return self._item(status, self._text())

    def _text(self) -> str:
        """Free text stands in the one argument the model was offered; what is not that is told as it was written."""
        text = "".join(self.pieces)
        if not self.custom:
            return text
        try:
            found = _decode(text).get(INPUT)
        except (msgspec.MsgspecError, RecursionError):
            return text
        return found if isinstance(found, str) else text

    def _item(self, status: str, text: str) -> Body:
        kind, long = ("custom_tool_call", "input") if self.custom else ("function_call", "arguments")
        told: Body = {"id": self.id, "type": kind, "status": status, "call_id": self.call_id, "name": self.name}
        if self.space is not None:
            told["namespace"] = self.space
        return {**told, long: text}

    def _added(self) -> Event:
        return "response.output_item.added", {"output_index": self.index, "item": self._item("in_progress", "")}

    def _delta(self, text: str) -> Event:
        return "response.function_call_arguments.delta", {**self._place(), "delta": text}

    def _place(self) -> Body:
        return {"item_id": self.id, "output_index": self.index}


class Ran(Struct):
    """A call of one of OpenAI's own tools, told when all of it is there: half of it has no form."""

    id: str
    index: int
    call_id: str
    kind: Kind
    late: bool = True
    pieces: list[str] = field(default_factory=list[str])

    def begin(self) -> Iterator[Event]:
        return iter(())

    def add(self, text: str) -> None:
        self.pieces.append(text)

    def end(self, status: str) -> Iterator[Event]:
        item = self.item(status)
        yield from begun(item, self.index)
        yield "response.output_item.done", {"output_index": self.index, "item": item}

    def item(self, status: str) -> Body:
        if self.kind.item == "apply_patch_call" and status == "incomplete":
            status = "in_progress"  # there is no other word for it
        head: Body = {"id": self.id, "type": self.kind.item, "status": status, "call_id": self.call_id}
        return {**head, **self.kind.read("".join(self.pieces))}


def begun(item: Body, index: int) -> Iterator[Event]:
    """How an item begins that is whole already, up to its end; those of messages, thoughts and functions have more."""
    started: Body = {**item, "status": "in_progress"} if "status" in item else dict(item)
    action = item.get("action")
    told = cast("Body", action) if item.get("type") == "shell_call" and isinstance(action, dict) else {}
    commands = told.get("commands")
    if not isinstance(commands, list):
        yield "response.output_item.added", {"output_index": index, "item": started}
        return
    started["action"] = {**told, "commands": []}
    yield "response.output_item.added", {"output_index": index, "item": started}
    for place, command in enumerate(cast("list[object]", commands)):
        where: Body = {"output_index": index, "command_index": place}
        yield "response.shell_call_command.added", {**where, "command": ""}
        yield "response.shell_call_command.delta", {**where, "delta": command}
        yield "response.shell_call_command.done", {**where, "command": command}


class Noted(Struct):
    """A note that stands for the conversation: told when all of it is there, and once."""

    id: str
    pieces: list[str] = field(default_factory=list[str])
    told: bool = False

    def end(self, finish: str) -> list[Event]:
        """Raises UpstreamFailed where there is no note, or half of one."""
        compaction.check("".join(self.pieces), finish)
        if self.told:
            return []
        self.told = True
        return [
            ("response.output_item.added", {"output_index": 0, "item": compaction.item(self.id, "")}),
            ("response.output_item.done", {"output_index": 0, "item": self.item("completed")}),
        ]

    def item(self, status: str) -> Body:  # noqa: ARG002 - there is no half of it
        return compaction.item(self.id, "".join(self.pieces))
