"""Anthropic's answers as chat completions: whole, as events, and when they refuse.

Knows: message events, content blocks, stop reasons, usage with its cache classes and thinking, errors and when they may
be tried again. Does not know: HTTP, requests.
Source: Anthropic's API reference: messages, streaming, errors, rate limits.
"""

import msgspec

from gateway.call import Body, Chunk, Spoken
from gateway.errors import GatewayError, Overloaded, UpstreamRefused
from gateway.stream import StreamGarbage, parse
from gateway.transport.refusal import in_band_message, refused, retry_after
from gateway.upstream.anthropic_blocks import Block, is_plain
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
    "refusal": "content_filter",
}
# What OpenAI has no word for is told beside the nearest one.
_IN_A_CONTAINER = frozenset(("code_execution", "bash_code_execution", "text_editor_code_execution"))
_EXACT = frozenset({"end_turn", "tool_use", "max_tokens"})
_TIERS = {"standard": "default"}
# Reasons that a client of the same dialect is told from the finish alone, and what else may be told at the end.
_PLAIN_STOPS = _EXACT | {"stop_sequence", "refusal"}
_AT_THE_END = ("stop_details", "container", "context_management", "diagnostics")
_TOLD_LATER = frozenset({"text", "thinking", "tool_use"})  # their first words are what begins an answer
_NOT_BEGUN = frozenset({"overloaded_error", "rate_limit_error"})
_OVERLOADED = 529
_HOUR = "ephemeral_1h_input_tokens"
_CODES = {
    "authentication_error": "invalid_api_key",
    "not_found_error": "model_not_found",
    "rate_limit_error": "rate_limit_exceeded",
    "request_too_large": "request_too_large",
}
_encode = msgspec.json.Encoder().encode


class Events:
    """The events of one message. The role is told with the first content, so that an early refusal can fail over.

    `native`: somebody may read them as they came.
    """

    def __init__(self, model: str, created: float, *, native: bool = False) -> None:
        self.done = False
        self._telling = Telling(model, created)
        self._blocks: dict[object, Block] = {}
        self._usage: Body = {}
        self._native = native
        self._ran = 0
        self._written = 0
        self._raw: list[Body] = []
        self._content: list[Body] = []

    def feed(self, data: bytes) -> list[Chunk]:
        event = parse(data)
        chunks = self._read(event)
        return self._spoken(event, chunks) if self._native else chunks

    def _spoken(self, event: Body, chunks: list[Chunk]) -> list[Chunk]:
        """The chunks of an event with the event itself; the end is told by who tells it to the client."""
        kind = event.get("type")
        if kind == "message_stop":
            return chunks
        self._raw.append(event)
        begins = kind == "content_block_start" and self._blocks[event.get("index")].kind not in _TOLD_LATER
        if not chunks:
            if not (self._telling.begun or begins):
                return []
            chunks = [Chunk({**self._telling.head, "choices": []})]
        raw, self._raw = self._raw, []
        return [chunks[0]._replace(native=Spoken("messages", raw)), *chunks[1:]]

    def _read(self, event: Body) -> list[Chunk]:
        kind = event.get("type")
        if kind == "content_block_delta":
            return self._delta(event)
        if kind == "content_block_start":
            return self._start(event)
        if kind == "content_block_stop":
            return self._stop(event)
        if kind == "message_start":
            message = mapping(event.get("message"))
            self._telling.head["id"] = words(message.get("id"))
            self._count(message.get("usage"))
        elif kind == "message_delta":
            self._count(event.get("usage"))
            return self._finish(mapping(event.get("delta")), event)
        elif kind == "message_stop":
            return self._end()
        elif kind == "error":
            raise _failure(event)
        # Other kinds of events may come at any time and are to be passed over, says the reference.
        return []

    def end(self) -> list[Chunk]:
        raise StreamGarbage("closed the connection before its answer was whole")

    def _start(self, event: Body) -> list[Chunk]:
        content = mapping(event.get("content_block"))
        block = self._blocks[event.get("index")] = Block(content)
        if block.kind == "server_tool_use" and words(content.get("name")) in _IN_A_CONTAINER:
            self._ran += 1
        if block.kind == "text":
            block.text.append(words(content.get("text")))
            return self._telling.text(block.text[0])
        if block.kind == "tool_use":
            block.place, chunks = self._telling.call(words(content.get("id")), words(content.get("name")))
            given = mapping(content.get("input"))
            return [*chunks, *self._arguments(block, _encode(given).decode())] if given else chunks
        if block.kind == "thinking" and (text := words(content.get("thinking"))):
            block.text.append(text)
            return self._telling.more({"reasoning_content": text})
        return []

    def _delta(self, event: Body) -> list[Chunk]:
        delta = mapping(event.get("delta"))
        kind = delta.get("type")
        block = self._blocks.get(event.get("index"))
        if block is None:
            raise StreamGarbage("sent a piece of a block that never began")
        if kind == "text_delta":
            text = words(delta.get("text"))
            block.text.append(text)
            return self._telling.text(text)
        if kind == "input_json_delta":
            text = words(delta.get("partial_json"))
            if block.kind == "tool_use":
                return self._arguments(block, text)
            block.text.append(text)
        elif kind == "thinking_delta" and (text := words(delta.get("thinking"))):
            block.text.append(text)
            return self._telling.more({"reasoning_content": text})
        elif kind == "signature_delta":
            block.signature += words(delta.get("signature"))
        elif kind == "citations_delta":
            block.citations.append(mapping(delta.get("citation")))
        elif kind == "compaction_delta":
            block.more |= {name: value for name, value in delta.items() if name != "type"}
        return []

    def _arguments(self, block: Block, text: str) -> list[Chunk]:
        block.arguments.append(text)
        return self._telling.arguments(block.place, text)

    def _stop(self, event: Body) -> list[Chunk]:
        block = self._blocks.pop(event.get("index"), None)
        if block is None:
            raise StreamGarbage("ended a block that never began")
        if self._native:
            self._content.append(block.whole())
        if block.kind == "text":
            self._written += (length := len("".join(block.text)))
            cited = block.annotations(self._written - length, self._written)
            return self._telling.more({"annotations": cited}) if cited else []
        if block.kind == "tool_use" and not any(block.arguments):
            # A tool without parameters gets no input at all; clients parse what they got as JSON.
            return self._telling.arguments(block.place, "{}")
        if block.kind in ("thinking", "redacted_thinking"):
            return self._telling.more({"thinking_blocks": [block.whole()]})
        if block.kind != "tool_use":
            return self._telling.more({"native_blocks": [block.whole()]})
        return []

    def _finish(self, delta: Body, event: Body) -> list[Chunk]:
        reason = words(delta.get("stop_reason"))
        if not reason:
            return []
        extra: Body = {} if reason in _EXACT else {"native_finish_reason": reason}
        if delta.get("stop_sequence") is not None:
            extra["stop_reason"] = delta["stop_sequence"]
        whole: list[Chunk] = []
        if self._native:
            told = {name: value for name in _AT_THE_END if (value := delta.get(name, event.get(name))) is not None}
            if told or reason not in _PLAIN_STOPS:
                extra["native_stop"] = {"stop_reason": reason, "stop_sequence": delta.get("stop_sequence"), **told}
            if not is_plain(self._content):
                whole = self._telling.more({"native_content": self._content})
        return whole + self._telling.finish(_FINISH.get(reason, "stop"), extra=extra)

    def _end(self) -> list[Chunk]:
        if not self._telling.finished:
            raise StreamGarbage("ended its answer without a stop reason")
        self.done = True
        told, region = self._usage, words(self._usage.get("inference_geo"))
        tier = "fast" if told.get("speed") == "fast" else words(told.get("service_tier"))
        extra: Body = {"service_tier": _TIERS.get(tier, tier)} if tier else {}
        if region:
            extra["inference_geo"] = region
        if served := [row for row in objects(told.get("iterations")) if row.get("type") == "fallback_message"]:
            extra["native_model"] = served[-1].get("model")
        return self._telling.usage(usage_of(told, self._ran), extra)

    def _count(self, told: object) -> None:
        """Counts are cumulative: the last one told of each class holds."""
        self._usage |= {name: value for name, value in mapping(told).items() if value is not None}


def body_of(message: Body, model: str, created: float, *, native: bool = False) -> Chunk:
    """A message that was not streamed, as one chat completion. Raises StreamGarbage for anything else."""
    if message.get("type") == "error":
        raise _failure(message)
    if not isinstance(message.get("content"), list) or not message.get("stop_reason"):
        raise StreamGarbage(f"failed: {in_band_message(message)}")
    events = Events(model, created, native=native)
    chunks = events.feed(_encode({"type": "message_start", "message": {**message, "content": []}}))
    for index, block in enumerate(objects(message["content"])):
        chunks += events.feed(_encode({"type": "content_block_start", "index": index, "content_block": block}))
        chunks += events.feed(_encode({"type": "content_block_stop", "index": index}))
    chunks += events.feed(_encode({"type": "message_delta", "delta": message}))
    return whole([*chunks, *events.feed(b'{"type":"message_stop"}')])


def usage_of(told: Body, ran: int = 0) -> Body | None:
    """OpenAI's usage: the prompt includes what was read from and written to the cache, as it is billed apart there.

    `ran`: how often code ran in a container, whose time costs something unless the web is searched with it. None when a
    count is missing.
    """
    fresh, made = whole_number(told.get("input_tokens")), whole_number(told.get("output_tokens"))
    if fresh is None or made is None:
        return None
    read = whole_number(told.get("cache_read_input_tokens")) or 0
    written = whole_number(told.get("cache_creation_input_tokens")) or 0
    hour, written_to = 0, mapping(told.get("cache_creation"))
    for row in _beside(told.get("iterations")):
        fresh += whole_number(row.get("input_tokens")) or 0
        made += whole_number(row.get("output_tokens")) or 0
        read += whole_number(row.get("cache_read_input_tokens")) or 0
        written += whole_number(row.get("cache_creation_input_tokens")) or 0
        hour += whole_number(mapping(row.get("cache_creation")).get(_HOUR)) or 0
    if hour:
        told = {**told, "cache_creation": {**written_to, _HOUR: (whole_number(written_to.get(_HOUR)) or 0) + hour}}
    thought = whole_number(mapping(told.get("output_tokens_details")).get("thinking_tokens")) or 0
    prompt = fresh + read + written
    usage: Body = {
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": prompt + made,
        "prompt_tokens_details": {"cached_tokens": read, "cache_write_tokens": written, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": thought, "audio_tokens": 0},
    }
    for name in ("cache_creation", "server_tool_use", "iterations"):
        if told.get(name):
            usage[name] = told[name]
    web = any(mapping(told.get("server_tool_use")).values())
    if unknown := _of_other_models(objects(told.get("iterations"))) + (0 if web else ran):
        usage["unpriced_calls"] = unknown
    return usage


def _beside(iterations: object) -> list[Body]:
    """What is billed as well, and not among the totals: shortening the conversation, asking an adviser."""
    return [row for row in objects(iterations) if row.get("type") in ("compaction", "advisor_message")]


def _of_other_models(iterations: list[Body]) -> int:
    """How much was written by models at whose price it is not charged: advisers, and those that then declined."""
    served = [row.get("model") for row in iterations if row.get("type") == "fallback_message"]
    declined = (row for row in iterations if row.get("type") == "message" and row.get("model") and served)
    wrote = sum(bool(row.get("output_tokens")) and row["model"] not in served for row in declined)
    return wrote + sum(row.get("type") == "advisor_message" for row in iterations)


def refusal(name: str, answered: Answered) -> GatewayError:
    """A refusal with OpenAI's codes. 529 is the upstream's own overload: another candidate may be tried at once."""
    error = refused(name, answered.status, answered.headers, answered.raw)
    if answered.status == _OVERLOADED:
        wait = retry_after(answered.headers)
        return Overloaded(error.message, headers=(("retry-after", str(max(1, round(wait or 1)))),))
    if not isinstance(error, UpstreamRefused):
        return error
    detail = dict(error.upstream_error)
    detail["code"] = detail.get("code") or _CODES.get(words(detail.get("type")))
    if answered.status == 400 and "prompt is too long" in words(detail.get("message")):
        detail["code"] = "context_length_exceeded"
    return UpstreamRefused(answered.status, detail, retry_after=error.retry_after)


def _failure(event: Body) -> StreamGarbage:
    error = mapping(event.get("error"))
    message = f"failed: {in_band_message(event)}"
    return Declined(message) if error.get("type") in _NOT_BEGUN else StreamGarbage(message)
