"""The steps of one request, from the marks taken on its way: for its spans, and for the waterfall on its page.

Knows: the marks and how steps nest; names are those of the functions they time. Does not know: spans, pages, clocks.
"""

from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Struct


class Attempt(Struct, kw_only=True):
    """One try at one provider, in monotonic seconds; `result` is `ok` or an error's class name. 0.0: not reached.

    `started`: the budget is asked. `sent`: it was held and journalled, the request goes out. `queue_ms`, `prefill_ms`:
    how a bundled engine spent its time until the first token. `id` is the attempt's, empty where there was none.
    """

    provider: str
    model: str
    started: float
    sent: float = 0.0
    first_chunk: float = 0.0
    ended: float = 0.0
    result: str = "ok"
    id: str = ""
    queue_ms: float | None = None
    prefill_ms: float | None = None


class Timings(Struct, kw_only=True):
    """When each step of a request was done, in monotonic seconds; 0.0 means that the step was not reached.

    `admitted`: rate limits passed. `looked_up`: the cache has answered. `embedded`: from when to when the encoder was
    asked for a vector, `read`: to read two texts together. `waited`: for another worker's answer. `dispatched`: handed
    to a provider. `first_chunk`: the first chunk of the answer in hand. `ended`: the last chunk given to the client.
    """

    received: float
    admitted: float = 0.0
    looked_up: float = 0.0
    embedded: tuple[float, float] | None = None
    read: tuple[float, float] | None = None
    waited: tuple[float, float] | None = None
    dispatched: float = 0.0
    first_chunk: float = 0.0
    ended: float = 0.0
    attempts: list[Attempt] = []


def waited(timings: Timings) -> float:
    """Seconds in which another worker's answer was waited for: neither a look-up's time nor the gateway's own."""
    return 0.0 if timings.waited is None else timings.waited[1] - timings.waited[0]


def away(spans: list[tuple[float, float]]) -> float:
    """Seconds in which at least one attempt was out, from when to when each; those beside each other count once."""
    if len(spans) == 1:  # as nearly always
        return max(0.0, spans[0][1] - spans[0][0])
    seconds = until = 0.0
    for sent, ended in sorted(spans):
        seconds += max(0.0, ended - max(sent, until))
        until = max(until, ended)
    return seconds


def looked(timings: Timings) -> float:
    """Seconds that it took to look for a kept answer, without a wait that lay between two looks."""
    took = timings.looked_up - (timings.admitted or timings.received)
    between = timings.waited is not None and timings.waited[1] <= timings.looked_up
    return max(took - waited(timings) if between else took, 0.0)


class Part(NamedTuple):
    """One step, in the marks' own unit. `depth` 1 lies directly in the request; `attempt`: the one it belongs to."""

    name: str
    depth: int
    start: float
    end: float
    attempt: Attempt | None = None


def parts(timings: Timings, attempts: list[Attempt], ended: float) -> Iterator[Part]:
    """In the order in which they began, each after the one it lies in. `attempts`: in place of `timings.attempts`."""
    begun = timings.received
    if timings.admitted:
        yield Part("admit", 1, begun, timings.admitted)
    if timings.looked_up:
        yield Part("cache.find", 1, timings.admitted or begun, timings.looked_up)
        if timings.embedded is not None:
            yield Part("encoder.embed", 2, *timings.embedded)
        if timings.read is not None:
            yield Part("encoder.read", 2, *timings.read)
    if timings.waited is not None:
        yield Part("elsewhere.wait", 2 if timings.waited[1] <= timings.looked_up else 1, *timings.waited)
        begun = timings.waited[1]
    if timings.dispatched:
        yield Part("dispatch", 1, max(timings.looked_up or timings.admitted, begun), ended)
        for attempt in attempts:
            yield from _attempt(attempt, ended)


def _attempt(attempt: Attempt, ended: float) -> Iterator[Part]:
    sent = attempt.sent or attempt.started
    first = attempt.first_chunk or attempt.ended or sent
    if attempt.sent:
        yield Part("ledger.hold", 2, attempt.started, attempt.sent, attempt)
    yield Part("provider.first_chunk", 2, sent, first, attempt)
    if attempt.queue_ms is not None and attempt.prefill_ms is not None:
        queued = sent + attempt.queue_ms / 1e3
        yield Part("engine.queue", 3, sent, queued, attempt)
        yield Part("engine.prefill", 3, queued, queued + attempt.prefill_ms / 1e3, attempt)
    if attempt.first_chunk:
        name = "provider.stream" if attempt.queue_ms is None else "engine.decode"
        yield Part(name, 2, attempt.first_chunk, attempt.ended or ended, attempt)
