"""An OpenAI request as the sequences a bundled engine is to generate.

Knows: which fields an engine honours, which of OpenAI's it cannot, which it has never heard of. Does not know: how
sequences are run or how answers look. Types and ranges were checked at the edge; what the engine checks itself is its
own to refuse.
"""

from collections.abc import Callable
from typing import cast

from msgspec import Struct
from msgspec.structs import replace

from engine.api import GenerateRequest, SamplingParams, left_open
from gateway import engine_forms
from gateway.call import PASSED, Body, Native, Operation
from gateway.errors import InvalidRequest
from gateway.providers import Sending

_HONOURED = """
model messages prompt input stream stream_options max_tokens max_completion_tokens temperature top_p top_k min_p n
best_of echo stop seed presence_penalty frequency_penalty logit_bias logprobs top_logprobs ignore_eos dimensions
encoding_format suffix repetition_penalty min_tokens stop_token_ids prompt_logprobs response_format tools tool_choice
parallel_tool_calls prediction reasoning_effort chat_template_kwargs structured_outputs guided_json guided_regex
guided_choice guided_grammar priority service_tier
"""
# Nothing in the answer depends on these: they are for the gateway, or they are defaults said out loud.
_WITHOUT_EFFECT = """
user metadata safety_identifier prompt_cache_key prompt_cache_retention prompt_cache_options functions function_call
modalities audio web_search_options store verbosity
"""
_HEARD = {"verbosity": ("medium",), "reasoning_effort": ("none", "medium")}
_TOLD = ("include_usage", "continuous_usage_stats")
_KNOWN = frozenset((_HONOURED + _WITHOUT_EFFECT).split())
_DEFAULT_OUTPUT: dict[Operation, int] = {"chat": 4_096, "completion": 16, "embedding": 0}
_LEGACY_LOGPROBS = 5
_MOST_SEQUENCES = 512


class Sequence(Struct, frozen=True):
    """One choice to be: `index` in the answer, `prompt` its place among the prompts."""

    index: int
    prompt: int
    request: GenerateRequest


def ignored_fields(body: Body) -> list[str]:
    """Names of the fields that an engine does not know and leaves out of account, in alphabetical order.

    How long an answer is and how hard it was thought over is the model's own affair: only whether it thinks can be set.
    """
    found = [name for name, value in body.items() if value is not None and name not in _KNOWN]
    found += [name for name, heard in _HEARD.items() if body.get(name) not in (None, *heard)]
    options = body.get("stream_options")
    if isinstance(options, dict):
        found += [
            f"stream_options.{name}" for name, value in cast("Body", options).items() if value and name not in _TOLD
        ]
    asked = body.get("chat_template_kwargs")
    if isinstance(asked, dict):
        found += [f"chat_template_kwargs.{name}" for name in cast("Body", asked) if name != "enable_thinking"]
    return sorted(found)


def refuse_unsupported(body: Body) -> None:
    """Raises InvalidRequest for a field OpenAI defines and no engine here can honour; its `param` is that field."""
    for name, why in _UNSUPPORTED.items():
        value = body.get(name)
        if value is not None and (problem := why(value)):
            raise InvalidRequest(problem, param=name, code="unsupported_parameter")
    messages = body.get("messages")
    for at, message in enumerate(cast("list[object]", messages) if isinstance(messages, list) else []):
        content = cast("Body", message).get("content") if isinstance(message, dict) else None
        for place, part in enumerate(cast("list[object]", content) if isinstance(content, list) else []):
            kind = cast("Body", part).get("type") if isinstance(part, dict) else None
            if kind not in ("text", "refusal"):
                path = f"messages[{at}].content[{place}]"
                raise InvalidRequest("This model reads text only.", param=path, code="unsupported_content")


def cannot(operation: Operation, body: Body, native: Native | None) -> str:  # noqa: ARG001 - every provider is asked alike
    """What of a request no engine here can do, as `gateway.providers` says."""
    if operation in PASSED:
        return operation
    try:
        refuse_unsupported(body)
    except InvalidRequest as problem:
        return problem.param or "this"
    return ""


def sequences(sending: Sending) -> list[Sequence]:
    """Every sequence of this call, by index: the choices of the first prompt, then those of the second.

    Raises InvalidRequest.
    """
    body = sending.body
    refuse_unsupported(body)
    copies = _whole(body.get("n"), 1)
    if _whole(body.get("best_of"), copies) != copies:
        raise InvalidRequest("best_of other than n is not supported by this model.", param="best_of")
    prompts = [body] if sending.operation == "chat" else _prompts(body.get("prompt"))
    if len(prompts) * copies > _MOST_SEQUENCES:
        raise InvalidRequest(f"At most {_MOST_SEQUENCES} answers can be asked for at once.", param="n")
    sampling = _sampling(body, sending.operation)
    found: list[Sequence] = []
    for place, prompt in enumerate(prompts):
        for copy in range(copies):
            index = place * copies + copy
            request = _request(sending, prompt, f"{sending.id}.{index}", _varied(sampling, copy))
            found.append(Sequence(index, place, request))
    return found


def _request(sending: Sending, prompt: object, name: str, sampling: SamplingParams) -> GenerateRequest:
    messages = text = token_ids = None
    if sending.operation == "chat":
        messages = cast("list[dict[str, object]]", sending.body.get("messages"))
    elif isinstance(prompt, str):
        text = prompt
    else:
        token_ids = cast("list[int]", prompt)
    body, chat = sending.body, sending.operation == "chat"
    return GenerateRequest(
        id=name,
        sampling=sampling,
        messages=messages,
        text=text,
        token_ids=token_ids,
        salt=sending.tenant,
        deadline_ms=sending.timeout * 1000,
        priority=min(engine_forms.priority(body), -1 if sending.background else 0),
        constraint=engine_forms.constraint(body),
        tools=engine_forms.tools(body) if chat else None,
        prediction=engine_forms.prediction(body),
        echo=not chat and body.get("echo") is True,
        thinking=engine_forms.thinking(body) if chat else None,
        left=left_open(body),
    )


def _prompts(prompt: object) -> list[object]:
    """A string, strings, token ids, lists of token ids: as a list of prompts. Absent means an empty text."""
    if prompt is None:
        return [""]
    if isinstance(prompt, list):
        items = cast("list[object]", prompt)
        return [items] if items and isinstance(items[0], int) else items
    return [prompt]


def _sampling(body: Body, operation: Operation) -> SamplingParams:
    stop = body.get("stop")
    bias = body.get("logit_bias")
    limit = body.get("max_completion_tokens")
    return SamplingParams(
        max_tokens=_whole(limit if limit is not None else body.get("max_tokens"), _DEFAULT_OUTPUT[operation]),
        temperature=_number(body.get("temperature"), 1.0),
        top_p=_number(body.get("top_p"), 1.0),
        top_k=_whole(body.get("top_k"), 0),
        min_p=_number(body.get("min_p"), 0.0),
        presence_penalty=_number(body.get("presence_penalty"), 0.0),
        frequency_penalty=_number(body.get("frequency_penalty"), 0.0),
        logit_bias=_bias(cast("Body", bias)) if isinstance(bias, dict) else {},
        seed=cast("int", body["seed"]) if isinstance(body.get("seed"), int) else None,
        stop=(stop,) if isinstance(stop, str) else tuple(cast("list[str]", stop or ())),
        logprobs=_logprobs(body, operation),
        ignore_eos=body.get("ignore_eos") is True,
        repetition_penalty=_number(body.get("repetition_penalty"), 1.0),
        min_tokens=_whole(body.get("min_tokens"), 0),
        stop_token_ids=_token_ids(body.get("stop_token_ids")),
        prompt_logprobs=_prompt_logprobs(body, operation),
    )


def _varied(sampling: SamplingParams, copy: int) -> SamplingParams:
    """The same seed would make every choice the same answer."""
    if copy == 0 or sampling.seed is None:
        return sampling
    return replace(sampling, seed=(sampling.seed + copy) & (2**63 - 1))


def _logprobs(body: Body, operation: Operation) -> int | None:
    asked = body.get("logprobs")
    if operation == "chat":
        return _whole(body.get("top_logprobs"), 0) if asked is True else None
    if asked is None or isinstance(asked, bool):
        return None
    if _whole(asked, 0) > _LEGACY_LOGPROBS:
        raise InvalidRequest(f"logprobs may be at most {_LEGACY_LOGPROBS} here.", param="logprobs")
    return _whole(asked, 0)


def _prompt_logprobs(body: Body, operation: Operation) -> int | None:
    """vLLM's own field, or what `echo` with `logprobs` means on the legacy endpoint."""
    asked = body.get("prompt_logprobs")
    if asked is not None and not isinstance(asked, bool):
        return _whole(asked, 0)
    echoed = operation == "completion" and body.get("echo") is True
    return _logprobs(body, operation) if echoed else None


def _token_ids(given: object) -> tuple[int, ...]:
    ids = cast("list[object]", given) if isinstance(given, list) else []
    whole = isinstance(given, list) and all(isinstance(one, int) and not isinstance(one, bool) for one in ids)
    if given is not None and not whole:
        raise InvalidRequest("stop_token_ids must be a list of token ids.", param="stop_token_ids")
    return tuple(cast("list[int]", ids))


def _bias(given: Body) -> dict[int, float]:
    try:
        return {int(token): _number(value, 0.0) for token, value in given.items()}
    except ValueError as error:
        raise InvalidRequest("The keys of logit_bias must be token ids.", param="logit_bias") from error


def _whole(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _number(value: object, default: float) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default


def _any(what: str) -> Callable[[object], str]:
    return lambda value: f"This model does not support {what}." if value else ""


def _modalities(value: object) -> str:
    others = [item for item in cast("list[object]", value) if item != "text"] if isinstance(value, list) else []
    return "This model answers in text only." if others else ""


def _choice(value: object) -> str:
    return "" if value in ("none", "auto") else "This model takes tools, not functions."


def _whole_only(value: object) -> str:
    return "" if isinstance(value, int) and not isinstance(value, bool) else "This must be a whole number."


def _number_only(value: object) -> str:
    return "" if isinstance(value, int | float) and not isinstance(value, bool) else "This must be a number."


def _flag_only(value: object) -> str:
    return "" if isinstance(value, bool) else "This must be true or false."


def _template_options(value: object) -> str:
    if not isinstance(value, dict):
        return "This must be an object."
    thinks = cast("Body", value).get("enable_thinking")
    return "" if thinks is None or isinstance(thinks, bool) else "enable_thinking must be true or false."


_UNSUPPORTED: dict[str, Callable[[object], str]] = {
    # OpenAI defines none of these, so nobody looked at their types: read as absent, one would be ignored in silence.
    "top_k": _whole_only,
    "min_tokens": _whole_only,
    "prompt_logprobs": _whole_only,
    "min_p": _number_only,
    "repetition_penalty": _number_only,
    "ignore_eos": _flag_only,
    "priority": _whole_only,
    "best_of": _whole_only,
    "chat_template_kwargs": _template_options,
    "functions": _any("functions; it takes tools"),
    "function_call": _choice,
    "modalities": _modalities,
    "audio": _any("audio"),
    "moderation": lambda _: "This model does not support moderation.",
    "web_search_options": lambda _: "This model does not support web search.",
    "suffix": _any("a suffix"),
}
