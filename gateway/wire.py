"""Is this request well formed? One check per operation, before anything is looked up, counted or paid for.

Knows OpenAI's request shapes (`gateway.wire_shapes`) and what their fields demand of each other; tells a fault with the
JSON path of the field. Never changes the body: what was decoded is what is hashed, cached and sent. Does not know which
models exist nor what a target can do.
"""

import re
from typing import Any, NoReturn, TypeVar

import msgspec

from gateway.errors import InvalidRequest
from gateway.wire_shapes import (
    AssistantMessage,
    Chat,
    Completion,
    CustomCall,
    CustomTool,
    Embedding,
    Function,
    FunctionCall,
    Generation,
    SystemMessage,
    Tool,
    ToolMessage,
    UserMessage,
)

Body = dict[str, object]
Shape = TypeVar("Shape", Chat, Completion, Embedding)

_convert = msgspec.convert
_AT = re.compile(r"(.*?)(?: - at `\$\.?([^`]*)`)?", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `([^`]*)`")
_EXPECTED = re.compile(r"Expected `([^`]*)`(?:, got `([^`]*)`| (.*))", re.DOTALL)
_NAMES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "dict": "object", "list": "array"}
_WORD = re.compile(r"\w+")
_TOKEN_ID = re.compile(r"\d{1,9}")
_ROLES = "system, developer, user, assistant, tool, function"
_MOST_INPUTS = 2_048
_SAID: list[Body] = [{"role": "user", "content": ""}]
_LARGEST_TOKEN = 2**31 - 1
_LONGEST_METADATA_KEY = 64
_LONGEST_SHOWN = 64
_MOST_SHOWN = 5
_SPOKEN_BY_THE_CALLER = frozenset((UserMessage, SystemMessage))  # the roles that carry nothing to check any further


def check_chat(body: Body) -> None:
    """Raises InvalidRequest, `param` a path such as `messages[0].content`. Unknown fields and nulls pass."""
    chat = _shape(body, Chat)
    _check_generation(chat)
    _check_messages(chat)
    if chat.max_tokens is not None and chat.max_completion_tokens is not None:
        _refuse("max_tokens", "Set either 'max_completion_tokens' or the older 'max_tokens', not both.")
    if chat.top_logprobs and not chat.logprobs:
        _refuse("top_logprobs", "'top_logprobs' needs 'logprobs' to be true.")
    if chat.response_format is not None:
        _check_response_format(chat)
    if chat.tools or chat.functions or chat.tool_choice is not None or chat.function_call is not None:
        _check_tools(chat)
    if chat.metadata is not None and any(len(key) > _LONGEST_METADATA_KEY for key in chat.metadata):
        _refuse("metadata", f"A key of 'metadata' is longer than {_LONGEST_METADATA_KEY} characters.")


def check_translated(body: Body) -> None:
    """The same for what a dialect has made: its messages, tools and choice are right as they were checked there."""
    check_chat({**body, "messages": _SAID, "tools": None, "tool_choice": None})


def check_completion(body: Body) -> None:
    """The legacy operation; errors as in `check_chat`."""
    completion = _shape(body, Completion)
    _check_generation(completion)
    if isinstance(completion.prompt, list):
        _check_texts("prompt", completion.prompt, empty_allowed=True)
    if completion.best_of is not None:
        if completion.best_of < (completion.n or 1):
            _refuse("best_of", "'best_of' must be at least 'n'.")
        if completion.stream and completion.best_of > (completion.n or 1):
            _refuse("best_of", "'best_of' larger than 'n' cannot be streamed.")
    if completion.prompt_embeds is not None:
        _refuse("prompt_embeds", "'prompt_embeds' is not taken from requests.", "unsupported_parameter")


def check_embedding(body: Body) -> None:
    """Texts or token ids, at most 2,048 of them, none empty; errors as in `check_chat`."""
    embedding = _shape(body, Embedding)
    _check_names(embedding.model, embedding.user)
    if isinstance(embedding.input, list):
        _check_texts("input", embedding.input, empty_allowed=False)
    elif not embedding.input:
        _refuse("input", "'input' must not be an empty string.")


def _shape(body: Body, shape: type[Shape]) -> Shape:
    try:
        return _convert(body, shape)
    except msgspec.ValidationError as error:
        raise explain(str(error)) from None


def explain(why: str) -> InvalidRequest:
    """msgspec's words about a value, in OpenAI's: ``Expected `str`, got `int` - at `$.messages[0].role` ``."""
    said = _AT.fullmatch(why)
    text, path = (said[1], said[2] or "") if said else (why, "")
    path, inside, _ = path.partition("[...]")  # a value of a map: msgspec does not say which
    what = f"a value of '{path}'" if inside else f"'{path}'"
    if missing := _MISSING.match(text):
        path = f"{path}.{missing[1]}" if path else missing[1]
        return InvalidRequest(f"Missing required parameter: '{path}'.", param=path, code="missing_required_parameter")
    expected = _EXPECTED.match(text)
    if expected is None:
        hint = f" Supported values: {_ROLES}." if path.endswith(".role") and path.startswith("messages") else ""
        return InvalidRequest(f"Invalid value for {what}.{hint}", param=path, code="invalid_value")
    wanted = " or ".join(_plain(kind) for kind in expected[1].split(" | "))
    if expected[2] is not None:
        message = f"Invalid type for {what}: expected {wanted}, got {_plain(expected[2])}."
        return InvalidRequest(message, param=path, code="invalid_type")
    return InvalidRequest(
        f"Invalid value for {what}: expected {wanted} {expected[3]}.", param=path, code="invalid_value"
    )


def _plain(kind: str) -> str:
    return _WORD.sub(lambda word: _NAMES.get(word[0], word[0]), kind)


def _refuse(param: str, message: str, code: str = "invalid_value") -> NoReturn:
    raise InvalidRequest(message, param=param, code=code)


def _check_names(model: str, user: str | None) -> None:
    """They reach logs, labels and SQL: no control characters, NUL least of all."""
    if not model.isprintable():
        _refuse("model", "'model' holds characters that cannot be printed.")
    if user is not None and not user.isprintable():
        _refuse("user", "'user' holds characters that cannot be printed.")


def _check_generation(asked: Generation) -> None:
    _check_names(asked.model, asked.user)
    if asked.stream_options is not None and not asked.stream:
        _refuse("stream_options", "'stream_options' is only allowed when 'stream' is true.")
    if asked.logit_bias and not all(map(_TOKEN_ID.fullmatch, asked.logit_bias)):
        others = [f"{key[:_LONGEST_SHOWN]!r}" for key in asked.logit_bias if not _TOKEN_ID.fullmatch(key)]
        what = ", ".join(others[:_MOST_SHOWN])
        _refuse("logit_bias", f"The keys of 'logit_bias' must be token ids, which these are not: {what}.")
    if asked.chat_template is not None:
        # A caller's template is a caller's program (CVE-2025-62426): the one of the model is used.
        _refuse("chat_template", "'chat_template' is not taken from requests.", "unsupported_parameter")


def _check_messages(chat: Chat) -> None:
    called: set[str] = set()
    for index, message in enumerate(chat.messages):
        if message.__class__ in _SPOKEN_BY_THE_CALLER:
            continue
        if isinstance(message, AssistantMessage):
            if message.tool_calls:
                called |= _check_calls(message.tool_calls, index)
            elif message.content is None and not (message.refusal or message.function_call or message.audio):
                path = f"messages[{index}].content"
                _refuse(path, f"'{path}' may be null only beside 'tool_calls' or 'refusal'.")
        elif isinstance(message, ToolMessage) and message.tool_call_id not in called:
            _refuse(
                f"messages[{index}].tool_call_id",
                f"'messages[{index}]' has role 'tool' but answers no earlier 'tool_calls' of the assistant.",
            )


def _check_calls(calls: list[Any], index: int) -> set[str]:
    for at, call in enumerate(calls):
        given: FunctionCall | CustomCall | None = call.function if call.type == "function" else call.custom
        if given is None:
            path = f"messages[{index}].tool_calls[{at}].{call.type}"
            _refuse(path, f"Missing required parameter: '{path}'.", "missing_required_parameter")
    return {call.id for call in calls}


def _check_response_format(chat: Chat) -> None:
    wanted = chat.response_format
    if wanted is not None and wanted.type == "json_schema" and wanted.json_schema is None:
        path = "response_format.json_schema"
        _refuse(path, f"Missing required parameter: '{path}'.", "missing_required_parameter")


def _check_tools(chat: Chat) -> None:
    offered = {name for index, tool in enumerate(chat.tools or ()) if (name := _tool_name(tool, index)) is not None}
    if chat.tool_choice is not None:
        _check_tool_choice(chat.tool_choice, offered, bool(chat.tools))
    if chat.function_call is not None:
        _check_function_call(chat.function_call, {function.name for function in chat.functions or ()})


def _tool_name(tool: Tool, index: int) -> str | None:
    """The name a choice may use, None for an upstream's own kind of tool."""
    if tool.type not in ("function", "custom"):
        return None
    given: Function | CustomTool | None = tool.function if tool.type == "function" else tool.custom
    if given is None:
        path = f"tools[{index}].{tool.type}"
        _refuse(path, f"Missing required parameter: '{path}'.", "missing_required_parameter")
    return given.name


def _check_tool_choice(choice: str | dict[str, Any], offered: set[str], any_tools: bool) -> None:
    if isinstance(choice, str):
        if choice not in ("none", "auto", "required"):
            _refuse("tool_choice", "'tool_choice' must be none, auto, required or an object that names a tool.")
        if choice == "required" and not any_tools:
            _refuse("tool_choice", "'tool_choice' is 'required' but the request has no 'tools'.")
        return
    kind = choice.get("type")
    if kind == "allowed_tools":
        if not any_tools:
            _refuse("tool_choice", "'tool_choice' allows tools but the request has no 'tools'.")
        return
    if kind not in ("function", "custom"):
        _refuse("tool_choice.type", "'tool_choice.type' must be function, custom or allowed_tools.")
    named = choice.get(kind)
    name = _name_in(named)
    if name is None:
        path = f"tool_choice.{kind}.name"
        _refuse(path, f"'{path}' must be a string.", "invalid_type")
    if name not in offered:
        _refuse("tool_choice", f"'tool_choice' names the tool {name[:64]!r}, which is not among 'tools'.")


def _check_function_call(choice: str | dict[str, Any], offered: set[str]) -> None:
    if isinstance(choice, str):
        if choice not in ("none", "auto"):
            _refuse("function_call", "'function_call' must be none, auto or an object with a name.")
        return
    name = _name_in(choice)
    if name is None:
        _refuse("function_call.name", "'function_call.name' must be a string.", "invalid_type")
    if name not in offered:
        _refuse("function_call", f"'function_call' names {name[:64]!r}, which is not among 'functions'.")


def _name_in(value: Any) -> str | None:
    name: Any = value.get("name") if isinstance(value, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - a client's JSON
    return name if isinstance(name, str) else None


def _check_texts(param: str, items: list[str | int | list[int]], *, empty_allowed: bool) -> None:
    """All texts, or one text as token ids, or several as lists of token ids."""
    kinds = set(map(type, items))
    if len(kinds) > 1:
        _refuse(param, f"'{param}' must hold strings only, integers only, or lists of integers only.", "invalid_type")
    if int in kinds:
        _check_tokens(param, items)
        return
    if len(items) > _MOST_INPUTS:
        _refuse(param, f"'{param}' holds more than {_MOST_INPUTS:,} inputs.")
    if str in kinds:
        if "" in items and not empty_allowed:
            path = f"{param}[{items.index('')}]"
            _refuse(path, f"'{path}' must not be an empty string.")
        return
    for index, tokens in enumerate(items):
        _check_tokens(f"{param}[{index}]", tokens)


def _check_tokens(param: str, tokens: Any) -> None:
    if not tokens:
        _refuse(param, f"'{param}' must not be empty.")
    if min(tokens) < 0 or max(tokens) > _LARGEST_TOKEN:
        _refuse(param, f"'{param}' holds a number that is no token id.")
