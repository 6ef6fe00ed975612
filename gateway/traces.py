"""What happened inside one request, told afterwards: marks taken on the way, spans built from them once it has ended.

Knows: the marks, the span tree and its names (the names of the functions they time), W3C trace context, the `gen_ai.*`
attribute names of the semantic conventions 1.37. Does not know: sampling, exporters, metrics, the clock. Prompts and
answers never enter a span, unless the operator switched `telemetry.capture_content` on; then the prompt does.
"""

import hashlib
import random
import re
from collections.abc import Callable
from typing import Literal

import msgspec
from msgspec import Struct

from gateway.call import Call, Outcome
from gateway.steps import Attempt, Part, Timings, parts
from policies.money import usd

Reason = Literal["sampled", "error", "slow"]
Attribute = str | bool | int | float | list[str]
OPERATION_NAMES = {
    "chat": "chat",
    "completion": "text_completion",
    "embedding": "embeddings",
    "moderation": "moderation",
    "image": "image_generation",
    "image_edit": "image_edit",
    "image_variation": "image_variation",
    "speech": "speech",
    "transcription": "transcription",
    "translation": "translation",
}
MOST_CONTENT = 32_768
_RANDOM_BITS = 56
_INT64 = 1 << 63  # what a span's integers can hold; a field that no service knows may be any number
_WELL = ("ok", "complete", "begun")

_TRACEPARENT = re.compile(r"^(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?\Z")
_REQUEST_FIELDS = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "seed": "gen_ai.request.seed",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "n": "gen_ai.request.choice.count",
}
_encode = msgspec.json.Encoder().encode


class Span(Struct, frozen=True, kw_only=True):
    """One timed step. Seconds since the epoch; ids in lower-case hex; `parent` is None where nobody called."""

    name: str
    id: str
    parent: str | None
    start: float
    end: float
    attributes: dict[str, Attribute]
    error: str | None = None


class Trace(Struct, frozen=True, kw_only=True):
    """A kept request: the root span first, then its parts in the order in which they began."""

    id: str
    request_id: str
    reason: Reason
    spans: tuple[Span, ...]


class Parent(Struct, frozen=True):
    """The caller's trace context. `sampled` is the caller's own decision."""

    trace_id: str
    span_id: str
    sampled: bool


def parent_of(traceparent: str | None) -> Parent | None:
    """The caller's context, None when there is none or it is malformed (W3C Trace Context: then start afresh)."""
    if traceparent is None or (found := _TRACEPARENT.match(traceparent)) is None:
        return None
    return Parent(found[1], found[2], bool(int(found[3], 16) & 1))


def identity_of(call: Call, share: float) -> tuple[str, bool]:
    """The trace's id and whether it is kept: the caller's where it says so, every part of a trace decides alike.

    Else the id is the request's own: a UUIDv7 ends in 62 random bits, enough to draw `share` of all requests by.
    """
    told = call.directives.traceparent
    if told is not None and (parent := parent_of(told)) is not None:
        return parent.trace_id, parent.sampled
    trace_id = call.id.replace("-", "")
    return trace_id, int(trace_id[-14:], 16) < int(share * (1 << _RANDOM_BITS))


def attempt_span_id(attempt: str) -> str:
    """16 hex digits that are known before the span is built: upstreams are told them as the parent of their own."""
    return hashlib.sha256(attempt.encode()).hexdigest()[:16]


def traceparent_for(call: Call, attempt: str, share: float) -> str:
    """What an upstream is sent (W3C Trace Context), so that its own spans hang under this attempt."""
    trace_id, sampled = identity_of(call, share)
    return f"00-{trace_id}-{attempt_span_id(attempt)}-{'01' if sampled else '00'}"


def draw_span_id() -> str:
    """16 hex digits, never all zero. Span ids name, they do not protect: no secure randomness needed."""
    return f"{random.getrandbits(64) or 1:016x}"


def build_trace(
    outcome: Outcome,
    timings: Timings,
    reason: Reason,
    *,
    content: bool = False,
    span_id: Callable[[], str] = draw_span_id,
) -> Trace:
    """The span tree of one request: admit, cache.find -> encoder.embed, encoder.read, dispatch -> each attempt's."""
    call = outcome.call
    parent = parent_of(call.directives.traceparent)
    begun = timings.received or call.received
    ended = max(timings.ended, begun + outcome.total_ms / 1_000)

    def wall(mark: float) -> float:
        """Monotonic to wall clock, kept inside the request: a step never sticks out of its parent."""
        return call.at + min(max(mark, begun), ended) - call.received

    root = Span(
        name="request",
        id=span_id(),
        parent=parent.span_id if parent else None,
        start=wall(begun),
        end=wall(ended),
        attributes=_root_attributes(outcome, content=content),
        error=outcome.error,
    )
    spans, nesting = [root], [root.id]
    for part in parts(timings, _attempts(outcome, timings), ended):
        named = part.attempt.id if part.attempt and part.name == "provider.first_chunk" else ""
        own = attempt_span_id(named) if named else span_id()
        nesting[part.depth :] = [own]
        spans.append(
            Span(
                name=part.name,
                id=own,
                parent=nesting[part.depth - 1],
                start=wall(part.start),
                end=wall(part.end),
                attributes=_part_attributes(part, outcome, timings),
                error=_part_error(part, outcome),
            )
        )
    return Trace(
        id=parent.trace_id if parent else call.id.replace("-", ""),
        request_id=call.id,
        reason=reason,
        spans=tuple(spans),
    )


def _attempts(outcome: Outcome, timings: Timings) -> list[Attempt]:
    """The recorded attempts; a request that only waited for another one's answer has none, so its wait stands in."""
    if timings.attempts:
        return timings.attempts
    return [
        Attempt(
            provider=outcome.provider,
            model=outcome.model,
            started=timings.dispatched,
            first_chunk=timings.first_chunk,
            result="ok" if timings.first_chunk else outcome.error or "ok",
        )
    ]


def _part_attributes(part: Part, outcome: Outcome, timings: Timings) -> dict[str, Attribute]:
    if part.name == "cache.find":
        return _cache_attributes(outcome)
    if part.name == "dispatch":
        last = timings.attempts[-1].provider if timings.attempts else ""
        return _upstream_attributes(outcome, outcome.provider or last)
    if part.attempt is not None:
        return {"gen_ai.provider.name": part.attempt.provider, "gen_ai.request.model": part.attempt.model}
    return {}


def _part_error(part: Part, outcome: Outcome) -> str | None:
    """Of an attempt its last step carries what went wrong."""
    if part.name == "dispatch":
        return outcome.error
    attempt = part.attempt
    if attempt is None or attempt.result in _WELL:
        return None
    last = "provider.first_chunk" if not attempt.first_chunk else "provider.stream"
    return attempt.result if part.name in (last, "engine.decode") else None


def _root_attributes(outcome: Outcome, *, content: bool) -> dict[str, Attribute]:
    call = outcome.call
    attributes: dict[str, Attribute] = {
        "gen_ai.operation.name": OPERATION_NAMES[call.operation],
        "gen_ai.request.model": call.model,
        "http.response.status_code": outcome.status,
        "nearhit.request.id": call.id,
        "nearhit.key.id": call.principal.key_id,
        "nearhit.team": call.principal.team,
        "nearhit.project": call.principal.project,
        "nearhit.source": outcome.source,
        "nearhit.cost.usd": usd(outcome.cost_nano),
        "nearhit.cost.status": outcome.cost_status,
        "nearhit.cost.saved_usd": usd(outcome.saved_nano),
        "nearhit.attempts": outcome.attempts,
        "nearhit.client_gone": outcome.client_gone,
        **_cache_attributes(outcome),
        **_pace_attributes(outcome),
    }
    if outcome.error:
        attributes["error.type"] = outcome.error
    if content:
        asked = call.body.get("messages") or call.body.get("prompt") or call.body.get("input")
        attributes["gen_ai.input.messages"] = _encode(asked).decode()[:MOST_CONTENT]
    return attributes


def _pace_attributes(outcome: Outcome) -> dict[str, Attribute]:
    """In seconds, as the client saw it; of streamed answers."""
    if outcome.ttft_ms is None or not outcome.call.stream:
        return {}
    found: dict[str, Attribute] = {"nearhit.time_to_first_token": outcome.ttft_ms / 1_000}
    if outcome.usage.completion > 1:
        rest = max(outcome.total_ms - outcome.ttft_ms, 0.0) / (outcome.usage.completion - 1)
        found["nearhit.time_per_output_token"] = rest / 1_000
    return found


def _cache_attributes(outcome: Outcome) -> dict[str, Attribute]:
    attributes: dict[str, Attribute] = {"nearhit.cache.status": outcome.cache}
    if outcome.source in ("exact", "semantic"):
        attributes["nearhit.cache.tier"] = outcome.source
    if isinstance(reason := outcome.explain.get("reason"), str):
        attributes["nearhit.cache.reason"] = reason
    if outcome.similarity is not None:
        attributes["nearhit.cache.similarity"] = outcome.similarity
    if outcome.confidence is not None:
        attributes["nearhit.cache.confidence"] = outcome.confidence
    return attributes


def _upstream_attributes(outcome: Outcome, provider: str) -> dict[str, Attribute]:
    """What was asked of a provider, the last one where none answered, and what it answered.

    Token counts only where tokens were really bought.
    """
    call = outcome.call
    attributes: dict[str, Attribute] = {
        "gen_ai.operation.name": OPERATION_NAMES[call.operation],
        "gen_ai.provider.name": provider,
        "gen_ai.request.model": call.model,
        "gen_ai.request.stream": call.stream,
    }
    for field, name in _REQUEST_FIELDS.items():
        value = call.body.get(field)
        if isinstance(value, int | float) and not isinstance(value, bool) and -_INT64 <= value < _INT64:
            attributes[name] = value
    if outcome.model:
        attributes["gen_ai.response.model"] = outcome.model
    if outcome.finish:
        attributes["gen_ai.response.finish_reasons"] = [outcome.finish]
    if outcome.ttft_ms is not None and call.stream:
        attributes["gen_ai.response.time_to_first_chunk"] = outcome.ttft_ms / 1_000
    if outcome.source == "upstream" and outcome.usage.total:
        attributes.update(_usage_attributes(outcome))
    if outcome.error:
        attributes["error.type"] = outcome.error
    return attributes


def _usage_attributes(outcome: Outcome) -> dict[str, Attribute]:
    """Input tokens include the cached ones, as the conventions say."""
    usage = outcome.usage
    attributes: dict[str, Attribute] = {
        "gen_ai.usage.input_tokens": usage.prompt,
        "gen_ai.usage.output_tokens": usage.completion,
    }
    if usage.cached:
        attributes["gen_ai.usage.cache_read.input_tokens"] = usage.cached
    if usage.cache_write:
        attributes["gen_ai.usage.cache_write.input_tokens"] = usage.cache_write
    if usage.reasoning:
        attributes["gen_ai.usage.reasoning.output_tokens"] = usage.reasoning
    return attributes
