"""Anthropic's Messages request as a chat completion.

Knows: what every block, tool and choice becomes, and what cannot become anything. Does not know: answers, HTTP.
Texts and tool arguments arrive as they were sent; what has no counterpart is left out by name (`Inner.ignored`) where
the answer does not need it, and refused where it does.
"""

from collections.abc import Iterable
from typing import Any, NoReturn

import msgspec
from msgspec import UNSET, Struct

from gateway import wire
from gateway.call import Body, Need
from gateway.dialects import messages_shapes as shapes
from gateway.dialects.chat import content_of
from gateway.dialects.messages_native import readable
from gateway.dialects.tool_names import ToolNames
from gateway.errors import InvalidRequest

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_deterministic = msgspec.json.Encoder(order="deterministic").encode
_MOST_STOPS = 4  # of chat completions
# Ours, or their absence changes nothing in the answer.
_KNOWN = frozenset({*shapes.Messages.__struct_fields__, "cache_control"})
_BILLING = "x-anthropic-billing-header:"
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class Inner(Struct, frozen=True, kw_only=True):
    """`body`: the chat completion. `thinks`: the client wants to see what a model thought.

    `need`: what only Anthropic's own servers can do.
    """

    body: Body
    names: ToolNames
    stops: tuple[str, ...]
    thinks: bool
    ignored: tuple[str, ...]
    need: Need | None = None


def translate(body: Body, *, counting: bool = False) -> Inner:
    """`counting`: only its tokens will be counted, so `max_tokens` may be missing. Raises InvalidRequest."""
    if body.get("thread") is not None:
        _refuse_thread()
    asked, need = _shape(body)
    if asked.max_tokens is UNSET and not counting:
        raise InvalidRequest(
            "Missing required parameter: 'max_tokens'.", param="max_tokens", code="missing_required_parameter"
        )
    names = ToolNames()
    ignored = [name for name, value in body.items() if name not in _KNOWN and value is not None]
    chat: Body = {"model": asked.model, "messages": _Turns(names).all(asked)}
    if asked.max_tokens is not UNSET:
        chat["max_completion_tokens"] = asked.max_tokens
    chat |= _said(
        temperature=asked.temperature, top_p=asked.top_p, top_k=asked.top_k, stop=_stop(asked), user=_user(asked)
    )
    tools, service = _tools(asked, names, ignored)
    chat |= tools
    chat |= _format(asked, body, ignored)
    if asked.service_tier == "standard_only":
        chat["service_tier"] = "default"
    if asked.stream:
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    wire.check_translated(chat)
    thinks = asked.thinking is not None and asked.thinking.type != "disabled"
    return Inner(
        body=chat,
        names=names,
        stops=tuple(asked.stop_sequences or ()),
        thinks=thinks,
        ignored=(*ignored, "thinking") if thinks else tuple(ignored),
        need=need or service,
    )


def _shape(body: Body) -> tuple[shapes.Messages, Need | None]:
    """Blocks that only Anthropic understands are looked for where there is something that is not understood."""
    try:
        return msgspec.convert(body, shapes.Messages), None
    except msgspec.ValidationError as error:
        plain, need = readable(body)
        if need is None:
            raise _fault(error) from None
    try:
        return msgspec.convert(plain, shapes.Messages), need
    except msgspec.ValidationError as error:
        raise _fault(error) from None


def _fault(error: msgspec.ValidationError) -> InvalidRequest:
    fault = wire.explain(str(error))
    if (fault.param or "").endswith(".role") and fault.code == "invalid_value":
        fault.message = f"Invalid value for '{fault.param}'. Supported values: user, assistant, system."
    return fault


def _said(**fields: object) -> Body:
    return {name: value for name, value in fields.items() if value is not None}


def _refuse(param: str, message: str, code: str = "unsupported_value") -> NoReturn:
    raise InvalidRequest(message, param=param, code=code)


def _refuse_thread() -> NoReturn:
    """A conversation held by Anthropic goes by the ids of its messages, and those told here are ours, at any upstream.

    Anthropic's clients know this refusal, and send the whole conversation from then on.
    """
    error = InvalidRequest(
        "'thread' needs a state that is not kept here: send the whole conversation as 'messages'.",
        param="thread",
        code="unsupported_parameter",
    )
    error.details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    raise error


def _stop(asked: shapes.Messages) -> list[str] | None:
    stops = asked.stop_sequences
    if stops and len(stops) > _MOST_STOPS:
        _refuse("stop_sequences", f"'stop_sequences' may hold at most {_MOST_STOPS} texts here.")
    return stops or None


def _user(asked: shapes.Messages) -> str | None:
    """Who asks. Some clients write a JSON object there; its session is not who, and would make everybody new daily."""
    given = asked.metadata.user_id if asked.metadata else None
    if given is None or not given.startswith("{"):
        return given
    try:
        told = _decode(given)
    except (msgspec.DecodeError, RecursionError):
        return given
    told.pop("session_id", None)
    return _deterministic(told).decode()


def _format(asked: shapes.Messages, body: Body, ignored: list[str]) -> Body:
    config: Any = body.get("output_config")
    if asked.output_config is not None:
        ignored += [f"output_config.{name}" for name, value in config.items() if name != "format" and value is not None]
    found = (asked.output_config.format if asked.output_config else None) or asked.output_format
    if found is None:
        return {}
    schema = {"name": "answer", "schema": found.schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _tools(asked: shapes.Messages, names: ToolNames, ignored: list[str]) -> tuple[Body, Need | None]:
    """Tools that only some models or services know are left out; who offers no others needs such a service."""
    tools: list[Body] = []
    left_out: list[str] = []
    for index, tool in enumerate(asked.tools or ()):
        if tool.type not in (None, "custom"):
            left_out.append(f"tools[{index}].type={tool.type}")
            continue
        tools.append(_tool(tool, index, names))
    choice = asked.tool_choice
    need: Need | None = None
    theirs = bool(left_out and choice and choice.type == "tool" and choice.name not in _names(asked))
    if left_out and (not tools or theirs):
        where, _, kind = left_out[0].partition("=")
        message = f"Tools of the type {kind!r} are not supported here."
        need = Need(param=where, message=message, code="unsupported_tool")
    ignored += left_out
    found: Body = {"tools": tools} if tools else {}
    if choice is None or theirs or not (tools or choice.type == "tool"):
        return found, need
    if choice.type == "tool":
        found["tool_choice"] = _named(choice, asked, names)
    else:
        found["tool_choice"] = _CHOICES[choice.type]
    if choice.disable_parallel_tool_use:
        found["parallel_tool_calls"] = False
    return found, need


def _names(asked: shapes.Messages) -> set[str | None]:
    return {tool.name for tool in asked.tools or () if tool.type in (None, "custom")}


def _named(choice: shapes.ToolChoice, asked: shapes.Messages, names: ToolNames) -> Body:
    if choice.name is None:
        _refuse("tool_choice.name", "Missing required parameter: 'tool_choice.name'.", "missing_required_parameter")
    if choice.name not in _names(asked):
        _refuse(
            "tool_choice",
            f"'tool_choice' names the tool {choice.name[:64]!r}, which is not among 'tools'.",
            "invalid_value",
        )
    return {"type": "function", "function": {"name": names.inner(choice.name)}}


def _tool(tool: shapes.Tool, index: int, names: ToolNames) -> Body:
    for field, value in (("name", tool.name), ("input_schema", tool.input_schema)):
        if value is None:
            path = f"tools[{index}].{field}"
            _refuse(path, f"Missing required parameter: '{path}'.", "missing_required_parameter")
    function: Body = {"name": names.inner(tool.name or "")}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.input_schema
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


class _Turns:
    """The conversation, turn by turn."""

    def __init__(self, names: ToolNames) -> None:
        self._names = names
        self._called: set[str] = set()

    def all(self, asked: shapes.Messages) -> list[Body]:
        found = self._system(asked.system)
        for index, turn in enumerate(asked.messages):
            if isinstance(turn, shapes.AssistantTurn):
                found.append(self._assistant(turn))
            elif isinstance(turn, shapes.SystemTurn):
                found += self._system(turn.content)
            else:
                self._user(turn, index, found)
        if not found:
            _refuse("messages", "'messages' holds nothing that could be answered.", "invalid_value")
        return found

    def _system(self, content: str | list[shapes.TextBlock] | None) -> list[Body]:
        """A client's note to the party that bills it says nothing to a model, and changes with every request."""
        if isinstance(content, list):
            content = content_of(
                [{"type": "text", "text": block.text} for block in content if not block.text.startswith(_BILLING)]
            )
        return [{"role": "system", "content": content}] if content else []

    def _assistant(self, turn: shapes.AssistantTurn) -> Body:
        if isinstance(turn.content, str):
            return {"role": "assistant", "content": turn.content}
        calls: list[Body] = []
        texts: list[Body] = []
        for block in turn.content:
            if isinstance(block, shapes.TextBlock):
                texts.append({"type": "text", "text": block.text})
            elif isinstance(block, shapes.ToolUseBlock):
                calls.append(self._call(block))
        content = content_of(texts)
        if not calls:
            return {"role": "assistant", "content": content}
        return {"role": "assistant", "content": content or None, "tool_calls": calls}

    def _call(self, block: shapes.ToolUseBlock) -> Body:
        self._called.add(block.id)
        function = {"name": self._names.inner(block.name), "arguments": _encode(block.input).decode()}
        return {"id": block.id, "type": "function", "function": function}

    def _user(self, turn: shapes.UserTurn, place: int, found: list[Body]) -> None:
        """Results of calls are turns of their own and come first; what they show besides text is shown after them."""
        if isinstance(turn.content, str):
            found.append({"role": "user", "content": turn.content})
            return
        before, parts = len(found), list[Body]()
        for index, block in enumerate(turn.content):
            if isinstance(block, shapes.ToolResultBlock):
                if block.tool_use_id not in self._called:
                    path = f"messages[{place}].content[{index}].tool_use_id"
                    _refuse(path, f"'{path}' answers no earlier 'tool_use' block of the assistant.", "invalid_value")
                content, shown = _resulting(block.content or "")
                found.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": content})
                parts += shown
            else:
                parts += _parts(block)
        if parts:
            found.append({"role": "user", "content": content_of(parts)})
        elif len(found) == before:
            path = f"messages[{place}].content"
            _refuse(path, f"'{path}' must not be empty.", "invalid_value")


def _resulting(content: str | list[shapes.ResultBlock]) -> tuple[Any, list[Body]]:
    """What a result says, as text, and what it shows besides."""
    if isinstance(content, str):
        return content, []
    parts = [part for inner in content for part in _parts(inner)]
    shown = [part for part in parts if part["type"] != "text"]
    return content_of([part for part in parts if part["type"] == "text"] if shown else parts), shown


def _parts(block: shapes.Block) -> Iterable[Body]:
    if isinstance(block, shapes.TextBlock):
        return [{"type": "text", "text": block.text}]
    if isinstance(block, shapes.ImageBlock):
        return [{"type": "image_url", "image_url": {"url": _image(block.source)}}]
    if isinstance(block, shapes.SearchResultBlock):
        texts = [piece.text for piece in block.content]
        return [{"type": "text", "text": "\n".join([block.title, block.source, *texts])}]
    assert isinstance(block, shapes.DocumentBlock)
    return _document(block)


def _image(source: shapes.Base64 | shapes.Url) -> str:
    return f"data:{source.media_type};base64,{source.data}" if isinstance(source, shapes.Base64) else source.url


def _document(block: shapes.DocumentBlock) -> list[Body]:
    source = block.source
    title: list[Body] = [{"type": "text", "text": block.title}] if block.title else []
    if isinstance(source, shapes.PlainText):
        return [*title, {"type": "text", "text": source.data}]
    if isinstance(source, shapes.Pieces):
        pieces = [source.content] if isinstance(source.content, str) else [piece.text for piece in source.content]
        return [*title, *({"type": "text", "text": piece} for piece in pieces)]
    name = block.title or "document.pdf"
    return [{"type": "file", "file": {"filename": name, "file_data": _image(source)}}]
