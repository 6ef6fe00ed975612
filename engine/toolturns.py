"""Earlier tool calls and their results as a chat template takes them.

Knows: OpenAI's assistant messages with `tool_calls`, tool messages, what templates of each form expect. Does not know:
Jinja, tokens, how answers are read.
"""

from hashlib import sha256
from typing import cast

import msgspec

from engine.api import Tools
from engine.toolforms import Form, explain

Message = dict[str, object]
_RESULTS = ("tool", "function")
_json = msgspec.json.Decoder()
_encode = msgspec.json.Encoder().encode


def retold(messages: list[Message], tools: Tools | None, form: Form) -> list[Message]:
    """Arguments as objects for templates that know tools; in words for those that do not.

    Those are told of tools only when one must be called: the grammar then sees to it that one is.
    """
    if form.native:
        return [_native(message, form) for message in messages]
    told = _in_turns(messages)
    if tools is None or tools.choice == "auto":  # a model never taught to call tools only loses its way
        return told
    if told and (told[0]["role"] == "system" or not form.system):
        parts = (told[0]["content"], explain(tools)) if form.system else (explain(tools), told[0]["content"])
        return [{**told[0], "content": "\n\n".join(map(str, parts))}, *told[1:]]
    return [{"role": "system", "content": explain(tools)}, *told]


def _in_turns(messages: list[Message]) -> list[Message]:
    """Results, and what the user says after them, are one turn: many of these templates insist on turns."""
    told: list[Message] = []
    result_before = False
    for message in messages:
        said = _in_words(message)
        result = message["role"] in _RESULTS
        if told and said["role"] == told[-1]["role"] == "user" and (result or result_before):
            told[-1] = {**told[-1], "content": f"{told[-1]['content']}\n{said['content']}"}
        else:
            told.append(said)
        result_before = result
    return told


def _native(message: Message, form: Form) -> Message:
    calls = _calls(message)
    message = dict(message) if form.recalls else _calls_in_words(message)
    if calls and form.recalls:
        message["tool_calls"] = [_with_object(call, form) for call in calls]
    if form.name == "mistral" and isinstance(message.get("tool_call_id"), str):
        message["tool_call_id"] = _nine(cast("str", message["tool_call_id"]))
    return message


def _with_object(call: Message, form: Form) -> Message:
    function = dict(cast("Message", call.get("function") or {}))
    function["arguments"] = _arguments(function)
    told = {**call, "function": function}
    if form.name == "mistral" and isinstance(call.get("id"), str):
        told["id"] = _nine(cast("str", call["id"]))
    return told


def _nine(name: str) -> str:
    """Mistral's templates insist on ids of nine letters and digits."""
    return name if len(name) == 9 and name.isalnum() else sha256(name.encode("utf-8", "replace")).hexdigest()[:9]


def _arguments(function: Message) -> object:
    """A JSON object in a string becomes the object; what is none stays what it is."""
    given = function.get("arguments") or {}
    try:
        found = _json.decode(given) if isinstance(given, str) else given
    except (msgspec.DecodeError, RecursionError):
        return given
    return found if isinstance(found, dict) else given


def _in_words(message: Message) -> Message:
    if message["role"] in _RESULTS:
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    return _calls_in_words(message)


def _calls_in_words(message: Message) -> Message:
    calls = _calls(message)
    if not calls:
        return message
    said = [str(message["content"])] if message["content"] else []
    for call in calls:
        function = cast("Message", call.get("function") or {})
        told = _encode({"name": function.get("name"), "arguments": _arguments(function)}).decode()
        said.append(f"<tool_call>\n{told}\n</tool_call>")
    return {"role": "assistant", "content": "\n".join(said)}


def _calls(message: Message) -> list[Message]:
    calls = message.get("tool_calls")
    return (
        [cast("Message", one) for one in cast("list[object]", calls) if isinstance(one, dict)]
        if isinstance(calls, list)
        else []
    )
