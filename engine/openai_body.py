"""An OpenAI request as what an engine takes, and its whole answer as OpenAI's body: where there is no gateway.

Knows: the fields of chat and legacy completions that are honoured. Does not know: files, sockets, queues, tenants.
"""

import codecs
from itertools import accumulate
from typing import Any, Literal

import msgspec
from msgspec import Struct

from engine.api import (
    Constraint,
    Delta,
    EngineUsage,
    GenerateRequest,
    SamplingParams,
    TokenLogprob,
    ToolCallDelta,
    Tools,
    left_open,
    spelled_bytes,
)

Url = Literal["/v1/chat/completions", "/v1/completions"]
_DEFAULT_OUTPUT = {"/v1/chat/completions": 4096, "/v1/completions": 16}
_PASSED = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "logit_bias"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
)  # under the same name
# What would be so unsaid may be said: clients and exporters do.
_SO_ANYWAY: dict[str, object] = {
    "n": 1,
    "best_of": 1,
    "modalities": ["text"],
    **dict.fromkeys(("stream", "echo", "store"), False),
}
_CHATS_ONLY = frozenset(("tools", "tool_choice", "parallel_tool_calls", "top_logprobs"))
_IMPOSSIBLE = -9999.0  # JSON has no minus infinity
_encode = msgspec.json.Encoder().encode


class Wrong(Exception):
    """What a request says that cannot be. `param` names the field."""

    def __init__(self, message: str, param: str | None = None, code: str = "invalid_request") -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class _Schema(Struct):
    """`response_format.json_schema`, or the schema beside `json_object`."""

    schema: dict[str, Any] | None = None
    strict: bool | None = None


class _Format(Struct):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: _Schema | None = None
    schema: dict[str, Any] | None = None


class _Tool(Struct):
    function: dict[str, Any]
    type: Literal["function"] = "function"


class _Named(Struct):
    name: str


class _Choice(Struct):
    function: _Named
    type: Literal["function"] = "function"


class Body(Struct, kw_only=True):
    """The part of an OpenAI request that is honoured; anything else is refused by name.

    `user` and `metadata` are their sender's own: nothing in an answer depends on them.
    """

    model: str = ""
    messages: list[dict[str, object]] | None = None
    prompt: str | list[int] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    logprobs: bool | int | None = None
    top_logprobs: int | None = None
    response_format: _Format | None = None
    tools: list[_Tool] | None = None
    tool_choice: Literal["auto", "none", "required"] | _Choice | None = None
    parallel_tool_calls: bool | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None


class Whole(Struct):
    """A whole answer; `last` is its terminal delta."""

    text: str
    reasoning: str
    calls: list[ToolCallDelta]
    logprobs: list[TokenLogprob]
    last: Delta


def request(url: Url, given: dict[str, Any], name: str, priority: int = 0) -> GenerateRequest:
    """Raises Wrong."""
    given = {field: value for field, value in given.items() if value is not None and value != _SO_ANYWAY.get(field)}
    unknown = sorted(set(given) - set(Body.__struct_fields__))
    if unknown:
        raise Wrong(f"{unknown[0]} is not supported here.", unknown[0], "unsupported_parameter")
    try:
        body = msgspec.convert(given, Body, str_keys=True)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        raise Wrong(f"{where.rstrip('`') or 'The body'}: {what}.", where.rstrip("`") or None) from error
    chat = url == "/v1/chat/completions"
    if (body.prompt if chat else body.messages) is not None:
        wrong, right = ("prompt", "messages") if chat else ("messages", "prompt")
        raise Wrong(f"{url} takes {right}, not {wrong}.", wrong)
    _refuse_unheard(body, given, chat)
    return GenerateRequest(
        id=name,
        sampling=_sampling(body, url),
        messages=body.messages if chat else None,
        text=body.prompt if not chat and isinstance(body.prompt, str) else None,
        token_ids=body.prompt if not chat and isinstance(body.prompt, list) else None,
        priority=priority,
        constraint=_constraint(body.response_format),
        tools=_tools(body) if chat else None,
        left=left_open(given),
    )


def _refuse_unheard(body: Body, given: dict[str, Any], chat: bool) -> None:
    """What is a field of OpenAI's and would change nothing where it stands. Raises Wrong."""
    if not chat and (chats := sorted(_CHATS_ONLY & set(given))):
        raise Wrong(f"{chats[0]} is for chats.", chats[0])
    if body.logprobs is not None and isinstance(body.logprobs, bool) is not chat:
        raise Wrong(f"logprobs must be {'true or false' if chat else 'a whole number'} here.", "logprobs")
    if body.top_logprobs is not None and body.logprobs is not True:
        raise Wrong("top_logprobs needs logprobs to be true.", "top_logprobs")
    if body.tool_choice not in (None, "auto", "none") and not body.tools:
        raise Wrong("tool_choice asks for a call, but there are no tools.", "tool_choice")
    form = body.response_format
    if form is not None and form.type == "json_schema" and form.json_schema is None:
        raise Wrong("response_format.json_schema is missing.", "response_format.json_schema")


def _sampling(body: Body, url: Url) -> SamplingParams:
    wanted = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    said = {name: value for name in _PASSED if (value := getattr(body, name)) is not None}
    asked: int | None = (body.top_logprobs or 0) if body.logprobs is True else None
    if url == "/v1/completions" and body.logprobs is not None and not isinstance(body.logprobs, bool):
        asked = body.logprobs
    return SamplingParams(
        max_tokens=_DEFAULT_OUTPUT[url] if wanted is None else wanted,
        stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        logprobs=asked,
        **said,
    )


def _constraint(form: _Format | None) -> Constraint | None:
    if form is None or form.type == "text":
        return None
    named = form.json_schema if form.type == "json_schema" else None
    held = form.schema if named is None else named.schema
    strict = named is not None and named.strict is True
    return Constraint("json") if held is None else Constraint("schema", _encode(held).decode(), strict)


def _tools(body: Body) -> Tools | None:
    if not body.tools:
        return None
    choice = body.tool_choice or "auto"
    named = choice.function.name if isinstance(choice, _Choice) else None
    return Tools(
        functions=[tool.function for tool in body.tools],
        choice="required" if isinstance(choice, _Choice) else choice,
        name=named,
        parallel=body.parallel_tool_calls is not False,
    )


def answer(url: Url, model: str, number: int, whole: Whole, usage: EngineUsage) -> dict[str, Any]:
    """The body of a response that was not streamed."""
    chat = url == "/v1/chat/completions"
    said: dict[str, Any] = {"message": _message(whole, number)} if chat else {"text": whole.text}
    return {
        "id": f"{'chatcmpl' if chat else 'cmpl'}-batch-{number}",
        "object": "chat.completion" if chat else "text_completion",
        "model": model,
        "choices": [
            {
                "index": 0,
                **said,
                "logprobs": (_chat_logprobs if chat else _legacy_logprobs)(whole.logprobs) if whole.logprobs else None,
                "finish_reason": whole.last.finish_reason,
            }
        ],
        "usage": {
            "prompt_tokens": usage.prompt,
            "completion_tokens": usage.completion,
            "total_tokens": usage.prompt + usage.completion,
            "prompt_tokens_details": {"cached_tokens": usage.cached},
        },
    }


def _message(whole: Whole, number: int) -> dict[str, Any]:
    calls: dict[int, dict[str, Any]] = {}
    for piece in whole.calls:
        made = calls.setdefault(
            piece.index,
            {
                "id": f"call_{number}_{piece.index}",
                "type": "function",
                "function": {"name": piece.name, "arguments": ""},
            },
        )
        made["function"]["arguments"] += piece.arguments
    return {
        "role": "assistant",
        "content": None if calls and not whole.text else whole.text,
        **({"reasoning_content": whole.reasoning} if whole.reasoning else {}),
        **({"tool_calls": list(calls.values())} if calls else {}),
    }


def _chat_logprobs(found: list[TokenLogprob]) -> dict[str, Any]:
    def told(text: str, value: float | None) -> dict[str, Any]:
        return {"token": text, "logprob": _finite(value), "bytes": list(spelled_bytes(text))}

    return {
        "content": [
            {**told(one.token, one.logprob), "top_logprobs": [told(text, value) for text, value in one.top]}
            for one in found
        ]
    }


def _legacy_logprobs(found: list[TokenLogprob]) -> dict[str, Any]:
    characters = codecs.getincrementaldecoder("utf-8")("replace")  # some tokens are a part of one
    lengths = [len(characters.decode(spelled_bytes(one.token))) for one in found[:-1]]
    return {
        "text_offset": [0, *accumulate(lengths)],
        "tokens": [one.token for one in found],
        "token_logprobs": [_finite(one.logprob) for one in found],
        "top_logprobs": [{text: _finite(value) for text, value in one.top} for one in found],
    }


def _finite(value: float | None) -> float | None:
    return None if value is None else max(_IMPOSSIBLE, value)


def gather(parts: list[Delta], last: Delta) -> Whole:
    """All deltas of an answer as one."""
    every = [*parts, last]
    return Whole(
        text="".join(one.text for one in every),
        reasoning="".join(one.reasoning for one in every),
        calls=[call for one in every for call in one.tool_calls],
        logprobs=[found for one in every for found in one.logprobs or []],
        last=last,
    )
