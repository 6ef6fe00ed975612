"""A chat request as Google's generateContent wants it.

Knows: which of OpenAI's fields that API honours, under which name, and which it cannot; contents and parts, function
responses, thought signatures. Does not know: HTTP, answers.
Source: Google's Gemini API reference (v1beta, generateContent), function calling, thinking, thought signatures.
"""

import mimetypes
import re
from typing import cast

import msgspec

from gateway.call import Body, Native, Operation
from gateway.providers import Sending
from gateway.upstream.fields import (
    Check,
    choice_of_tools,
    data_of,
    function_tools,
    is_web,
    mapping,
    never,
    objects,
    one_of,
    output_limit,
    passed_on,
    refuse,
    refuse_unsupported,
    stops,
    text_only,
    unsupported,
    usual_verbosity,
    whole_number,
    words,
)
from gateway.upstream.turns import Turns, earlier_calls, refuse_old_forms

_DEFAULT_OUTPUT = 4_096
_MOST_CHOICES = 8
# Thinking budgets in tokens, as in Google's own layer for OpenAI's clients; models from 3 on take a level instead.
_BUDGETS = {"none": 0, "minimal": 1_024, "low": 1_024, "medium": 8_192, "high": 24_576}
_BUDGETED = re.compile(r"gemini-[12]\.")
_SIGNED = re.compile(r"gemini-(?![12]\.)")
# Google's documented stand-in for calls that another model made, or whose signature a client has lost.
_UNSIGNED = "skip_thought_signature_validator"
_TIERS = {"auto": "", "default": "", "flex": "flex", "priority": "priority"}
_MODES = {"none": "NONE", "auto": "AUTO", "required": "ANY", "function": "ANY"}
# What OpenAI's request calls by another name. `top_k` is no field of OpenAI's, yet the same everywhere.
_NAMES = {
    "temperature": "temperature",
    "top_p": "topP",
    "top_k": "topK",
    "seed": "seed",
    "presence_penalty": "presencePenalty",
    "frequency_penalty": "frequencyPenalty",
    "n": "candidateCount",
}
_decode = msgspec.json.Decoder().decode


def translated(sending: Sending) -> Body:
    """The body to send. Raises InvalidRequest whose `param` is the field that cannot be honoured.

    System and developer messages become the one system instruction. Fields that OpenAI does not define are passed on
    (`safetySettings`, `cachedContent`, …); `generationConfig` is filled up, not replaced.
    """
    body = sending.body
    refuse_unsupported(body, _UNSUPPORTED)
    contents = _Contents(sending.model)
    for index, message in enumerate(objects(body.get("messages"))):
        contents.add(message, f"messages[{index}]")
    passed = passed_on(body)
    passed.pop("top_k", None)
    config: Body = {
        **mapping(passed.get("generationConfig")),
        "maxOutputTokens": output_limit(body, _DEFAULT_OUTPUT),
    }
    for name, theirs in _NAMES.items():
        if body.get(name) is not None:
            config[theirs] = body[name]
    if found := stops(body):
        config["stopSequences"] = found
    if body.get("logprobs"):
        config["responseLogprobs"] = True
        if top := whole_number(body.get("top_logprobs")):
            config["logprobs"] = top
    _add_format(config, body)
    _add_thinking(config, body, sending.model)
    made: Body = {**passed, "contents": contents.whole(), "generationConfig": config}
    if contents.system:
        made["systemInstruction"] = {"parts": contents.system}
    if tier := _TIERS[words(body.get("service_tier")) or "auto"]:
        made["serviceTier"] = tier
    _add_tools(made, body)
    return made


class _Contents(Turns):
    blocks = "parts"
    model = "model"

    def __init__(self, model: str) -> None:
        super().__init__()
        self._signed = _SIGNED.search(model) is not None
        self._names: dict[str, str] = {}

    def _instruction(self, message: Body) -> list[Body]:
        return _texts(message.get("content"))

    def _asked(self, message: Body, path: str) -> list[Body]:
        return _shown(message.get("content"), path)

    def _earlier(self, message: Body, path: str) -> list[Body]:
        refuse_old_forms(message, path, audio="earlier audio")
        parts = _texts(message.get("content"))
        if not parts and message.get("refusal"):
            parts = _texts(message["refusal"])
        for index, (call, name, given) in enumerate(earlier_calls(message, path)):
            call_id = words(call.get("id"))
            self._names[call_id] = name
            part: Body = {"functionCall": {"id": call_id, "name": name, "args": given}}
            signature = mapping(mapping(call.get("extra_content")).get("google")).get("thought_signature")
            if signature or (self._signed and index == 0):
                part["thoughtSignature"] = signature or _UNSIGNED
            parts.append(part)
        return parts

    def _result(self, message: Body) -> list[Body]:
        call_id = words(message.get("tool_call_id"))
        text = "".join(words(part.get("text")) for part in _texts(message.get("content")))
        made: Body = {"id": call_id, "name": self._names.get(call_id, ""), "response": _response(text)}
        return [{"functionResponse": made}]


def _response(text: str) -> object:
    """A result that is a JSON object goes as it was written; any other text is wrapped, for it must be an object."""
    try:
        if isinstance(_decode(text), dict):
            return msgspec.Raw(text.encode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError):
        pass
    return {"result": text}


def _texts(content: object) -> list[Body]:
    if isinstance(content, str):
        return [{"text": content}] if content else []
    said = (part.get("refusal") if part.get("type") == "refusal" else part.get("text") for part in objects(content))
    return [{"text": text} for text in said if isinstance(text, str) and text]


def _shown(content: object, path: str) -> list[Body]:
    if not isinstance(content, list):
        return _texts(content)
    found: list[Body] = []
    for index, part in enumerate(objects(cast("object", content))):
        where, kind = f"{path}.content[{index}]", words(part.get("type"))
        if kind == "text":
            found += _texts([part])
        elif kind in ("image_url", "video_url"):
            found.append(_media(words(mapping(part.get(kind)).get("url")), f"{where}.{kind}.url"))
        elif kind == "file":
            found.append(_media(words(mapping(part.get("file")).get("file_data")), f"{where}.file.file_data"))
        elif kind == "input_audio":
            audio = mapping(part.get("input_audio"))
            mime = f"audio/{words(audio.get('format')) or 'wav'}"
            found.append({"inlineData": {"mimeType": mime, "data": words(audio.get("data"))}})
        else:
            refuse(where, "This model reads text, images, audio, video and documents only.", "unsupported_content")
    return found


def _media(url: str, path: str) -> Body:
    data = data_of(url, path)
    if data is not None:
        return {"inlineData": {"mimeType": data.media_type, "data": data.content}}
    if not is_web(url):
        refuse(path, "Give it as a data URL or an http address.", "unsupported_content")
    kind = mimetypes.guess_type(url.partition("?")[0])[0]
    return {"fileData": {"fileUri": url, **({"mimeType": kind} if kind else {})}}


def _add_tools(made: Body, body: Body) -> None:
    functions: list[Body] = []
    others: list[Body] = []
    strict = False
    for tool, function in function_tools(body):
        if not function:
            others.append({name: value for name, value in tool.items() if name != "type"})
            continue
        declared: Body = {"name": function.get("name")}
        if function.get("description") is not None:
            declared["description"] = function["description"]
        if function.get("parameters"):
            declared["parametersJsonSchema"] = function["parameters"]
        strict = strict or function.get("strict") is True
        functions.append(declared)
    if not functions and not others:
        return
    if body.get("parallel_tool_calls") is False:
        refuse("parallel_tool_calls", "This model may always call several tools at once.")
    made["tools"] = [*([{"functionDeclarations": functions}] if functions else []), *others]
    mode, name = choice_of_tools(body)
    if strict and mode in ("", "auto"):
        calling: Body = {"mode": "VALIDATED"}
    else:
        calling = {"mode": _MODES[mode]} if mode else {}
    if name:
        calling["allowedFunctionNames"] = [name]
    if calling:
        made["toolConfig"] = {**mapping(made.get("toolConfig")), "functionCallingConfig": calling}


def _add_format(config: Body, body: Body) -> None:
    wanted = mapping(body.get("response_format"))
    if wanted.get("type") in ("json_object", "json_schema"):
        config["responseMimeType"] = "application/json"
    if schema := mapping(wanted.get("json_schema")).get("schema"):
        config["responseJsonSchema"] = schema


def _add_thinking(config: Body, body: Body, model: str) -> None:
    effort = words(body.get("reasoning_effort"))
    if not effort or "thinkingConfig" in config:
        return
    if _BUDGETED.search(model):
        thinking: Body = {"thinkingBudget": _BUDGETS[effort]}
    elif effort == "none":
        refuse("reasoning_effort", "This model always thinks; its least effort is minimal or low.")
    else:
        thinking = {"thinkingLevel": effort}
    config["thinkingConfig"] = {**thinking, **({} if effort == "none" else {"includeThoughts": True})}


def _choices(value: object) -> str:
    count = whole_number(value)
    return "" if count is not None and count <= _MOST_CHOICES else f"This model gives at most {_MOST_CHOICES} answers."


_UNSUPPORTED: dict[str, Check] = {
    "n": _choices,
    "logit_bias": never("logit_bias"),
    "functions": never("functions; it takes tools"),
    "function_call": lambda value: "" if value in ("none", "auto") else "This model takes tool_choice.",
    "modalities": text_only,
    "audio": never("audio answers"),
    "prediction": never("predicted outputs"),
    "web_search_options": lambda _: "This model takes web search as a tool of its own.",
    "moderation": never("moderation"),
    "store": never("stored answers"),
    "verbosity": usual_verbosity,
    "reasoning_effort": one_of(tuple(_BUDGETS), "reasoning_effort"),
    "service_tier": one_of(_TIERS, "service_tier"),
}


def cannot(operation: Operation, body: Body, native: Native | None) -> str:  # noqa: ARG001 - every language is asked alike
    """What of a request this language has no word for, as `gateway.providers` says."""
    if operation != "chat":
        return "" if operation == "embedding" else operation
    found = unsupported(body, _UNSUPPORTED)
    return found[0] if found else ""
