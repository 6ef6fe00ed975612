"""A chat request as Anthropic's Messages API wants it.

Knows: which of OpenAI's fields that API honours, under which name, and which it cannot; system prompts, turns that must
alternate, tool results, images, thinking given back. Does not know: HTTP, answers.
Source: Anthropic's API reference, messages (2023-06-01), and their notes on OpenAI compatibility.
"""

import base64
import re
from typing import cast

from gateway.call import Body, Native, Operation
from gateway.errors import InvalidRequest
from gateway.providers import Sending
from gateway.upstream.fields import (
    Check,
    at_most_one,
    choice_of_tools,
    data_of,
    function_tools,
    is_web,
    mapping,
    never,
    objects,
    one_choice,
    one_of,
    output_limit,
    passed_on,
    refuse,
    refuse_unsupported,
    schema_or_text,
    stops,
    text_only,
    thoughts,
    unsupported,
    usual_verbosity,
    words,
)
from gateway.upstream.turns import Turns, earlier_calls, refuse_old_forms

_DEFAULT_OUTPUT = 4_096
_IDS: dict[object, str] = {"tool_use": "id", "tool_result": "tool_use_id"}
_LEAST_THINKING = 1_024
_NOT_IN_AN_ID = re.compile(r"[^a-zA-Z0-9_-]")
# Models that think within a budget; later ones take an effort and decide by themselves.
_BUDGETED = re.compile(r"claude-(?:3|(?:opus|sonnet|haiku)-4(?:-[015])?(?:-\d{8}|@\d{8}|-latest|$))")
# The share of the output a budget may be, by effort.
_BUDGETS = {"minimal": 0.1, "low": 0.2, "medium": 0.5, "high": 0.8, "xhigh": 0.95, "max": 0.95}
_EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "max"}
_TIERS = {"auto": "auto", "default": "standard_only"}
_CHOICES = {"none": "none", "auto": "auto", "required": "any", "function": "tool"}


def translated(sending: Sending) -> Body:
    """The body to send. Raises InvalidRequest whose `param` is the field that cannot be honoured.

    System and developer messages, wherever they stand, come first as the system prompt, as in Anthropic's own layer
    for OpenAI's clients. `name` of a message has no counterpart and is left out.
    """
    body = sending.body
    refuse_unsupported(body, _UNSUPPORTED)
    turns = _Turns()
    for index, message in enumerate(objects(body.get("messages"))):
        turns.add(message, f"messages[{index}]")
    made: Body = {
        **passed_on(body),
        "model": sending.model,
        "max_tokens": output_limit(body, _DEFAULT_OUTPUT),
        "messages": turns.whole(),
    }
    if turns.system:
        made["system"] = turns.system
    if sending.stream:
        made["stream"] = True
    if found := stops(body):
        made["stop_sequences"] = found
    for name in ("temperature", "top_p"):
        if body.get(name) is not None:
            made[name] = body[name]
    if tier := words(body.get("service_tier")):
        made["service_tier"] = _TIERS[tier]
    named: tuple[object, ...] = (
        body.get("safety_identifier"),
        body.get("user"),
        mapping(body.get("metadata")).get("user_id"),
    )
    if user := next((found for value in named if (found := words(value))), ""):
        made["metadata"] = {"user_id": user}
    _add_tools(made, body)
    _add_format(made, body)
    _add_thinking(made, body, sending.model)
    return made


def native(body: Body) -> Body:
    """A client's own request without what Anthropic refuses in it: traces that other models' answers have left.

    Thoughts that nobody signed are dropped, ids of calls written as it takes them. A budget for thoughts is taken back
    where the turn that goes on lacks its own: with one such a turn would have to begin with a thought.
    """
    turns = objects(body.get("messages"))
    if not any(map(_is_foreign, turns)):
        return body
    told = [kept for turn in turns if (kept := _cleared(turn)) is not None]
    made: Body = {**body, "messages": told}
    if mapping(body.get("thinking")).get("type") == "enabled" and _goes_on_thoughtless(told):
        made["thinking"] = {"type": "disabled"}
        edits = objects(mapping(body.get("context_management")).get("edits"))
        if kept_edits := [edit for edit in edits if not words(edit.get("type")).startswith("clear_thinking")]:
            made["context_management"] = {**mapping(body["context_management"]), "edits": kept_edits}
        else:
            made.pop("context_management", None)
    return made


def _is_foreign(turn: Body) -> bool:
    """Whether there is anything to clear in a turn."""
    content = turn.get("content")
    if content.__class__ is not list:
        return False
    for block in cast("list[Body]", content):  # every block of a long conversation comes by
        kind = block.get("type")
        if (kind == "thinking" and not block.get("signature")) or (
            kind in _IDS and _NOT_IN_AN_ID.search(words(block.get(_IDS[kind])))
        ):
            return True
    return False


def _cleared(turn: Body) -> Body | None:
    """None where nothing of the turn is left."""
    if not _is_foreign(turn):
        return turn
    blocks = [block for block in objects(turn["content"]) if block.get("type") != "thinking" or block.get("signature")]
    return {**turn, "content": [_as_taken(block) for block in blocks]} if blocks else None


def _as_taken(block: Body) -> Body:
    name = _IDS.get(words(block.get("type")))
    return block if name is None else {**block, name: _id(block.get(name))}


def _goes_on_thoughtless(turns: list[Body]) -> bool:
    """Whether results of tools come last, and the answer that called them has no thought any more."""
    answers = [turn for turn in turns if turn.get("role") == "assistant"]
    last = objects(turns[-1].get("content")) if turns else []
    if not answers or not any(block.get("type") == "tool_result" for block in last):
        return False
    return not any(words(block.get("type")).endswith("thinking") for block in objects(answers[-1].get("content")))


class _Turns(Turns):
    def _instruction(self, message: Body) -> list[Body]:
        return _marked(_texts(message.get("content")), message)

    def _asked(self, message: Body, path: str) -> list[Body]:
        return _marked(_shown(message.get("content"), path), message)

    def _earlier(self, message: Body, path: str) -> list[Body]:
        return _marked(_earlier(message, path), message)

    def _result(self, message: Body) -> list[Body]:
        return [_result(message)]


def _texts(content: object) -> list[Body]:
    """Text blocks, empty ones left out: the API refuses them, and they say nothing."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    found: list[Body] = []
    for part in objects(content):
        if part.get("type") == "refusal":
            found.append({"type": "text", "text": part.get("refusal")})
        elif part.get("text"):
            found.append(part)
    return found


def _marked(blocks: list[Body], message: Body) -> list[Body]:
    """A cache mark of the whole message stands on its last block."""
    if blocks and (mark := message.get("cache_control")) is not None:
        blocks[-1] = {**blocks[-1], "cache_control": mark}
    return blocks


def _shown(content: object, path: str) -> list[Body]:
    if not isinstance(content, list):
        return _texts(content)
    found: list[Body] = []
    for index, part in enumerate(objects(cast("object", content))):
        where = f"{path}.content[{index}]"
        kind = part.get("type")
        if kind == "text":
            found += _texts([part])
        elif kind in ("image_url", "file"):
            block = _image(part, where) if kind == "image_url" else _document(part, where)
            found += _marked([block], part)
        else:
            refuse(where, "This model reads text, images and documents only.", "unsupported_content")
    return found


def _image(part: Body, path: str) -> Body:
    url = words(mapping(part.get("image_url")).get("url"))
    data = data_of(url, f"{path}.image_url.url")
    if data is not None:
        return {"type": "image", "source": {"type": "base64", "media_type": data.media_type, "data": data.content}}
    if not is_web(url):
        refuse(f"{path}.image_url.url", "An image is a data URL or an http address.", "invalid_value")
    return {"type": "image", "source": {"type": "url", "url": url}}


def _document(part: Body, path: str) -> Body:
    file = mapping(part.get("file"))
    data = data_of(words(file.get("file_data")), f"{path}.file.file_data")
    if data is None:
        refuse(f"{path}.file", "This model takes files as data URLs in file_data.", "unsupported_content")
    source: Body = {"type": "base64", "media_type": data.media_type, "data": data.content}
    if data.media_type.startswith("text/"):
        text = base64.b64decode(data.content).decode("utf-8", "replace")
        source = {"type": "text", "media_type": "text/plain", "data": text}
    elif data.media_type != "application/pdf":
        refuse(f"{path}.file.file_data", "This model reads PDF and text files only.", "unsupported_content")
    title = {"title": file["filename"]} if file.get("filename") else {}
    return {"type": "document", "source": source, **title}


def _earlier(message: Body, path: str) -> list[Body]:
    """An earlier answer: its thinking as it was signed, its text, its calls."""
    refuse_old_forms(message, path)
    content = message.get("content")
    parts = objects(content)
    thinking = thoughts(message) or [part for part in parts if part.get("type") == "thinking"]
    said = _texts([part for part in parts if part.get("type") != "thinking"] if parts else content)
    if not said and message.get("refusal"):
        said = _texts(message["refusal"])
    calls: list[Body] = []
    for call, name, given in earlier_calls(message, path):
        calls += _marked([{"type": "tool_use", "id": _id(call.get("id")), "name": name, "input": given}], call)
    return [*thinking, *said, *calls]


def _result(message: Body) -> Body:
    content = message.get("content")
    made: Body = {"type": "tool_result", "tool_use_id": _id(message.get("tool_call_id"))}
    made["content"] = content if isinstance(content, str) else _texts(content)
    return made | {name: message[name] for name in ("is_error", "cache_control") if message.get(name) is not None}


def _id(value: object) -> str:
    """Other upstreams' ids may hold characters this one refuses; call and result are changed alike."""
    return _NOT_IN_AN_ID.sub("_", words(value))


def _add_tools(made: Body, body: Body) -> None:
    tools: list[Body] = []
    for tool, function in function_tools(body):
        if not function:
            tools.append(tool)
            continue
        made_tool: Body = {"name": function.get("name")}
        if function.get("description") is not None:
            made_tool["description"] = function["description"]
        made_tool["input_schema"] = function.get("parameters") or {"type": "object", "properties": {}}
        if function.get("strict") is not None:
            made_tool["strict"] = function["strict"]
        tools += _marked([made_tool], tool)
    if not tools:
        return
    made["tools"] = tools
    mode, name = choice_of_tools(body)
    choice: Body = {"type": _CHOICES[mode]} if mode else {}
    if name:
        choice["name"] = name
    if body.get("parallel_tool_calls") is False and mode != "none":
        choice = {"type": "auto", **choice, "disable_parallel_tool_use": True}
    if choice:
        made["tool_choice"] = choice


def _add_format(made: Body, body: Body) -> None:
    wanted = mapping(body.get("response_format"))
    if wanted.get("type") == "json_schema":
        schema = mapping(wanted.get("json_schema")).get("schema") or {"type": "object"}
        made["output_config"] = {
            **mapping(made.get("output_config")),
            "format": {"type": "json_schema", "schema": schema},
        }


def _add_thinking(made: Body, body: Body, model: str) -> None:
    effort = words(body.get("reasoning_effort"))
    if not effort:
        return
    if effort == "none":
        made.setdefault("thinking", {"type": "disabled"})
    elif _BUDGETED.search(model):
        limit = cast("int", made["max_tokens"])
        if limit <= _LEAST_THINKING:
            raise InvalidRequest(
                f"reasoning_effort needs a max_completion_tokens above {_LEAST_THINKING} on this model.",
                param="reasoning_effort",
                code="invalid_value",
            )
        budget = max(_LEAST_THINKING, int(limit * _BUDGETS[effort]))
        made.setdefault("thinking", {"type": "enabled", "budget_tokens": budget})
    else:
        made.setdefault("thinking", {"type": "adaptive"})
        made["output_config"] = {"effort": _EFFORTS[effort], **mapping(made.get("output_config"))}


_UNSUPPORTED: dict[str, Check] = {
    "n": one_choice,
    "temperature": at_most_one,
    "seed": lambda _: "This model does not support seed.",
    "presence_penalty": never("penalties"),
    "frequency_penalty": never("penalties"),
    "logit_bias": never("logit_bias"),
    "logprobs": never("logprobs"),
    "top_logprobs": never("logprobs"),
    "response_format": schema_or_text,
    "functions": never("functions; it takes tools"),
    "function_call": lambda value: "" if value in ("none", "auto") else "This model takes tool_choice.",
    "modalities": text_only,
    "audio": never("audio"),
    "prediction": never("predicted outputs"),
    "web_search_options": lambda _: "This model takes web search as a tool of its own.",
    "moderation": never("moderation"),
    "store": never("stored answers"),
    "verbosity": usual_verbosity,
    "reasoning_effort": one_of({"none": 0, **_EFFORTS}, "reasoning_effort"),
    "service_tier": one_of(_TIERS, "service_tier"),
}


def cannot(operation: Operation, body: Body, native: Native | None) -> str:
    """What of a request this language has no word for, as `gateway.providers` says."""
    if operation != "chat":
        return operation
    if native is not None and native.dialect == "messages":
        return ""  # it goes out as it came
    found = unsupported(body, _UNSUPPORTED)
    return found[0] if found else ""
