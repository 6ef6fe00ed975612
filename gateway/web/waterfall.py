"""One request as a waterfall: its steps on its own clock, from the marks that its explanation keeps.

Knows: the shape of an explanation. Does not know: how steps nest (`gateway.steps`), how they are drawn.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from gateway.steps import Attempt, Timings, parts

_WORDS = {
    "admit": "key, limits and rates",
    "cache.find": "looking for a kept answer",
    "encoder.embed": "the question as a vector",
    "encoder.read": "the question read together with kept ones",
    "elsewhere.wait": "waiting for another worker's answer to the same request",
    "dispatch": "a fresh answer",
    "ledger.hold": "budget held, attempt journalled",
    "provider.first_chunk": "waiting for the first piece",
    "provider.stream": "the answer arriving",
    "engine.queue": "in the engine's queue",
    "engine.prefill": "the prompt computed",
    "engine.decode": "the answer computed and arriving",
}


class Bar(NamedTuple):
    """Milliseconds from the request's arrival; `where` is a provider, empty for the gateway's own steps."""

    name: str
    words: str
    where: str
    depth: int
    start: float
    end: float


def _span(marks: Mapping[str, float], name: str) -> tuple[float, float] | None:
    return (marks[f"{name}_start"], marks[f"{name}_end"]) if f"{name}_end" in marks else None


def waterfall(told: Mapping[str, Any], total_ms: float) -> list[Bar]:
    """Empty for explanations of versions that kept no marks."""
    marks = cast("dict[str, float]", told.get("marks") or {})
    if not marks:
        return []
    attempts = [_attempt(cast("dict[str, Any]", item), marks) for item in told.get("attempts") or ()]
    timings = Timings(
        received=0.0,
        admitted=marks.get("admitted", 0.0),
        looked_up=marks.get("looked_up", 0.0),
        embedded=_span(marks, "embed"),
        read=_span(marks, "read"),
        waited=_span(marks, "wait"),
        dispatched=attempts[0].started if attempts else 0.0,
    )
    ended = max(total_ms, marks.get("ended", 0.0))
    return [
        Bar(
            name=part.name,
            words=_WORDS.get(part.name, ""),
            where=f"{part.attempt.provider}/{part.attempt.model}" if part.attempt else "",
            depth=part.depth,
            start=max(0.0, part.start),
            end=min(max(part.start, part.end), ended),
        )
        for part in parts(timings, attempts, ended)
    ]


def _attempt(item: Mapping[str, Any], marks: Mapping[str, float]) -> Attempt:
    """The engine's own times belong to the one attempt that has a first chunk; they are in ms, as is all else here."""
    first = item.get("first_chunk_ms") or 0.0
    return Attempt(
        provider=str(item.get("provider", "")),
        model=str(item.get("model", "")),
        started=item.get("start_ms") or 0.0,
        sent=item.get("sent_ms") or 0.0,
        first_chunk=first,
        ended=item.get("end_ms") or 0.0,
        queue_ms=marks["queue"] * 1e3 if first and "queue" in marks else None,
        prefill_ms=marks["prefill"] * 1e3 if first and "prefill" in marks else None,
    )
