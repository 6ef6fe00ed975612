"""Refuse what can never be served, before it costs anything.

Knows: ranges of sampling parameters, the form of a prompt, the context window. Does not know: models, queues.
Every refusal is `InvalidRequest` naming the field; nothing that passes here may hurt other requests in a batch.
"""

import msgspec

from engine.api import GenerateRequest, InvalidRequest, SamplingParams

MAX_STOPS = 16
MAX_STOP_CHARS = 256
MAX_LOGIT_BIAS = 1024
MAX_LOGPROBS = 20
MAX_STOP_IDS = 64
MAX_PROMPT_CHARS = 4_000_000
TOO_LONG = "context_length_exceeded"
SHORTEN = "Please reduce the length of the prompt."


def window_told(context: int) -> str:
    """OpenAI's words: LiteLLM, and agents that shorten a conversation by themselves, read them and not the code."""
    return f"This model's maximum context length is {context} tokens."


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # which no NaN is; a whole number may be beyond any float
        raise InvalidRequest(f"{name} must be between {low:g} and {high:g}.", param=name)


def check_sampling(sampling: SamplingParams, vocabulary: int) -> None:
    """Type and range of every sampling field. Raises InvalidRequest."""
    _check_types(sampling)
    least = 1 if sampling.prompt_logprobs is None else 0  # nothing generated is an answer where the prompt is asked for
    if sampling.max_tokens < least:
        raise InvalidRequest(f"max_tokens must be at least {least}.", param="max_tokens")
    if not 0 <= sampling.min_tokens <= sampling.max_tokens:
        raise InvalidRequest("min_tokens must be between 0 and max_tokens.", param="min_tokens")
    _within("temperature", sampling.temperature, 0.0, 100.0)
    _within("top_p", sampling.top_p, 0.0, 1.0)
    _within("min_p", sampling.min_p, 0.0, 1.0)
    _within("top_k", sampling.top_k, -1, 2**31)  # -1 is 0: how vLLM's clients say that there is none
    _within("presence_penalty", sampling.presence_penalty, -2.0, 2.0)
    _within("frequency_penalty", sampling.frequency_penalty, -2.0, 2.0)
    _within("repetition_penalty", sampling.repetition_penalty, 0.01, 100.0)
    for name, asked in (("logprobs", sampling.logprobs), ("prompt_logprobs", sampling.prompt_logprobs)):
        if asked is not None:
            _within(name, asked, 0, MAX_LOGPROBS)
    if len(sampling.stop_token_ids) > MAX_STOP_IDS:
        raise InvalidRequest(f"At most {MAX_STOP_IDS} stop tokens are allowed.", param="stop_token_ids")
    if any(not 0 <= token < vocabulary for token in sampling.stop_token_ids):
        raise InvalidRequest(f"stop_token_ids must be between 0 and {vocabulary - 1}.", param="stop_token_ids")
    if len(sampling.logit_bias) > MAX_LOGIT_BIAS:
        raise InvalidRequest(f"logit_bias may name at most {MAX_LOGIT_BIAS} tokens.", param="logit_bias")
    for token, bias in sampling.logit_bias.items():
        if not 0 <= token < vocabulary:
            raise InvalidRequest(
                f"logit_bias names token {token}, but the vocabulary has {vocabulary}.", param="logit_bias"
            )
        _within("logit_bias", bias, -100.0, 100.0)
    _check_stops(sampling.stop)


def _check_types(sampling: SamplingParams) -> None:
    """What no frame can carry would cost its sender's connection, and with it everybody's answers on that.

    Type checkers do not see it: `True` is an `int` to them, and not to a frame.
    """
    try:
        msgspec.convert(msgspec.to_builtins(sampling), SamplingParams)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at ")
        name = where.rpartition("$.")[2].partition("[")[0].rstrip("`")
        raise InvalidRequest(f"{name}: {what}.", param=name or None) from error


def check_tokens(tokens: list[int], vocabulary: int) -> None:
    """Every id names a token of the model. Raises InvalidRequest."""
    if any(type(token) is not int for token in tokens):
        raise InvalidRequest("Token ids must be whole numbers.", param="prompt")
    if tokens and not 0 <= min(tokens) <= max(tokens) < vocabulary:
        beyond = next(token for token in tokens if not 0 <= token < vocabulary)
        message = f"Token id {beyond} is out of vocabulary: ids must be between 0 and {vocabulary - 1}."
        raise InvalidRequest(message, param="prompt")


def _check_stops(stops: tuple[str, ...]) -> None:
    if len(stops) > MAX_STOPS:
        raise InvalidRequest(f"At most {MAX_STOPS} stop strings are allowed.", param="stop")
    if any(not stop or len(stop) > MAX_STOP_CHARS for stop in stops):
        raise InvalidRequest(f"A stop string must have 1 to {MAX_STOP_CHARS} characters.", param="stop")


def check_prompt(request: GenerateRequest) -> None:
    """Exactly one kind of prompt, not empty, of a bounded size. Raises InvalidRequest."""
    given = [kind for kind in ("messages", "text", "token_ids") if getattr(request, kind) is not None]
    if len(given) != 1:
        raise InvalidRequest("Give exactly one of messages, text and token_ids.", param="messages")
    if request.messages is not None and not request.messages:
        raise InvalidRequest("messages must not be empty.", param="messages")
    if request.text is not None and len(request.text) > MAX_PROMPT_CHARS:
        raise InvalidRequest(f"The prompt has more than {MAX_PROMPT_CHARS} characters.", param="prompt")


def fit(request: GenerateRequest, prompt_tokens: int, context: int) -> SamplingParams:
    """The request's sampling with `max_tokens` clamped to the window.

    At least one token must fit after the prompt. Raises InvalidRequest(code=TOO_LONG).
    """
    room = context - prompt_tokens
    if room < min(1, request.sampling.max_tokens):
        message = f"{window_told(context)} However, the prompt alone has {prompt_tokens}. {SHORTEN}"
        raise InvalidRequest(
            message, param="messages" if request.messages else "prompt", code="context_length_exceeded"
        )
    if prompt_tokens < 1:
        raise InvalidRequest("The prompt has no tokens.", param="messages" if request.messages else "prompt")
    sampling = request.sampling
    most = min(sampling.max_tokens, room)
    return msgspec.structs.replace(sampling, max_tokens=most, min_tokens=min(sampling.min_tokens, most))


def check_window(prompt_tokens: int, sampling: SamplingParams, context: int) -> None:
    """What the window, or all blocks together, can never hold is refused: it would wait for ever."""
    total = prompt_tokens + sampling.max_tokens
    if total > context:
        message = f"{window_told(context)} However, prompt and max_tokens together need {total}."
        raise InvalidRequest(message, param="max_tokens", code=TOO_LONG)
