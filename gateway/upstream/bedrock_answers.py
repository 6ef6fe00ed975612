"""Amazon Bedrock's Converse answers as chat completions: whole, as events, and when they refuse.

Knows: its events, content blocks, stop reasons, usage with its cache classes, exceptions and when they may be tried
again. Does not know: HTTP, frames, requests.
Source: AWS's API reference of the Bedrock runtime (2023-09-30): Converse, ConverseStream.
"""

from typing import cast

import msgspec

from gateway.call import Body, Chunk
from gateway.errors import GatewayError, Overloaded, UpstreamRefused
from gateway.stream import StreamGarbage, parse
from gateway.transport.refusal import in_band_message, refused, retry_after
from gateway.upstream.fields import mapping, objects, whole_number, words
from gateway.upstream.native import Answered
from gateway.upstream.reader import Declined
from gateway.upstream.telling import Telling, whole

_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "guardrail_intervened": "content_filter",
    "content_filtered": "content_filter",
}
_EXACT = frozenset({"end_turn", "tool_use", "max_tokens"})
_SERVERS_OWN = "server_tool_use"  # a call that the service answers itself, in the same message
_NOT_BEGUN = frozenset({"throttlingException", "serviceUnavailableException"})
_CODES = {
    "UnrecognizedClientException": "invalid_api_key",
    "InvalidSignatureException": "invalid_api_key",
    "ExpiredTokenException": "invalid_api_key",
    "ResourceNotFoundException": "model_not_found",
    "ThrottlingException": "rate_limit_exceeded",
    "ModelNotReadyException": "rate_limit_exceeded",
}
_TOO_LONG = ("Input is too long", "prompt is too long", "too many input tokens", "maximum context length")
_encode = msgspec.json.Encoder().encode


class Events:
    """The events of one answer. `attempt` is its id: Converse tells none."""

    def __init__(self, model: str, created: float, attempt: str) -> None:
        self.done = False
        self._telling = Telling(model, created)
        self._telling.head["id"] = f"chatcmpl-{attempt}"
        self._blocks: dict[object, _Block] = {}

    def feed(self, data: bytes) -> list[Chunk]:
        told = parse(data)
        body = mapping(told.get("body"))
        if "exception" in told:
            raise _failure(words(told["exception"]), body)
        kind = told.get("event")
        if kind == "contentBlockDelta":
            return self._delta(body)
        if kind == "contentBlockStart":
            return self._start(body)
        if kind == "contentBlockStop":
            return self._stop(body)
        if kind == "messageStop":
            reason = words(body.get("stopReason"))
            extra: Body = {} if reason in _EXACT else {"native_finish_reason": reason}
            return self._telling.finish(_FINISH.get(reason, "stop"), extra=extra) if reason else []
        if kind == "metadata":
            return self._end(body)
        return []

    def end(self) -> list[Chunk]:
        raise StreamGarbage("closed the connection before its answer was whole")

    def _block(self, body: Body) -> "_Block":
        return self._blocks.setdefault(body.get("contentBlockIndex"), _Block())

    def _start(self, body: Body) -> list[Chunk]:
        block, start = self._block(body), mapping(body.get("start"))
        used = mapping(start.get("toolUse"))
        if "toolResult" in start or used.get("type") == _SERVERS_OWN:
            block.own = start
            return []
        if not used:
            return []
        block.is_call = True
        block.place, chunks = self._telling.call(words(used.get("toolUseId")), words(used.get("name")))
        return chunks

    def _delta(self, body: Body) -> list[Chunk]:
        delta = mapping(body.get("delta"))
        if "text" in delta:
            return self._telling.text(words(delta["text"]))
        block = self._block(body)
        if "toolResult" in delta:
            block.results += objects(delta["toolResult"])
            return []
        if "toolUse" in delta:
            text = words(mapping(delta["toolUse"]).get("input"))
            if block.own is not None:
                block.text.append(text)
                return []
            block.written = block.written or bool(text)
            return self._telling.arguments(block.place, text)
        thought = mapping(delta.get("reasoningContent"))
        block.signature += words(thought.get("signature"))
        block.redacted += words(thought.get("redactedContent"))
        if text := words(thought.get("text")):
            block.text.append(text)
            return self._telling.more({"reasoning_content": text})
        return []

    def _stop(self, body: Body) -> list[Chunk]:
        block = self._blocks.pop(body.get("contentBlockIndex"), _Block())
        if block.own is not None:
            return self._telling.more({"native_blocks": [_native(block.own, "".join(block.text), block.results)]})
        if block.is_call and not block.written:
            return self._telling.arguments(block.place, "{}")
        if block.redacted:
            return self._telling.more({"thinking_blocks": [{"type": "redacted_thinking", "data": block.redacted}]})
        if block.text:
            thought = {"type": "thinking", "thinking": "".join(block.text), "signature": block.signature}
            return self._telling.more({"thinking_blocks": [thought]})
        return []

    def _end(self, body: Body) -> list[Chunk]:
        if not self._telling.finished:
            raise StreamGarbage("ended its answer without a stop reason")
        self.done = True
        return self._telling.usage(usage_of(mapping(body.get("usage"))))


class _Block:
    """A content block that is still coming. `own`: how it began, where it is of a tool that the service runs itself."""

    def __init__(self) -> None:
        self.is_call = False
        self.place = 0
        self.written = False
        self.text: list[str] = []
        self.signature = ""
        self.redacted = ""
        self.own: Body | None = None
        self.results: list[Body] = []


def _native(start: Body, text: str, results: list[Body]) -> Body:
    """A block of a tool of the service's own as it would stand in an answer that is not streamed."""
    if "toolResult" in start:
        result = mapping(start["toolResult"])
        return {"toolResult": {**result, "content": [*objects(result.get("content")), *results]}}
    try:
        given: object = parse(text.encode() or b"{}")
    except StreamGarbage:
        given = text
    return {"toolUse": {**mapping(start["toolUse"]), "input": given}}


def body_of(answer: Body, events: Events) -> Chunk:
    """An answer that was not streamed, as one chat completion. Raises StreamGarbage for anything else."""
    content = mapping(mapping(answer.get("output")).get("message")).get("content")
    if not isinstance(content, list) or not answer.get("stopReason"):
        raise StreamGarbage(f"failed: {in_band_message(answer)}")
    chunks: list[Chunk] = []
    for index, block in enumerate(objects(cast("object", content))):
        for kind, told in _pieces(block):
            chunks += events.feed(_encode({"event": kind, "body": {**told, "contentBlockIndex": index}}))
    chunks += events.feed(_encode({"event": "messageStop", "body": answer}))
    return whole([*chunks, *events.feed(_encode({"event": "metadata", "body": answer}))])


def _pieces(block: Body) -> list[tuple[str, Body]]:
    """A whole block as the events it would have been streamed as."""
    stop: tuple[str, Body] = ("contentBlockStop", {})
    if isinstance(block.get("toolUse"), dict):
        used = mapping(block["toolUse"])
        given = _encode(mapping(used.get("input"))).decode()
        start: Body = {"start": {"toolUse": used}}
        return [("contentBlockStart", start), ("contentBlockDelta", {"delta": {"toolUse": {"input": given}}}), stop]
    if isinstance(block.get("toolResult"), dict):
        return [("contentBlockStart", {"start": {"toolResult": block["toolResult"]}}), stop]
    if isinstance(block.get("reasoningContent"), dict):
        thought = mapping(block["reasoningContent"])
        flat = {**mapping(thought.get("reasoningText")), **thought}
        return [("contentBlockDelta", {"delta": {"reasoningContent": flat}}), stop]
    if isinstance(block.get("citationsContent"), dict):
        said = objects(mapping(block["citationsContent"]).get("content"))
        pieces: list[tuple[str, Body]] = [("contentBlockDelta", {"delta": {"text": one.get("text")}}) for one in said]
        return [*pieces, stop]
    return [("contentBlockDelta", {"delta": block}), stop]


def usage_of(told: Body) -> Body | None:
    """OpenAI's usage: the prompt includes what was read from and written to the cache. None when a count is missing."""
    fresh, made = whole_number(told.get("inputTokens")), whole_number(told.get("outputTokens"))
    if fresh is None or made is None:
        return None
    read = whole_number(told.get("cacheReadInputTokens")) or 0
    written = whole_number(told.get("cacheWriteInputTokens")) or 0
    hours = [row for row in objects(told.get("cacheDetails")) if row.get("ttl") == "1h"]
    hour = sum(whole_number(row.get("inputTokens")) or 0 for row in hours)
    prompt = fresh + read + written
    return {
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": prompt + made,
        "prompt_tokens_details": {"cached_tokens": read, "cache_write_tokens": written, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
        "cache_creation": {"ephemeral_5m_input_tokens": max(0, written - hour), "ephemeral_1h_input_tokens": hour},
    }


def refusal(name: str, answered: Answered) -> GatewayError:
    """A refusal with OpenAI's codes. 503 is the upstream's own overload: another candidate may be tried at once."""
    error = refused(name, answered.status, answered.headers, answered.raw)
    if answered.status == 503:
        wait = retry_after(answered.headers)
        return Overloaded(error.message, headers=(("retry-after", str(max(1, round(wait or 1)))),))
    if not isinstance(error, UpstreamRefused):
        return error
    kind = answered.headers.get("x-amzn-errortype", "").partition(":")[0]
    message = error.message
    if not message or message.startswith(name):
        message = _capitalized(answered.raw) or message
    code = _CODES.get(kind)
    if answered.status == 400 and any(words_of in message for words_of in _TOO_LONG):
        code = "context_length_exceeded"
    detail: Body = {"message": message, "type": kind or "invalid_request_error", "param": None, "code": code}
    return UpstreamRefused(answered.status, detail, retry_after=error.retry_after)


def _capitalized(raw: bytes) -> str:
    """Some of AWS's front ends write `Message`."""
    try:
        return words(parse(raw).get("Message"))
    except StreamGarbage:
        return ""


def _failure(kind: str, body: Body) -> StreamGarbage:
    message = f"failed: {kind}: {in_band_message(body)}"
    return Declined(message) if kind in _NOT_BEGUN else StreamGarbage(message)
