"""A request as OpenAI's Responses API wants it: the client's own where that is one, else a chat request translated.

Knows: which chat requests that API can answer at all, which of them only it can, items, tools. Does not know: HTTP,
answers. OpenAI's newer models that reason refuse functions in chat completions, and some of its models answer nothing
else than Responses.
Source: OpenAI's API reference; the types of its Python client, 3.3.1; github.com/openai/openai-openapi/issues/541.
"""

import re
from collections.abc import Iterator
from functools import lru_cache

from gateway.call import Body
from gateway.providers import Sending
from gateway.upstream.fields import (
    Check,
    mapping,
    never,
    objects,
    passed_on,
    text_only,
    unsupported,
    whole_number,
    words,
)

_LEAST_OUTPUT = 16
# Models that answer Responses alone, those that take no functions elsewhere while they reason, as they always do, and
# those that have no Responses.
_ONLY = re.compile(
    r"(?:^|/)(?:gpt-[\d.]+(?:-chat)?-(?:codex|pro)|codex-|o\d+-pro|o\d+(?:-mini)?-deep-research|computer-use)"
)
_NO_FUNCTIONS = re.compile(r"(?:^|/)gpt-(?:5\.[2-9]|5\.\d\d|[6-9]|\d\d)")
_NEVER = re.compile(r"(?:^|/)(?:gpt-(?:[\w.]+-)*(?:audio|search-(?:preview|api))|o1-mini)")
_SAME = (
    *("temperature", "top_p", "user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
    *("prompt_cache_options", "service_tier", "metadata", "parallel_tool_calls"),
)
_ROLES = frozenset({"system", "developer", "user"})
_PARTS = {"user": frozenset({"text", "image_url", "file"}), "assistant": frozenset({"text", "refusal"})}


def is_better(body: Body, model: str) -> bool:
    """Whether a chat request can be answered by Responses, and better (or only) there."""
    only, no_functions = _kind(model)
    if not only and not (no_functions and body.get("tools") and body.get("reasoning_effort") != "none"):
        return False
    return unsupported(body, _UNSUPPORTED) is None and all(map(_is_told, objects(body.get("messages"))))


@lru_cache(1_024)
def answers(model: str) -> bool:
    """Whether a model of OpenAI's has Responses."""
    return _NEVER.search(model) is None


@lru_cache(1_024)
def _kind(model: str) -> tuple[bool, bool]:
    return _ONLY.search(model) is not None, _NO_FUNCTIONS.search(model) is not None


def translated(sending: Sending) -> Body:
    """The body to send for a chat request of which `is_better` is true."""
    body = sending.body
    made: Body = {
        **passed_on(body),
        "model": sending.model,
        "input": [item for message in objects(body.get("messages")) for item in _items(message)],
        "stream": sending.stream,
        "store": False,
        **{name: body[name] for name in _SAME if body.get(name) is not None},
    }
    if (limit := _limit(body)) is not None:
        made["max_output_tokens"] = limit
    if effort := words(body.get("reasoning_effort")):
        made["reasoning"] = {"effort": effort}
    if text := _text(body):
        made["text"] = text
    if tools := [_tool(tool) for tool in objects(body.get("tools"))]:
        made["tools"] = tools
        if (choice := body.get("tool_choice")) is not None:
            made["tool_choice"] = _choice(choice)
    return made


def native(sending: Sending, given: Body) -> Body:
    """The client's own request. Nothing is kept at OpenAI: what is to be kept is kept here."""
    made: Body = {name: value for name, value in given.items() if name not in _OURS}
    made |= {"model": sending.model, "stream": sending.stream, "store": False}
    if not sending.stream:
        made.pop("stream_options", None)
    if (limit := _limit(sending.body)) is not None:
        made["max_output_tokens"] = max(_LEAST_OUTPUT, limit)
    if (tier := sending.body.get("service_tier")) is not None:
        made["service_tier"] = tier
    if isinstance(given.get("input"), list):
        made["input"] = [item for told in objects(given["input"]) if (item := _given_back(told)) is not None]
    return made


_OURS = frozenset({"previous_response_id", "background", "conversation"})


def _given_back(item: Body) -> Body | None:
    """An item of the client's. Ids of ours are unknown at OpenAI, and so is what another model thought."""
    if item.get("type") == "reasoning":
        return item if item.get("encrypted_content") else None
    ours = str(item.get("id")).startswith("item_")  # written where it is kept, since it had none
    if (ours or item.get("type", "message") in _NAMELESS) and "id" in item:
        return {name: value for name, value in item.items() if name != "id"}
    return item


_NAMELESS = frozenset(
    (
        *("message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"),
        *("shell_call", "shell_call_output", "apply_patch_call", "apply_patch_call_output"),
    )
)


def _limit(body: Body) -> int | None:
    limit = whole_number(body.get("max_completion_tokens"))
    return whole_number(body.get("max_tokens")) if limit is None else limit


def _is_told(message: Body) -> bool:
    role, content = message.get("role"), message.get("content")
    if message.get("audio") is not None or message.get("function_call") is not None or role == "function":
        return False
    if any(call.get("type", "function") != "function" for call in objects(message.get("tool_calls"))):
        return False
    known = _PARTS.get(words(role), frozenset({"text"}))
    return all(part.get("type") in known for part in objects(content))


def _items(message: Body) -> Iterator[Body]:
    role, content = words(message.get("role")), message.get("content")
    if role == "tool":
        text = content if isinstance(content, str) else "".join(words(part.get("text")) for part in objects(content))
        yield {"type": "function_call_output", "call_id": message.get("tool_call_id"), "output": text}
        return
    if role in _ROLES:
        told = content if isinstance(content, str) else [_part(part) for part in objects(content)]
        yield {"type": "message", "role": role, "content": told}
        return
    yield from _earlier(message)


def _earlier(message: Body) -> Iterator[Body]:
    """An earlier answer: what was thought (sealed), what was said, what was called."""
    for block in objects(message.get("thinking_blocks")):
        if words(block.get("id")).startswith("rs_") and block.get("signature"):
            summary = [{"type": "summary_text", "text": block["thinking"]}] if block.get("thinking") else []
            sealed = block["signature"]
            yield {"type": "reasoning", "id": block["id"], "summary": summary, "encrypted_content": sealed}
    content = message.get("content") or message.get("refusal")
    if isinstance(content, list):
        content = "".join(words(part.get("text") or part.get("refusal")) for part in objects(content))  # pyright: ignore[reportUnknownArgumentType] - a client's JSON
    if content:
        yield {"type": "message", "role": "assistant", "content": content}
    for call in objects(message.get("tool_calls")):
        function = mapping(call.get("function"))
        told: Body = {"name": function.get("name"), "arguments": words(function.get("arguments")) or "{}"}
        yield {"type": "function_call", "call_id": call.get("id"), **told}


def _part(part: Body) -> Body:
    if part.get("type") == "image_url":
        image = mapping(part.get("image_url"))
        return {"type": "input_image", "image_url": image.get("url"), "detail": image.get("detail") or "auto"}
    if part.get("type") == "file":
        return {"type": "input_file", **mapping(part.get("file"))}
    return {"type": "input_text", "text": part.get("text")}


def _text(body: Body) -> Body:
    found: Body = {"verbosity": body["verbosity"]} if body.get("verbosity") is not None else {}
    wanted = mapping(body.get("response_format"))
    if wanted.get("type") == "json_schema":
        return {**found, "format": {"type": "json_schema", **mapping(wanted.get("json_schema"))}}
    return {**found, "format": wanted} if wanted else found


def _tool(tool: Body) -> Body:
    """A function is strict here unless it is said that it is not; in chat it is the reverse."""
    if tool.get("type", "function") != "function":
        return tool
    function = mapping(tool.get("function"))
    parameters: object = function.get("parameters") or {"type": "object", "properties": dict[str, object]()}
    return {"type": "function", **function, "parameters": parameters, "strict": function.get("strict") is True}


def _choice(choice: object) -> object:
    given = mapping(choice)
    if given.get("type") == "function":
        return {"type": "function", "name": mapping(given.get("function")).get("name")}
    if given.get("type") == "allowed_tools":
        allowed = mapping(given.get("allowed_tools"))
        named = [{"type": "function", **mapping(tool.get("function"))} for tool in objects(allowed.get("tools"))]
        return {"type": "allowed_tools", "mode": allowed.get("mode") or "auto", "tools": named}
    return choice


def _enough(value: object) -> str:
    return "" if isinstance(value, int) and value >= _LEAST_OUTPUT else "Too few."


_UNSUPPORTED: dict[str, Check] = {
    "n": lambda value: "" if value == 1 else "One.",
    "max_tokens": _enough,
    "max_completion_tokens": _enough,
    **dict.fromkeys(
        ("stop", "seed", "presence_penalty", "frequency_penalty", "logit_bias", "logprobs", "top_logprobs", "audio"),
        never("it"),
    ),
    **dict.fromkeys(
        ("functions", "function_call", "prediction", "web_search_options", "moderation", "store"), never("it")
    ),
    "modalities": text_only,
    "tools": lambda value: "Free text." if any(tool.get("type") == "custom" for tool in objects(value)) else "",
}
