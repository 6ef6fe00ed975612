"""The response headers of every answer: what was reused, what it cost, where the time went.

Knows the names clients read (OpenAI's, RFC 9211, ours). Does not know: bodies, how anything was decided.
"""

from cache.types import Query
from gateway.journey import Answer, Journey
from gateway.steps import away, looked, waited
from policies.money import usd

Pairs = list[tuple[bytes, bytes]]

JSON = (b"content-type", b"application/json")
EVENTS = "content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\nx-accel-buffering: no\r\n"
_VERSION = (b"openai-version", b"2020-10-01")


def always(request_id: str) -> Pairs:
    """On every answer, errors included."""
    return [(b"x-request-id", request_id.encode()), _VERSION, (b"access-control-expose-headers", b"x-request-id")]


def of_answer(answer: Answer, *, now: float, at: float, remaining: int | None) -> str:
    """For an answer that has begun, as header lines each with its line end.

    `now` monotonic, `at` wall-clock seconds, `remaining` nano-USD of hard budget. One string and no list of pairs,
    since a dozen headers cost more to build, check and join than all the rest of an exact hit.
    """
    journey = answer.journey
    outcome, landing, hit = journey.outcome, answer.flight.landing, journey.hit
    took = (now - journey.call.received) * 1e3
    lines = (
        f"x-request-id: {journey.call.id}\r\nopenai-version: 2020-10-01\r\n"
        "access-control-expose-headers: x-request-id\r\n"
        f"openai-processing-ms: {int(took) or 1}\r\nx-nearhit-cache: {outcome.cache}\r\n"
        f"x-nearhit-provider: {printable(landing.provider)}\r\nx-nearhit-model: {printable(landing.model)}\r\n"
        f"x-nearhit-attempts: {len(landing.steps)}\r\ncache-status: {_cache_status(journey, at)}\r\n"
        f"server-timing: {_server_timing(journey, now)}\r\n"
    )
    if landing.unsure:
        lines += "x-nearhit-cascade: unsure\r\n"
    if landing.capped is not None:
        lines += f"x-nearhit-max-tokens: {landing.capped}\r\n"
        if landing.short:
            lines += f"x-nearhit-max-tokens-reason: budget {printable(landing.short)}\r\n"
    if (less := journey.degraded) is not None:
        names = f"from={printable(less.asked)}; to={printable(less.model)}"
        lines += f"x-nearhit-degraded: {printable(less.scope)}; {names}\r\n"
    if remaining is not None:
        lines += f"x-nearhit-budget-remaining-usd: {usd(remaining)}\r\n"
    if hit is not None:
        lines += f"age: {max(0, int(at - hit.entry.created))}\r\n"
        if hit.tier == "semantic":
            lines += (
                f"x-nearhit-cache-similarity: {hit.similarity:.4f}\r\n"
                f"x-nearhit-cache-confidence: {hit.confidence:.4f}\r\n"
            )
    return lines


def of_cost(answer: Answer) -> str:
    """What it cost, where that is known before the first byte leaves: whole replies and every hit."""
    outcome, landing = answer.journey.outcome, answer.flight.landing
    cost = landing.cost_nano if outcome.source == "upstream" else 0
    saved = landing.cost_nano if outcome.source == "shared" else outcome.saved_nano
    return (
        f"x-nearhit-cost-usd: {usd(cost)}\r\nx-nearhit-saved-usd: {usd(saved)}\r\n"
        f"x-nearhit-cost-status: {landing.cost_status}\r\n"
    )


def printable(text: str) -> str:
    """A name that came from outside, fit for a header's line."""
    return text if text.isprintable() else "".join(char if char.isprintable() else "?" for char in text)


def pairs(lines: str) -> Pairs:
    """Header lines as ASGI wants them."""
    split = (line.partition(": ") for line in lines.split("\r\n") if line)
    return [(name.encode(), value.encode()) for name, _, value in split]


def _cache_status(journey: Journey, at: float) -> str:
    """RFC 9211: one list member, `nearhit`."""
    hit, mark = journey.hit, journey.outcome.cache
    if hit is not None:
        return f"nearhit; hit; ttl={int(hit.entry.expires - at)}; detail={hit.tier}"
    if mark == "shared":
        return "nearhit; fwd=miss; collapsed"
    detail = _why(journey)
    return f"nearhit; fwd={_forwarded(journey)}{'; detail=' + detail if detail else ''}"


def _forwarded(journey: Journey) -> str:
    """RFC 9211's word: what is not to be kept may have been looked for all the same."""
    miss, asked = journey.miss, journey.call.directives
    if not isinstance(journey.query, Query) or (miss is not None and miss.reason == "store-down"):
        return "bypass"
    if miss is None or (miss.reason == "expired" and asked.max_age is not None):
        return "request"  # what is kept may do, but not for this client
    return "stale" if miss.reason == "expired" else "miss"


def _why(journey: Journey) -> str:
    """A word: why nothing kept was served."""
    if not isinstance(journey.query, Query):
        return journey.query.reason
    return journey.miss.reason if journey.miss is not None else ""


def _server_timing(journey: Journey, now: float) -> str:
    timings = journey.timings
    admitted, received = timings.admitted, timings.received
    told = f"auth;dur={(admitted - received) * 1e3:.1f}, "
    if timings.looked_up:
        told += f"cache;dur={looked(timings) * 1e3:.1f}, "
    own = now - received
    if timings.waited is not None:
        own -= waited(timings)
        told += f"wait;dur={waited(timings) * 1e3:.1f}, "
    if journey.hit is None and journey.flight is not None and (steps := journey.flight.landing.steps):
        upstream = away([(step.sent_at, step.ended_at or step.first_chunk_at or now) for step in steps if step.sent_at])
        own -= upstream + journey.flight.landing.paused
        told += f"upstream;dur={upstream * 1e3:.1f}, "
    return f"{told}overhead;dur={max(0.0, own) * 1e3:.1f}"
