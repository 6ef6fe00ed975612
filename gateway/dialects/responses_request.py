"""OpenAI's Responses request as a chat completion.

Knows: what every setting becomes, and what would need a state that is not kept. Does not know: turns, tools, answers,
HTTP. Texts and tool arguments arrive as they were sent; what has no counterpart is left out by name (`Inner.ignored`)
where the answer does not need it, and refused where it does.
"""

import re
from collections.abc import Sequence
from typing import cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gateway import wire
from gateway.call import Body, Native, Need
from gateway.dialects import responses_compaction as compaction
from gateway.dialects import responses_shapes as shapes
from gateway.dialects.responses_client_tools import Kind
from gateway.dialects.responses_native import native, readable
from gateway.dialects.responses_tools import Placed, Tools, missing, refuse
from gateway.dialects.responses_turns import Turns
from gateway.dialects.tool_names import ToolNames
from gateway.errors import InvalidRequest

# Ours, or they say nothing about the answer.
_KNOWN = frozenset({*shapes.Responses.__struct_fields__, "client_metadata", "stream_options"})
# Items that say something of the request itself.
_RARE = frozenset({shapes.CompactionTrigger, shapes.MoreTools, shapes.SearchOutput, shapes.Update})
_ITEM = re.compile(r"input\[(\d+)\]")
_LOGPROBS = "message.output_text.logprobs"
_PASSED = (
    "temperature",
    "top_p",
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prompt_cache_options",
    "service_tier",
)
_MODERATED = Need(param="moderation", message="This model does not support moderation.", code="unsupported_parameter")


class Inner(Struct, frozen=True, kw_only=True):
    """`body`: the chat completion. `custom`: tools that take free text; `own`: OpenAI's own that the client runs.

    `logprobs`: the client wants them told. `items`: what the client itself has sent now, as it may send it again.
    `keeps`: the response is to be kept. `compacts`: the answer is a note that stands for the conversation. `native`:
    the request as OpenAI itself would take it, and `need`: what nobody else can do.
    """

    body: Body
    asked: shapes.Responses
    items: list[Body]
    keeps: bool
    names: ToolNames
    custom: frozenset[str]
    own: dict[str, Kind]
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
    try:
        return _translated(body, asked, items, before, kept=earlier is not None, need=need)
    except InvalidRequest as error:
        _place(error, body, len(before))
        raise


def _translated(
    body: Body, asked: shapes.Responses, items: list[Body], before: Sequence[Body], *, kept: bool, need: Need | None
) -> Inner:
    rare = [
        (index, item)
        for index, item in enumerate(asked.input if isinstance(asked.input, list) else ())
        if item.__class__ in _RARE
    ]
    _update(asked, rare)
    compacts = _compacts(asked, rare)
    tools = Tools(ToolNames())
    chat: Body = {"model": asked.model, "messages": []}
    chat |= tools.offer(asked, rare)
    chat["messages"] = Turns(tools).all(asked)
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
        keeps=kept and asked.store is not False,
        names=tools.names,
        custom=frozenset(tools.custom),
        own=tools.own,
        logprobs=logprobs,
        compacts=compacts,
        ignored=(*_ignored(body, asked, kept=kept), *tools.left_out),
        native=native(body, [*before, *items]),
        need=need or tools.need or (None if asked.moderation is None else _MODERATED),
    )


def _place(error: InvalidRequest, body: Body, earlier: int) -> None:
    """Items were counted with what the request continues; told is where they stand in the request itself."""
    found = _ITEM.match(error.param or "")
    if found is None or not earlier:
        return
    index = int(found[1])
    told = f"input[{index - earlier}]" if index >= earlier else f"{_continued(body)}[{index}]"
    error.param = told + (error.param or "")[found.end() :]
    error.message = error.message.replace(found[0], told)


def _continued(body: Body) -> str:
    return "previous_response_id" if body.get("conversation") is None else "conversation"


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
            known, earlier = readable(list(before), _continued(body))
            need = need or earlier
            asked.input = msgspec.convert([*known, *told], list[shapes.AnyItem])
    except msgspec.ValidationError as error:
        raise wire.explain(str(error)) from None
    return asked, need


def _update(asked: shapes.Responses, rare: list[Placed]) -> None:
    """What a conversation says of its own settings holds until it says something else."""
    for _, item in rare:
        if not isinstance(item, shapes.Update):
            continue
        if item.reasoning is not None and item.reasoning.effort is not None:
            asked.reasoning = replace(asked.reasoning or shapes.Thinking(), effort=item.reasoning.effort)
        if item.text is not None and item.text.format is not None:
            asked.text = replace(asked.text or shapes.Text(), format=item.text.format)


def _compacts(asked: shapes.Responses, rare: list[Placed]) -> bool:
    """Whether a note is wanted. It is words alone, whatever else was asked for with it."""
    triggers = [index for index, item in rare if isinstance(item, shapes.CompactionTrigger)]
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
    for name in ("prompt",) if kept else ("previous_response_id", "conversation", "prompt"):
        if getattr(asked, name) is not None:
            instead = _INSTEAD if name != "prompt" else "send its text as 'instructions' and 'input'"
            message = f"'{name}' needs a state that is not kept here: {instead}."
            raise InvalidRequest(message, param=name, code="unsupported_parameter")
    if asked.background and not kept:
        raise InvalidRequest(
            "'background' needs a state that is not kept here.", param="background", code="unsupported_parameter"
        )
    if asked.background and asked.store is False:
        message = "background can only be used when `store` is true."
        raise InvalidRequest(message, param="background", code="invalid_value")


def _ignored(body: Body, asked: shapes.Responses, *, kept: bool) -> list[str]:
    ignored = [name for name, value in body.items() if name not in _KNOWN and value is not None]
    if asked.store and not kept:
        ignored.append("store")
    if asked.truncation == "auto":
        ignored.append("truncation")
    options = body.get("stream_options")
    if isinstance(options, dict) and cast("Body", options).get("include_obfuscation"):
        ignored.append("stream_options.include_obfuscation")
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
            missing(f"text.format.{name}")
    given = {"name": wanted.name, "description": wanted.description, "schema": wanted.schema, "strict": wanted.strict}
    schema = {name: value for name, value in given.items() if value is not None}
    return {**found, "response_format": {"type": "json_schema", "json_schema": schema}}
