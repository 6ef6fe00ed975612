"""OpenAI's Responses request as a chat completion.

Knows: what every item, tool and setting becomes, and what would need a state that is not kept. Does not know: answers,
HTTP. Texts and tool arguments arrive as they were sent; what has no counterpart is left out by name (`Inner.ignored`)
where the answer does not need it, and refused where it does.
"""

from collections.abc import Sequence
from typing import Any, cast

import msgspec
from msgspec import Struct

from gateway import wire
from gateway.call import Body, Native, Need
from gateway.dialects import responses_compaction as compaction
from gateway.dialects import responses_shapes as shapes
from gateway.dialects.chat import content_of
from gateway.dialects.responses_native import native, readable
from gateway.dialects.responses_tools import INPUT, Tools, refuse
from gateway.dialects.tool_names import ToolNames
from gateway.errors import InvalidRequest

_encode = msgspec.json.Encoder().encode
# Ours, or they say nothing about the answer.
_KNOWN = frozenset({*shapes.Responses.__struct_fields__, "client_metadata", "stream_options", "prompt_cache_retention"})
_LOGPROBS = "message.output_text.logprobs"
_PASSED = (
    "temperature",
    "top_p",
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "service_tier",
)
_OUTPUTS = (shapes.FunctionOutput, shapes.CustomOutput)
_TEXTS = (shapes.InputText, shapes.OutputText)
_INSTRUCTING = frozenset(("system", "developer"))


class Inner(Struct, frozen=True, kw_only=True):
    """`body`: the chat completion. `custom`: tools that take free text. `logprobs`: the client wants them told.

    `items`: what the client itself has sent now, as it may send it again. `keeps`: the response is to be kept.
    `compacts`: the answer is a note that stands for the conversation. `native`: the request as OpenAI itself would take
    it, and `need`: what nobody else can do.
    """

    body: Body
    asked: shapes.Responses
    items: list[Body]
    keeps: bool
    names: ToolNames
    custom: frozenset[str]
    logprobs: bool
    compacts: bool
    ignored: tuple[str, ...]
    native: Native
    need: Need | None


def translate(body: Body, earlier: Sequence[Body] | None = None) -> Inner:
    """`earlier`: the items of the responses before; None where no state is kept at all. Raises InvalidRequest."""
    items = items_of(body.get("input"))
    before = compaction.since(earlier or ())
    asked, need = _shape(body, items, before)
    _refuse_state(asked, kept=earlier is not None)
    compacts = _compacts(asked)
    tools = Tools(ToolNames())
    chat: Body = {"model": asked.model, "messages": []}
    chat |= tools.offer(asked)
    chat["messages"] = _Turns(tools.names).all(asked)
    chat |= {name: value for name in _PASSED if (value := getattr(asked, name)) is not None}
    if asked.max_output_tokens is not None:
        chat["max_completion_tokens"] = asked.max_output_tokens
    if asked.reasoning is not None and asked.reasoning.effort is not None:
        chat["reasoning_effort"] = asked.reasoning.effort
    logprobs = bool(asked.top_logprobs) or _LOGPROBS in (asked.include or ())
    if logprobs:
        chat |= {"logprobs": True, "top_logprobs": asked.top_logprobs or 0}
    if asked.text is not None:
        chat |= _text(asked.text)
    if asked.stream:
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    wire.check_translated(chat)
    return Inner(
        body=chat,
        asked=asked,
        items=items,
        keeps=earlier is not None and asked.store is not False,
        names=tools.names,
        custom=frozenset(tools.custom),
        logprobs=logprobs,
        compacts=compacts,
        ignored=(*_ignored(body, asked, kept=earlier is not None), *tools.left_out),
        native=native(body, [*before, *items]),
        need=need or tools.need,
    )


def items_of(given: object) -> list[Body]:
    """What a client has sent, as items; nothing for what is none (and is refused later)."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    items = cast("list[object]", given) if isinstance(given, list) else []
    return [cast("Body", _typed(item)) for item in items]


def _shape(body: Body, items: list[Body], before: Sequence[Body]) -> tuple[shapes.Responses, Need | None]:
    """The client's own items are checked first, so that a fault in them is told by their own place."""
    told, need = readable(items)
    if isinstance(body.get("input"), list):
        body = {**body, "input": told}
    try:
        asked = msgspec.convert(body, shapes.Responses)
        if before:
            known, earlier = readable(list(before), "previous_response_id")
            need = need or earlier
            asked.input = msgspec.convert([*known, *told], list[shapes.AnyItem])
    except msgspec.ValidationError as error:
        raise wire.explain(str(error)) from None
    return asked, need


def _compacts(asked: shapes.Responses) -> bool:
    """Whether a note is wanted. It is words alone, whatever else was asked for with it."""
    triggers = [
        index
        for index, item in enumerate(asked.input if isinstance(asked.input, list) else ())
        if isinstance(item, shapes.CompactionTrigger)
    ]
    if not triggers:
        return False
    if len(asked.input) == 1:
        refuse("input", "'input' holds nothing that could be shortened.")
    if triggers != [len(asked.input) - 1]:
        refuse(f"input[{triggers[0]}]", "A 'compaction_trigger' must be the last item, behind what it is to shorten.")
    asked.tool_choice, asked.text, asked.top_logprobs, asked.include = "none", None, None, None
    return True


def _typed(item: object) -> object:
    """A message may leave its type out."""
    if isinstance(item, dict) and "type" not in item and "role" in item:
        return {"type": "message", **cast("Body", item)}
    return cast("object", item)


_INSTEAD = "send the whole conversation as 'input'"


def _refuse_state(asked: shapes.Responses, *, kept: bool) -> None:
    for name in ("conversation", "prompt") if kept else ("previous_response_id", "conversation", "prompt"):
        if getattr(asked, name) is not None:
            instead = _INSTEAD if name != "prompt" else "send its text as 'instructions' and 'input'"
            if name == "conversation" and kept:
                instead = f"continue with 'previous_response_id', or {_INSTEAD}"
            message = f"'{name}' needs a state that is not kept here: {instead}."
            raise InvalidRequest(message, param=name, code="unsupported_parameter")
    if asked.background and not kept:
        raise InvalidRequest(
            "'background' needs a state that is not kept here.", param="background", code="unsupported_parameter"
        )
    if asked.background and (asked.store is False or asked.stream):
        other = "store" if asked.store is False else "stream"
        message = f"'background' cannot be combined with '{other}': {asked.store if other == 'store' else True}."
        if other == "stream":
            message += " Send it without 'stream', and ask for /v1/responses/ID until its status is final."
        raise InvalidRequest(message, param="background", code="invalid_value")


def _ignored(body: Body, asked: shapes.Responses, *, kept: bool) -> list[str]:
    ignored = [name for name, value in body.items() if name not in _KNOWN and value is not None]
    if asked.store and not kept:
        ignored.append("store")
    if asked.truncation == "auto":
        ignored.append("truncation")
    if asked.reasoning is not None and asked.reasoning.summary is not None:
        ignored.append("reasoning.summary")
    return ignored + [f"include={name}" for name in asked.include or () if name != _LOGPROBS]


def _text(text: shapes.Text) -> Body:
    found: Body = {} if text.verbosity is None else {"verbosity": text.verbosity}
    wanted = text.format
    if wanted is None or wanted.type == "text":
        return found
    if wanted.type == "json_object":
        return {**found, "response_format": {"type": "json_object"}}
    for name, value in (("name", wanted.name), ("schema", wanted.schema)):
        if value is None:
            path = f"text.format.{name}"
            refuse(path, f"Missing required parameter: '{path}'.", "missing_required_parameter")
    given = {"name": wanted.name, "description": wanted.description, "schema": wanted.schema, "strict": wanted.strict}
    schema = {name: value for name, value in given.items() if value is not None}
    return {**found, "response_format": {"type": "json_schema", "json_schema": schema}}


class _Turns:
    """The conversation, item by item; calls in a row are one turn of the assistant, with what was said before them."""

    def __init__(self, names: ToolNames) -> None:
        self._names = names
        self._found: list[Body] = []
        self._called: set[str] = set()

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
            self._call(item.call_id, self._names.inner(item.name), _encode({INPUT: item.input}).decode())
        elif isinstance(item, _OUTPUTS):
            self._result(item, f"input[{place}]")
        elif isinstance(item, shapes.Compaction):
            self._found.append(compaction.told_again(item.encrypted_content, f"input[{place}]"))
        elif isinstance(item, shapes.CompactionTrigger):
            self._found.append(compaction.asking())

    def _call(self, call_id: str, name: str, arguments: str) -> None:
        self._called.add(call_id)
        call: Body = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        last = self._found[-1] if self._found else {}
        if last.get("role") == "assistant":
            last["content"] = last["content"] or None
            cast("list[Body]", last.setdefault("tool_calls", [])).append(call)
        else:
            self._found.append({"role": "assistant", "content": None, "tool_calls": [call]})

    def _result(self, item: shapes.FunctionOutput | shapes.CustomOutput, path: str) -> None:
        """What a result shows besides text is shown in a turn of its own: chat's tool messages hold text only."""
        if item.call_id not in self._called:
            refuse(f"{path}.call_id", f"'{path}.call_id' answers no earlier call: {item.call_id[:64]!r}.")
        content: Any = item.output
        shown: list[Body] = []
        if not isinstance(content, str):
            parts = [_part(part, f"{path}.output[{index}]") for index, part in enumerate(content)]
            shown = [part for part in parts if part["type"] != "text"]
            if any(part["type"] == "refusal" for part in shown):
                refuse(f"{path}.output", "Only the assistant's message may hold refusals.")
            content = content_of([part for part in parts if part["type"] == "text"])
        self._found.append({"role": "tool", "tool_call_id": item.call_id, "content": content})
        if shown:
            self._found.append({"role": "user", "content": shown})


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
