"""OpenAI's Responses as chat completions: whole, as events.

Knows: items and their events, what is told of thoughts (sealed, and summed up), usage, how a response ends. Does not
know: HTTP, requests; refusals are those of all of OpenAI's paths.
Source: OpenAI's API reference, responses and streaming; the types of its Python client, 3.3.1.
"""

import re

import msgspec

from gateway.call import Body, Chunk, Spoken
from gateway.stream import StreamGarbage, parse
from gateway.transport.refusal import in_band_message
from gateway.upstream.fields import mapping, objects, whole_number, words
from gateway.upstream.reader import Declined
from gateway.upstream.telling import Telling, whole

_CUT = {"max_output_tokens": "length", "content_filter": "content_filter"}
_NOT_BEGUN = frozenset({"rate_limit_exceeded", "server_is_overloaded", "slow_down", "insufficient_quota"})
_OF_THE_REQUEST = re.compile(r"context_length_exceeded|invalid_.*|.*image.*")
_ENDS = frozenset({"response.completed", "response.incomplete"})
_NO_END = frozenset({"failed", "cancelled", "queued", "in_progress"})
_HELD = frozenset({"response.created", "response.in_progress", "response.queued"})
_THOUGHTS = frozenset({"response.reasoning_summary_text.delta", "response.reasoning_text.delta"})
# Items that are all there once the response is; whatever else it ends with waits for the client (a shell's call, say).
_DONE_THERE = frozenset(
    (
        *("message", "reasoning", "compaction", "web_search_call", "file_search_call", "code_interpreter_call"),
        *("image_generation_call", "mcp_call", "mcp_list_tools"),
    )
)
# Items that chat has words for, and what is plain about them.
_PLAIN_PART = {"type", "text", "annotations", "logprobs"}
_INPUT = "input"  # the one argument of a tool that takes free text, as chat knows it
_encode = msgspec.json.Encoder().encode


class Events:
    """The events of one response. `native`: somebody may read them as they came."""

    def __init__(self, model: str, created: float, *, native: bool = False) -> None:
        self.done = False
        self._telling = Telling(model, created)
        self._calls: dict[object, tuple[int, bool]] = {}  # by output index: its place, and whether it was told
        self._native = native
        self._alive = False
        self._raw: list[Body] = []

    def feed(self, data: bytes) -> list[Chunk]:
        event = parse(data)
        if event.get("type") == "keepalive":  # nowhere documented, and clients break at it: more will come, it says
            sign = Chunk({**self._telling.head, "choices": []}, native=Spoken("responses", []))
            return [sign] if self._alive else []
        chunks = self._read(event)
        if self._native:
            chunks = self._spoken(event, chunks)
        self._alive = self._alive or bool(chunks)
        return chunks

    def end(self) -> list[Chunk]:
        raise StreamGarbage("closed the connection before its answer was whole")

    def _spoken(self, event: Body, chunks: list[Chunk]) -> list[Chunk]:
        """The chunks of an event with the event itself. A response that has only begun may still be refused."""
        self._raw.append(event)
        if not chunks:
            if event.get("type") in _HELD:
                return []
            chunks = [Chunk({**self._telling.head, "choices": []})]
        raw, self._raw = self._raw, []
        return [chunks[0]._replace(native=Spoken("responses", raw)), *chunks[1:]]

    def _read(self, event: Body) -> list[Chunk]:
        kind = words(event.get("type"))
        if kind.endswith(".delta"):
            return self._delta(kind, event)
        item = mapping(event.get("item"))
        if kind == "response.output_item.added":
            return self._begun(item, event)
        if kind == "response.output_item.done":
            return self._item(item, event)
        if kind in _ENDS:
            return self._end(mapping(event.get("response")))
        if kind in ("response.failed", "error"):
            raise _failure(mapping(event.get("response")) or event)
        self._telling.head["id"] = words(mapping(event.get("response")).get("id")) or self._telling.head["id"]
        return []

    def _delta(self, kind: str, event: Body) -> list[Chunk]:
        text = words(event.get("delta"))
        if kind == "response.output_text.delta":
            return self._telling.text(text)
        if kind == "response.function_call_arguments.delta":
            return self._arguments(event)
        if kind == "response.refusal.delta":
            return self._telling.more({"refusal": text})
        return self._telling.more({"reasoning_content": text}) if kind in _THOUGHTS and text else []

    def _begun(self, item: Body, event: Body) -> list[Chunk]:
        if item.get("type") not in ("function_call", "custom_tool_call"):
            return []
        place, chunks = self._telling.call(words(item.get("call_id")), words(item.get("name")))
        self._calls[event.get("output_index")] = (place, False)
        return chunks

    def _arguments(self, event: Body) -> list[Chunk]:
        index = event.get("output_index")
        if index not in self._calls:
            raise StreamGarbage("sent a piece of a call that never began")
        place, _ = self._calls[index]
        self._calls[index] = (place, True)
        return self._telling.arguments(place, words(event.get("delta")))

    def _item(self, item: Body, event: Body) -> list[Chunk]:
        """An item is whole: what its events have not told of it."""
        kind = item.get("type")
        if kind in ("function_call", "custom_tool_call"):
            index = event.get("output_index")
            chunks = [] if index in self._calls else self._begun(item, event)
            place, told = self._calls[index]
            if told:
                return chunks
            text = words(item.get("arguments")) or "{}"
            if kind == "custom_tool_call":
                text = _encode({_INPUT: words(item.get("input"))}).decode()
            return [*chunks, *self._telling.arguments(place, text)]
        if kind == "message":
            cited = [_cited(note) for part in objects(item.get("content")) for note in objects(part.get("annotations"))]
            return self._telling.more({"annotations": cited}) if cited else []
        if kind == "reasoning":
            sealed = item.get("encrypted_content")
            thought = "\n\n".join(words(part.get("text")) for part in objects(item.get("summary")))
            block = {"type": "thinking", "id": item.get("id"), "thinking": thought, "signature": sealed}
            return self._telling.more({"thinking_blocks": [block]}) if sealed else []
        return self._telling.more({"native_blocks": [item]})

    def _end(self, response: Body) -> list[Chunk]:
        reason = words(mapping(response.get("incomplete_details")).get("reason"))
        finish = "tool_calls" if self._telling.calls() else "stop"
        extra: Body = {}
        if response.get("status") == "incomplete":
            finish = _CUT.get(reason, "length")
            extra = {} if reason in _CUT else {"native_finish_reason": reason}
        output = objects(response.get("output"))
        if finish == "stop" and (waits := {words(item.get("type")) for item in output} - _DONE_THERE):
            extra = {"native_finish_reason": min(waits)}
        chunks: list[Chunk] = []
        if self._native and not _is_plain(output):
            chunks = self._telling.more({"native_output": output})
        chunks += self._telling.finish(finish, extra=extra)
        self.done = True
        tier = words(response.get("service_tier"))
        usage = usage_of(mapping(response.get("usage")))
        if usage is not None:
            usage |= _ran(response, output)
        return chunks + self._telling.usage(usage, {"service_tier": tier} if tier else None)


def body_of(response: Body, model: str, created: float, *, native: bool = False) -> Chunk:
    """A response that was not streamed, as one chat completion. Raises StreamGarbage for anything else."""
    if response.get("error") or response.get("status") in _NO_END or not isinstance(response.get("output"), list):
        raise _failure(response)
    events = Events(model, created, native=native)
    chunks = events.feed(_encode({"type": "response.created", "response": {"id": response.get("id")}}))
    for index, item in enumerate(objects(response.get("output"))):
        for kind, told in _pieces(item):
            chunks += events.feed(_encode({"type": f"response.{kind}", "output_index": index, **told}))
        chunks += events.feed(_encode({"type": "response.output_item.done", "output_index": index, "item": item}))
    return whole([*chunks, *events.feed(_encode({"type": "response.completed", "response": response}))])


def _pieces(item: Body) -> list[tuple[str, Body]]:
    """What of a whole item its own end does not tell."""
    found: list[tuple[str, Body]] = []
    if item.get("type") == "message":
        for part in objects(item.get("content")):
            if part.get("type") == "refusal":
                found.append(("refusal.delta", {"delta": part.get("refusal")}))
            else:
                found.append(("output_text.delta", {"delta": part.get("text")}))
    if item.get("type") == "reasoning":
        for name in ("summary", "content"):
            found += [("reasoning_text.delta", {"delta": part.get("text")}) for part in objects(item.get(name))]
    return found


def _cited(note: Body) -> Body:
    """A citation as chat tells it: its fields under its kind."""
    kind = words(note.get("type"))
    return {"type": kind, kind: {name: value for name, value in note.items() if name != "type"}}


def _is_plain(output: list[Body]) -> bool:
    """Whether a chat answer holds all of it: one text at most, and then functions that were called."""
    kinds = [words(item.get("type")) for item in output]
    if any(kind not in ("message", "function_call") for kind in kinds) or "message" in kinds[1:]:
        return False
    for item in output:
        parts = objects(item.get("content"))
        if item.get("namespace") or item.get("phase") or len(parts) > 1:
            return False
        if any(part.keys() - _PLAIN_PART or part.get("annotations") or part.get("logprobs") for part in parts):
            return False
    return True


def usage_of(told: Body) -> Body | None:
    """Chat's usage; None where a count is missing."""
    prompt, made = whole_number(told.get("input_tokens")), whole_number(told.get("output_tokens"))
    if prompt is None or made is None:
        return None
    before, after = mapping(told.get("input_tokens_details")), mapping(told.get("output_tokens_details"))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": prompt + made,
        "prompt_tokens_details": {
            "cached_tokens": whole_number(before.get("cached_tokens")) or 0,
            "cache_write_tokens": whole_number(before.get("cache_write_tokens")) or 0,
            "audio_tokens": 0,
        },
        "completion_tokens_details": {
            "reasoning_tokens": whole_number(after.get("reasoning_tokens")) or 0,
            "audio_tokens": 0,
        },
    }


def _ran(response: Body, output: list[Body]) -> Body:
    """What was done for a fee each, beside the tokens. Opening a page is no search.

    Containers are billed by their time and pictures at another model's price; where a model that does not reason
    searches with the older tool, that costs more than its price says.
    """
    kinds = [words(item.get("type")) for item in output]
    web = whole_number(mapping(mapping(response.get("tool_usage")).get("web_search")).get("num_requests"))
    if web is None:
        actions = [mapping(item.get("action")) for item in output if item.get("type") == "web_search_call"]
        web = sum(action.get("type", "search") == "search" for action in actions)
    counts = {"web_search_requests": web, "file_search_requests": kinds.count("file_search_call")}
    found: Body = {"server_tool_use": ran} if (ran := {name: count for name, count in counts.items() if count}) else {}
    older = any(words(tool.get("type")).startswith("web_search_preview") for tool in objects(response.get("tools")))
    dearer = web if older and not mapping(response.get("reasoning")).get("effort") else 0
    if unknown := kinds.count("image_generation_call") + kinds.count("code_interpreter_call") + dearer:
        found["unpriced_calls"] = unknown
    return found


def _failure(told: Body) -> StreamGarbage:
    """Here a stream has begun before the request is looked at: what is wrong with it is told as an event."""
    message = f"failed: {in_band_message(told)}"
    error = mapping(told.get("error")) or told
    code = words(error.get("code"))
    if code in _NOT_BEGUN:
        return Declined(message)
    if error.get("type") == "invalid_request_error" or _OF_THE_REQUEST.fullmatch(code):
        return Declined(message, code or "invalid_value")
    return StreamGarbage(message)
