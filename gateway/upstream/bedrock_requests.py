"""A chat request as Amazon Bedrock's Converse wants it.

Knows: which of OpenAI's fields Converse honours, under which name, and which it cannot; turns that must alternate, tool
results, images and documents, thinking given back. Does not know: HTTP, signatures, answers.
Source: AWS's API reference of the Bedrock runtime (2023-09-30), Converse.
"""

import re
from typing import cast

import msgspec

from gateway.call import Body, Native, Operation
from gateway.providers import Sending
from gateway.upstream.fields import (
    Check,
    at_most_one,
    choice_of_tools,
    data_of,
    function_tools,
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
_NOT_IN_AN_ID = re.compile(r"[^a-zA-Z0-9_-]")
_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9 ()\[\]-]+")
_LONGEST_ID = 64
_IMAGES = {"image/png": "png", "image/jpeg": "jpeg", "image/gif": "gif", "image/webp": "webp"}
_DOCUMENTS = {
    "application/pdf": "pdf",
    "text/plain": "txt",
    "text/csv": "csv",
    "text/html": "html",
    "text/markdown": "md",
    "application/msword": "doc",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "application/vnd.ms-excel": "xls",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
}
# Converse's own fields; whatever else OpenAI does not define belongs to the model behind it.
_OWN = frozenset(
    {
        "additionalModelRequestFields",
        "additionalModelResponseFieldPaths",
        "guardrailConfig",
        "performanceConfig",
        "promptVariables",
        "requestMetadata",
    }
)
_NO_PARAMETERS: Body = {"type": "object", "properties": {}}
_TIERS = ("default", "flex", "priority", "reserved")
_EFFORTS = {"minimal": "low", **{name: name for name in ("low", "medium", "high", "xhigh", "max")}}


def translated(sending: Sending) -> Body:
    """The body to send. Raises InvalidRequest whose `param` is the field that cannot be honoured.

    System and developer messages, wherever they stand, become the system prompt. Fields that neither OpenAI nor
    Converse defines go to the model as `additionalModelRequestFields`.
    """
    body = sending.body
    refuse_unsupported(body, _UNSUPPORTED)
    turns = _Turns()
    for index, message in enumerate(objects(body.get("messages"))):
        turns.add(message, f"messages[{index}]")
    config: Body = {"maxTokens": output_limit(body, _DEFAULT_OUTPUT)}
    for name, theirs in (("temperature", "temperature"), ("top_p", "topP")):
        if body.get(name) is not None:
            config[theirs] = body[name]
    if found := stops(body):
        config["stopSequences"] = found
    passed = passed_on(body)
    made: Body = {name: value for name, value in passed.items() if name in _OWN}
    made |= {"messages": turns.whole(), "inferenceConfig": config}
    if extra := {name: value for name, value in passed.items() if name not in _OWN}:
        made["additionalModelRequestFields"] = {**mapping(made.get("additionalModelRequestFields")), **extra}
    if turns.system:
        made["system"] = turns.system
    if tier := words(body.get("service_tier")).replace("auto", ""):
        made["serviceTier"] = {"type": tier}
    _add_tools(made, body, turns.called)
    if (effort := words(body.get("reasoning_effort"))) != "none" and effort:
        made["outputConfig"] = {"effort": _EFFORTS[effort]}
    _add_format(made, body)
    return made


class _Turns(Turns):
    """`called`: tools were called in it."""

    def __init__(self) -> None:
        super().__init__()
        self.called = False

    def _instruction(self, message: Body) -> list[Body]:
        return _marked(_texts(message.get("content")), message)

    def _asked(self, message: Body, path: str) -> list[Body]:
        return _marked(_shown(message.get("content"), path), message)

    def _earlier(self, message: Body, path: str) -> list[Body]:
        refuse_old_forms(message, path)
        found = [_thought(block) for block in thoughts(message)]
        said = _texts(message.get("content"))
        if not said and message.get("refusal"):
            said = _texts(message["refusal"])
        found += said
        for call, name, given in earlier_calls(message, path):
            self.called = True
            found.append({"toolUse": {"toolUseId": _id(call.get("id")), "name": name, "input": given}})
        return _marked(found, message)

    def _result(self, message: Body) -> list[Body]:
        return _marked([_result(message)], message)


def _thought(block: Body) -> Body:
    if block.get("type") == "redacted_thinking":
        return {"reasoningContent": {"redactedContent": block.get("data")}}
    text: Body = {"text": block.get("thinking")}
    if block.get("signature"):
        text["signature"] = block["signature"]
    return {"reasoningContent": {"reasoningText": text}}


def _texts(content: object) -> list[Body]:
    """Text blocks, blank ones left out: Converse refuses them."""
    if isinstance(content, str):
        return [{"text": content}] if content else []
    found: list[Body] = []
    for part in objects(content):
        text = part.get("refusal") if part.get("type") == "refusal" else part.get("text")
        if isinstance(text, str) and text:
            found += _marked([{"text": text}], part)
    return found


def _marked(blocks: list[Body], source: Body) -> list[Body]:
    """Anthropic's cache mark as the block that Converse puts behind what is to be kept."""
    mark = mapping(source.get("cache_control"))
    if blocks and mark:
        point: Body = {"type": "default", **({"ttl": mark["ttl"]} if mark.get("ttl") else {})}
        return [*blocks, {"cachePoint": point}]
    return blocks


def _shown(content: object, path: str) -> list[Body]:
    if not isinstance(content, list):
        return _texts(content)
    found: list[Body] = []
    for index, part in enumerate(objects(cast("object", content))):
        where, kind = f"{path}.content[{index}]", part.get("type")
        if kind == "text":
            found += _texts([part])
        elif kind == "image_url":
            found += _marked([_image(part, f"{where}.image_url.url")], part)
        elif kind == "file":
            found += _marked([_document(part, f"{where}.file.file_data", len(found))], part)
        else:
            refuse(where, "This model reads text, images and documents only.", "unsupported_content")
    return found


def _image(part: Body, path: str) -> Body:
    data = data_of(words(mapping(part.get("image_url")).get("url")), path)
    if data is None or data.media_type not in _IMAGES:
        refuse(path, "This model takes images as data URLs (png, jpeg, gif, webp) only.", "unsupported_content")
    return {"image": {"format": _IMAGES[data.media_type], "source": {"bytes": data.content}}}


def _document(part: Body, path: str, place: int) -> Body:
    file = mapping(part.get("file"))
    data = data_of(words(file.get("file_data")), path)
    if data is None or data.media_type not in _DOCUMENTS:
        refuse(path, "This model takes files as data URLs of documents only.", "unsupported_content")
    stem = words(file.get("filename")).rpartition(".")[0]
    name = _NOT_IN_A_NAME.sub(" ", stem).strip() or f"document {place + 1}"
    return {"document": {"format": _DOCUMENTS[data.media_type], "name": name, "source": {"bytes": data.content}}}


def _result(message: Body) -> Body:
    text = "".join(words(block.get("text")) for block in _texts(message.get("content")))
    # A blank text is refused, an empty object is not.
    content: Body = {"text": text} if text.strip() else {"json": {}}
    made: Body = {"toolUseId": _id(message.get("tool_call_id")), "content": [content]}
    if message.get("is_error") is True:
        made["status"] = "error"
    return {"toolResult": made}


def _id(value: object) -> str:
    """Other upstreams' ids may hold characters this one refuses; call and result are changed alike."""
    return _NOT_IN_AN_ID.sub("_", words(value))[:_LONGEST_ID]


def _add_tools(made: Body, body: Body, called: bool) -> None:
    tools: list[Body] = []
    for tool, function in function_tools(body):
        if not function:
            refuse("tools", "This model takes tools of type function only.")
        schema: object = function.get("parameters") or _NO_PARAMETERS
        told: Body = {"name": function.get("name"), "inputSchema": {"json": schema}}
        if function.get("description"):
            told["description"] = function["description"]
        if function.get("strict") is True:
            told["strict"] = True
        tools += _marked([{"toolSpec": told}], tool)
    mode, name = choice_of_tools(body)
    if not tools or (mode == "none" and not called):
        return
    if mode == "none":
        refuse("tool_choice", "This model cannot be kept from calling tools it has called before.")
    if body.get("parallel_tool_calls") is False:
        refuse("parallel_tool_calls", "This model may always call several tools at once.")
    chosen: dict[str, Body] = {"auto": {"auto": {}}, "required": {"any": {}}, "function": {"tool": {"name": name}}}
    made["toolConfig"] = {"tools": tools, **({"toolChoice": chosen[mode]} if mode else {})}


def _add_format(made: Body, body: Body) -> None:
    wanted = mapping(body.get("response_format"))
    if wanted.get("type") != "json_schema":
        return
    given = mapping(wanted.get("json_schema"))
    schema = msgspec.json.encode(given.get("schema") or {"type": "object"}).decode()
    structure: Body = {"jsonSchema": {"name": given.get("name"), "schema": schema}}
    made["outputConfig"] = {
        **mapping(made.get("outputConfig")),
        "textFormat": {"type": "json_schema", "structure": structure},
    }


def _tier(value: object) -> str:
    return "" if value in ("auto", *_TIERS) else f"This model knows these service tiers: auto, {', '.join(_TIERS)}."


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
    "web_search_options": lambda _: "This model does not search the web.",
    "moderation": never("moderation; it takes guardrailConfig"),
    "store": never("stored answers"),
    "verbosity": usual_verbosity,
    "reasoning_effort": one_of({"none": 0, **_EFFORTS}, "reasoning_effort"),
    "service_tier": _tier,
}


def cannot(operation: Operation, body: Body, native: Native | None) -> str:  # noqa: ARG001 - every language is asked alike
    """What of a request this language has no word for, as `gateway.providers` says."""
    if operation != "chat":
        return "" if operation == "embedding" else operation
    found = unsupported(body, _UNSUPPORTED)
    return found[0] if found else ""
