"""The items of a Responses conversation as the messages of a chat.

Knows: what every item becomes, which belong to one turn, which result is of which call. Does not know: settings, which
tools are offered, answers.
"""

from typing import Any, cast

import msgspec

from gateway.call import Body
from gateway.dialects import responses_compaction as compaction
from gateway.dialects import responses_shapes as shapes
from gateway.dialects.chat import content_of
from gateway.dialects.responses_client_tools import written
from gateway.dialects.responses_tools import INPUT, Tools, missing, refuse
from gateway.dialects.tool_names import OWN

_encode = msgspec.json.Encoder().encode
_OUTPUTS = (shapes.FunctionOutput, shapes.CustomOutput)
OwnCall = shapes.LocalShellCall | shapes.ShellCall | shapes.PatchCall | shapes.SearchCall
OwnOutput = shapes.LocalShellOutput | shapes.ShellOutput | shapes.PatchOutput | shapes.SearchOutput
_OWN_CALLS = (shapes.LocalShellCall, shapes.ShellCall, shapes.PatchCall, shapes.SearchCall)
_OWN_OUTPUTS = (shapes.LocalShellOutput, shapes.ShellOutput, shapes.PatchOutput, shapes.SearchOutput)
_TEXTS = (shapes.InputText, shapes.OutputText)
_INSTRUCTING = frozenset(("system", "developer"))


class Turns:
    """The conversation, item by item; calls in a row are one turn of the assistant, with what was said before them."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._names = tools.names
        self._found: list[Body] = []
        self._called: dict[str, str] = {}  # by each name of a call: its id

    def all(self, asked: shapes.Responses) -> list[Body]:
        if asked.instructions:
            self._found.append({"role": "system", "content": asked.instructions})
        if isinstance(asked.input, str):
            self._found.append({"role": "user", "content": asked.input})
        else:
            for index, item in enumerate(asked.input):
                self._add(item, index)
        if not self._found:
            refuse("input", "'input' holds nothing that could be answered.")
        return self._found

    def _add(self, item: shapes.AnyItem, place: int) -> None:
        if isinstance(item, shapes.Message):
            self._found.append(_message(item, place))
        elif isinstance(item, shapes.FunctionCall):
            self._call(item.call_id, self._names.inner(item.name, item.namespace), item.arguments)
        elif isinstance(item, shapes.CustomCall):
            name = self._names.inner(item.name, item.namespace)
            self._call(item.call_id, name, _encode({INPUT: item.input}).decode())
        elif isinstance(item, _OUTPUTS):
            self._result(item, f"input[{place}]")
        elif isinstance(item, _OWN_CALLS):
            self._own_call(item, f"input[{place}]")
        elif isinstance(item, _OWN_OUTPUTS):
            self._own_result(item, place)
        else:
            self._note(item, f"input[{place}]")

    def _note(self, item: shapes.AnyItem, path: str) -> None:
        if isinstance(item, shapes.Compaction):
            self._found.append(compaction.told_again(item.encrypted_content, path))
        elif isinstance(item, shapes.CompactionTrigger):
            self._found.append(compaction.asking())

    def _call(self, call_id: str, name: str, arguments: str) -> None:
        self._called[call_id] = call_id
        call: Body = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        last = self._found[-1] if self._found else {}
        if last.get("role") == "assistant":
            last["content"] = last["content"] or None
            cast("list[Body]", last.setdefault("tool_calls", [])).append(call)
        else:
            self._found.append({"role": "assistant", "content": None, "tool_calls": [call]})

    def _result(self, item: shapes.FunctionOutput | shapes.CustomOutput, path: str) -> None:
        """What a result shows besides text is shown in a turn of its own: chat's tool messages hold text only."""
        call_id = self._answered(item.call_id, f"{path}.call_id")
        content: Any = item.output
        shown: list[Body] = []
        if not isinstance(content, str):
            parts = [_part(part, f"{path}.output[{index}]") for index, part in enumerate(content)]
            shown = [part for part in parts if part["type"] != "text"]
            if any(part["type"] == "refusal" for part in shown):
                refuse(f"{path}.output", "Only the assistant's message may hold refusals.")
            content = content_of([part for part in parts if part["type"] == "text"])
        self._found.append({"role": "tool", "tool_call_id": call_id, "content": content})
        if shown:
            self._found.append({"role": "user", "content": shown})

    def _own_call(self, item: OwnCall, path: str) -> None:
        if isinstance(item, shapes.ShellCall):
            self._call(item.call_id, self._names.inner("shell", OWN), written(item.action))
        elif isinstance(item, shapes.PatchCall):
            self._call(item.call_id, self._names.inner("apply_patch", OWN), written(item.operation))
        elif isinstance(item, shapes.SearchCall):
            text = item.arguments if isinstance(item.arguments, str) else _encode(item.arguments).decode()
            self._call(item.call_id, self._names.inner("tool_search", OWN), text)
        else:
            call_id = item.call_id or item.id
            if not call_id:
                missing(f"{path}.call_id")
            self._call(call_id, self._names.inner("local_shell", OWN), written(item.action))
            self._called[item.id or call_id] = call_id

    def _own_result(self, item: OwnOutput, place: int) -> None:
        """What has parts is told as JSON, so that no two results read alike."""
        name, path = item.call_id, f"input[{place}]"
        if isinstance(item, shapes.LocalShellOutput):
            name, content = name or item.id, item.output
        elif isinstance(item, shapes.ShellOutput):
            content = _encode(item.output).decode()
        elif isinstance(item, shapes.PatchOutput):
            content = _encode({"status": item.status, "output": item.output}).decode()
        else:
            content = _encode({"tools": self._tools.loaded[place]}).decode()
        if not name:
            missing(f"{path}.call_id")
        told = self._answered(name, f"{path}.{'call_id' if item.call_id else 'id'}")
        self._found.append({"role": "tool", "tool_call_id": told, "content": content})

    def _answered(self, name: str, path: str) -> str:
        """The id of the call that a result is of."""
        if name not in self._called:
            refuse(path, f"'{path}' answers no earlier call: {name[:64]!r}.")
        return self._called[name]


def _message(item: shapes.Message, place: int) -> Body:
    """Instructions get the role that every model knows."""
    role = "system" if item.role in _INSTRUCTING else item.role
    content, path = item.content, f"input[{place}]"
    if isinstance(content, str):
        return {"role": role, "content": content}
    if len(content) == 1 and isinstance(said := content[0], _TEXTS):  # nearly all of nearly every conversation
        return {"role": role, "content": said.text}
    parts = [_part(part, f"{path}.content[{index}]") for index, part in enumerate(content)]
    if not parts and role != "assistant":
        refuse(f"{path}.content", f"'{path}.content' must not be empty.")
    if role != "user" and any(part["type"] not in ("text", "refusal") for part in parts):
        refuse(f"{path}.content", "Only a user's message may hold images and files.")
    if role != "assistant" and any(part["type"] == "refusal" for part in parts):
        refuse(f"{path}.content", "Only the assistant's message may hold refusals.")
    return {"role": role, "content": content_of(parts)}


def _part(part: shapes.AnyPart, path: str) -> Body:
    if isinstance(part, _TEXTS):
        return {"type": "text", "text": part.text}
    if isinstance(part, shapes.Refusal):
        return {"type": "refusal", "refusal": part.refusal}
    if isinstance(part, shapes.InputImage):
        if part.image_url is None:
            refuse(f"{path}.image_url", "Images are read here only from their address or from the request itself.")
        detail = {} if part.detail is None else {"detail": part.detail}
        return {"type": "image_url", "image_url": {"url": part.image_url, **detail}}
    if part.file_data is None:
        refuse(f"{path}.file_data", "Files are read here only from the request itself.")
    return {"type": "file", "file": {"filename": part.filename or "file", "file_data": part.file_data}}
