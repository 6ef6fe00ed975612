"""The response headers of every answer: what was reused, what it cost, where the time went.

Knows the names clients read (OpenAI's, RFC 9211, ours). Does not know: bodies, how anything was decided.
"""

from cache.types import Hit, Query
from gateway.journey import Answer, Journey
from policies.money import usd

Pairs = list[tuple[bytes, bytes]]

JSON = (b"content-type", b"application/json")
EVENTS: Pairs = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_VERSION = (b"openai-version", b"2020-10-01")


def always(request_id: str) -> Pairs:
    """On every answer, errors included."""
    return [(b"x-request-id", request_id.encode()), _VERSION, (b"access-control-expose-headers", b"x-request-id")]


def of_answer(answer: Answer, *, now: float, at: float, remaining: int | None) -> Pairs:
    """For an answer that has begun. `now` monotonic, `at` wall-clock seconds, `remaining` nano-USD of hard budget."""
    journey = answer.journey
    outcome, landing = journey.outcome, answer.flight.landing
    pairs = always(journey.call.id)
    pairs.append((b"openai-processing-ms", b"%d" % max(1, int((now - journey.call.received) * 1e3))))
    pairs.append((b"x-nearhit-cache", outcome.cache.encode()))
    pairs.append((b"x-nearhit-provider", landing.provider.encode()))
    pairs.append((b"x-nearhit-model", landing.model.encode()))
    pairs.append((b"x-nearhit-attempts", b"%d" % len(landing.steps)))
    pairs.append((b"cache-status", _cache_status(journey, at)))
    pairs.append((b"server-timing", _server_timing(journey, now)))
    if landing.capped is not None:
        pairs.append((b"x-nearhit-max-tokens", b"%d" % landing.capped))
    if remaining is not None:
        pairs.append((b"x-nearhit-budget-remaining-usd", usd(remaining).encode()))
    if journey.hit is not None:
        pairs += _of_hit(journey.hit, at)
    return pairs


def of_cost(answer: Answer) -> Pairs:
    """What it cost, where that is known before the first byte leaves: whole replies and every hit."""
    outcome, landing = answer.journey.outcome, answer.flight.landing
    cost = landing.cost_nano if outcome.source == "upstream" else 0
    saved = landing.cost_nano if outcome.source == "shared" else outcome.saved_nano
    return [
        (b"x-nearhit-cost-usd", usd(cost).encode()),
        (b"x-nearhit-saved-usd", usd(saved).encode()),
        (b"x-nearhit-cost-status", landing.cost_status.encode()),
    ]


def _of_hit(hit: Hit, at: float) -> Pairs:
    pairs = [(b"age", b"%d" % max(0, int(at - hit.entry.created)))]
    if hit.tier == "semantic":
        pairs.append((b"x-nearhit-cache-similarity", b"%.4f" % hit.similarity))
        pairs.append((b"x-nearhit-cache-confidence", b"%.4f" % hit.confidence))
    return pairs


def _cache_status(journey: Journey, at: float) -> bytes:
    """RFC 9211: one list member, `nearhit`."""
    hit, mark = journey.hit, journey.outcome.cache
    if hit is not None:
        return b"nearhit; hit; ttl=%d; detail=%b" % (int(hit.entry.expires - at), hit.tier.encode())
    if mark == "shared":
        return b"nearhit; fwd=miss; collapsed"
    forward = {"miss": b"miss", "refresh": b"request"}.get(mark, b"bypass")
    detail = _why(journey)
    return b"nearhit; fwd=%b%b" % (forward, b"; detail=%b" % detail if detail else b"")


def _why(journey: Journey) -> bytes:
    """A word: why nothing kept was served."""
    if not isinstance(journey.query, Query):
        return journey.query.reason.encode()
    return journey.miss.reason.encode() if journey.miss is not None else b""


def _server_timing(journey: Journey, now: float) -> bytes:
    timings = journey.timings
    spent = [(b"auth", timings.admitted - timings.received)]
    upstream = 0.0
    if timings.looked_up:
        spent.append((b"cache", timings.looked_up - timings.admitted))
    if journey.hit is None and journey.flight is not None and journey.flight.landing.steps:
        step = journey.flight.landing.steps[-1]
        upstream = (step.ended_at or step.first_chunk_at or now) - step.sent_at
        spent.append((b"upstream", upstream))
    spent.append((b"overhead", max(0.0, now - timings.received - upstream)))
    return b", ".join(b"%b;dur=%.1f" % (name, seconds * 1e3) for name, seconds in spent)
