"""A chat completion told as Anthropic's Messages answer, whole or as events.

Knows: blocks and their order, stop reasons, usage in Anthropic's terms, errors in its shape. Does not know: requests
beyond what was wanted of the answer, HTTP.
"""

from typing import Any, Literal, cast

import msgspec

from gateway.call import Body
from gateway.dialects.chat import dicts, first_choice, text_of, thought_of
from gateway.dialects.messages_relay import Relay, events_of
from gateway.dialects.named import detail_of
from gateway.dialects.tool_names import ToolNames
from gateway.errors import GatewayError, InvalidRequest

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_STOPS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
# What Anthropic tells of every end; null where nothing is to be said.
_NO_MORE: Body = {"stop_sequence": None, "stop_details": None, "container": None}
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_OVERLOADED = 529  # Anthropic's status where others say 503
_PING = b'event: ping\ndata: {"type":"ping"}\n\n'
_STOPPED = b'event: content_block_stop\ndata: {"type":"content_block_stop","index":%d}\n\n'
_TEXT = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
    b'"delta":{"type":"text_delta","text":%b}}\n\n'
)


_NAMED = {
    "max_completion_tokens": "max_tokens",
    "reasoning_effort": "output_config.effort",
    "response_format": "output_config.format",
    "stop": "stop_sequences",
    "user": "metadata.user_id",
}
# Anthropic's words; its clients read them as the sign to shorten their conversation and go on.
_TOO_LONG = "prompt is too long"


def refusal(error: GatewayError, request_id: str) -> tuple[int, bytes]:
    """Status and body of a failure."""
    status = error.http_status
    return _OVERLOADED if status == 503 else status, _encode({**_error(error), "request_id": request_id})


def _error(error: GatewayError) -> Body:
    status = error.http_status
    kind = _TYPES.get(status) or ("invalid_request_error" if status < 500 else "api_error")
    detail = detail_of(error, _NAMED)
    extra: Body = {name: detail[name] for name in ("code", "param") if detail.get(name) is not None}
    if isinstance(error, InvalidRequest) and error.details is not None:
        extra["details"] = error.details
    message = detail["message"] or error.message
    if detail.get("code") == "context_length_exceeded" and _TOO_LONG not in message:
        message = f"{_TOO_LONG}: {message}"
    return {"type": "error", "error": {"type": kind, "message": message, **extra}}


class MessagesVoice:
    """Obeys gateway.dialects.Voice and Native. `thinks`: thoughts are told too; `stops`: the stop texts asked for."""

    speaks = "messages"

    def __init__(self, names: ToolNames, *, thinks: bool, stops: tuple[str, ...]) -> None:
        self._names = names
        self._thinks = thinks
        self._stops = stops
        self._begun = False
        self._id = ""
        self._model = ""
        self._usage: object = None
        self._finish: Body = {}
        self._refused = False
        self._signature = ""
        self._open: Literal["none", "text", "thinking", "call"] = "none"
        self._index = -1
        self._call: int | None = None
        self._calls: dict[int, int] = {}
        self._relay = Relay()
        self._whole = False

    def expect(self, usage: object) -> None:
        self._usage = usage

    def whole(self, body: Body) -> bytes:
        choice = first_choice(body)
        message = cast("Body", choice.get("message") or {})
        content = self._content(message)
        self._refused = bool(message.get("refusal"))
        self._calls = dict.fromkeys(range(len(dicts(message.get("tool_calls")))), 0)
        self._begin(body)
        return _encode(
            {**self._message(), "content": content, **self._stop(choice), "usage": _usage(body.get("usage"))}
        )

    def natively(self, events: list[Body], data: Body) -> bytes:
        if not self._begun:
            self._begin(data)
        return b"".join([_event(str(event.get("type")), event) for event in self._relay.told(events, self._message())])

    def _content(self, message: Body) -> list[Body]:
        if content := dicts(message.get("native_content")):
            return content
        thought = thought_of(message)
        if self._thinks and (blocks := dicts(message.get("thinking_blocks"))):
            content += map(_unsealed, blocks)
        elif thought and self._thinks:
            content.append({"type": "thinking", "thinking": thought, "signature": ""})
        text = text_of(message.get("content")) + text_of(message.get("refusal"))
        if text:
            content.append({"type": "text", "text": text})
        for index, call in enumerate(dicts(message.get("tool_calls"))):
            block, told = self._tool(index, call)
            content.append({**block, "input": _arguments(told)})
        return content

    def events(self, data: Body) -> bytes:
        if data.get("usage") is not None:
            self._usage = data["usage"]
        if self._relay.used:
            return b""
        told = b"" if self._begun else self._start(data)
        choice = first_choice(data)
        delta = choice.get("delta")
        if isinstance(delta, dict):
            told += self._delta(cast("Body", delta))
        if choice.get("finish_reason") is not None:
            self._finish = choice
            told += self._close()
        return told

    def end(self) -> bytes:
        told = (b"" if self._begun else self._start({})) + self._close()
        usage = _usage(self._usage)
        delta = self._relay.ended({"cost": usage["cost"]} if "cost" in usage else {})
        if delta is None:
            stop = self._stop(self._finish)
            # What became of the context stands beside what changes of the message.
            beside: Body = {name: stop.pop(name) for name in ("context_management",) if name in stop}
            delta = {"type": "message_delta", "delta": stop, "usage": usage, **beside}
        return told + _event("message_delta", delta) + _event("message_stop", {"type": "message_stop"})

    def failed(self, error: GatewayError) -> bytes:
        return _event("error", _error(error))

    def _begin(self, data: Body) -> None:
        self._begun = True
        self._model = str(data.get("model") or "")
        self._id = str(data.get("id") or "").removeprefix("chatcmpl-")

    def _message(self) -> Body:
        return {"id": f"msg_{self._id}", "type": "message", "role": "assistant", "model": self._model}

    def _start(self, data: Body) -> bytes:
        """Its input tokens are 0 where they are known only at the end: `message_delta` then tells them.

        What is told along the way counts the whole prompt; which part of it was cached is known at the end as well.
        """
        self._begin(data)
        usage = {**_usage(self._usage), "output_tokens": 0}
        message: Body = {**self._message(), "content": [], "stop_reason": None, **_NO_MORE, "usage": usage}
        return _event("message_start", {"type": "message_start", "message": message}) + _PING

    def _stop(self, choice: Body) -> Body:
        if isinstance(choice.get("native_stop"), dict):
            return {**_NO_MORE, **cast("Body", choice["native_stop"])}
        reason = _STOPS.get(str(choice.get("finish_reason")), "end_turn")
        matched = choice.get("stop_reason")  # some servers tell which text it was
        if reason == "end_turn" and isinstance(matched, str) and matched in self._stops:
            return {"stop_reason": "stop_sequence", **_NO_MORE, "stop_sequence": matched}
        if reason == "end_turn" and self._calls:
            reason = "tool_use"  # OpenAI says `stop` where the call was forced
        if reason == "end_turn" and self._refused:
            reason = "refusal"
        return {"stop_reason": reason, **_NO_MORE}

    def _delta(self, delta: Body) -> bytes:
        if blocks := dicts(delta.get("native_content")):
            return self._replayed(blocks)
        if self._whole:
            return b""
        told = b""
        if self._thinks and (thought := thought_of(delta)):
            told += self._opened("thinking", _THOUGHT)
            told += self._piece({"type": "thinking_delta", "thinking": thought})
        if self._thinks:
            for block in dicts(delta.get("thinking_blocks")):
                told += self._thought(block)
        if text := text_of(delta.get("content")) or text_of(delta.get("refusal")):
            self._refused = self._refused or bool(delta.get("refusal"))
            if self._open != "text":
                told += self._opened("text", {"type": "text", "text": ""})
            told += _TEXT % (self._index, _encode(text))
        for position, call in enumerate(dicts(delta.get("tool_calls"))):
            told += self._called(position, call)
        return told

    def _replayed(self, blocks: list[Body]) -> bytes:
        """All of an answer in its own blocks; what chat says of it besides is the same once more."""
        if self._open != "none" or self._index >= 0:  # told already, as it came
            return b""
        self._whole = True
        return b"".join(
            [
                _event(str(event["type"]), event)
                for index, block in enumerate(blocks)
                for event in events_of(block, index)
            ]
        )

    def _thought(self, block: Body) -> bytes:
        """A thought as its maker signed it: the client must give it back unchanged."""
        if block.get("type") == "redacted_thinking":
            told = self._close() + self._opened("text", block)
            self._open = "none"
            return told + _STOPPED % self._index
        told = b"" if self._open == "thinking" else self._opened("thinking", _THOUGHT)
        self._signature = str(_unsealed(block).get("signature") or "")
        return told + self._close()

    def _called(self, position: int, call: Body) -> bytes:
        """A call is opened by its first piece; a piece that comes after the next call began still names its own."""
        index = call.get("index")
        place = index if isinstance(index, int) else position
        block, arguments = self._tool(place, call)
        told = b""
        if place not in self._calls:
            told = self._close() + self._opened("call", {**block, "input": {}})
            self._calls[place] = self._index
        if arguments:
            told += self._piece({"type": "input_json_delta", "partial_json": arguments}, self._calls[place])
        return told

    def _tool(self, place: int, call: Body) -> tuple[Body, str]:
        function = cast("Body", call.get("function") or {})
        _, name = self._names.outer(str(function.get("name") or ""))
        block: Body = {"type": "tool_use", "id": call.get("id") or f"toolu_{self._id}_{place}", "name": name}
        return block, text_of(function.get("arguments"))

    def _opened(self, kind: Literal["text", "thinking", "call"], block: Body) -> bytes:
        """The start of a block of this kind, unless it is open; what was open before is closed."""
        if self._open == kind and kind != "call":
            return b""
        told = self._close()
        self._open = kind
        self._index += 1
        start: Body = {"type": "content_block_start", "index": self._index, "content_block": block}
        return told + _event("content_block_start", start)

    def _piece(self, delta: Body, index: int | None = None) -> bytes:
        place = self._index if index is None else index
        return _event("content_block_delta", {"type": "content_block_delta", "index": place, "delta": delta})

    def _close(self) -> bytes:
        if self._open == "none":
            return b""
        told = b""
        if self._open == "thinking":
            told = self._piece({"type": "signature_delta", "signature": self._signature})
            self._signature = ""
        self._open = "none"
        return told + _STOPPED % self._index


def _unsealed(block: Body) -> Body:
    """What OpenAI sealed has an id, and nobody who reads this dialect can open it: no signature says that."""
    return {**_THOUGHT, "thinking": block.get("thinking") or ""} if "id" in block else block


_THOUGHT: Body = {"type": "thinking", "thinking": "", "signature": ""}


def _event(name: str, body: Body) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode(body))


def _arguments(text: str) -> object:
    """A model may write what is no JSON object; Anthropic's shape wants one, and nothing that was written is lost."""
    try:
        found: Any = _decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        return {"invalid_json": text}
    return found if isinstance(found, dict) else {"invalid_json": text}  # pyright: ignore[reportUnknownVariableType] - JSON


def _usage(usage: object) -> Body:
    """Anthropic counts input without what was read from, or written to, the provider's prompt cache."""
    given = cast("Body", usage) if isinstance(usage, dict) else {}
    details = cast("Body", given.get("prompt_tokens_details") or {})
    read, written = _count(details.get("cached_tokens")), _count(details.get("cache_write_tokens"))
    told: dict[str, int] = {
        "input_tokens": max(0, _count(given.get("prompt_tokens")) - read - written),
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": read,
        "output_tokens": _count(given.get("completion_tokens")),
    }
    for row in dicts(given.get("iterations")):  # what shortening a conversation or an adviser took stands there alone
        if row.get("type") in ("compaction", "advisor_message"):
            told = {name: max(0, count - _count(row.get(name))) for name, count in told.items()}
    return {**told, **{name: given[name] for name in _AS_TOLD if given.get(name) is not None}}


_AS_TOLD = ("cache_creation", "server_tool_use", "iterations", "cost")


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0
