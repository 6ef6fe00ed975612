"""Reply headers as other gateways write them, for dashboards and clients that read those: cost, cache, attempts.

Knows: their names and words. Does not know: when they are wanted (`server.mirror_headers`), our own headers.
"""

from collections.abc import Sequence

from gateway.journey import Answer
from policies.money import usd

_HIT = ("hit-exact", "hit-semantic", "shared")


def mirrored(answer: Answer, peers: Sequence[str], *, ended: bool) -> str:
    """Header lines for each of `peers`. `ended`: the cost is known."""
    return "".join(_LINES[peer](answer, ended) for peer in peers)


def _litellm(answer: Answer, ended: bool) -> str:
    journey, landing = answer.journey, answer.flight.landing
    lines = (
        f"x-litellm-call-id: {journey.call.id}\r\n"
        f"x-litellm-attempted-retries: {max(0, len(landing.steps) - 1)}\r\n"
        f"x-litellm-attempted-fallbacks: {len({step.provider for step in landing.steps} - {landing.provider})}\r\n"
    )
    if journey.hit is not None:  # it says so of hits alone, and by nothing else
        lines += f"x-litellm-cache-key: {journey.hit.entry.id}\r\n"
    return lines + (f"x-litellm-response-cost: {_cost(answer)}\r\n" if ended else "")


def _helicone(answer: Answer, ended: bool) -> str:  # noqa: ARG001 - it tells no cost
    hit = "HIT" if answer.journey.outcome.cache in _HIT else "MISS"
    return f"helicone-id: {answer.journey.call.id}\r\nhelicone-cache: {hit}\r\n"


def _portkey(answer: Answer, ended: bool) -> str:  # noqa: ARG001 - it tells no cost
    mark = answer.journey.outcome.cache
    semantic = answer.journey.call.directives.tier == "semantic"
    words = {
        "hit-exact": "HIT",
        "hit-semantic": "SEMANTIC HIT",
        "shared": "HIT",
        "miss": "SEMANTIC MISS" if semantic else "MISS",
        "refresh": "REFRESH",
    }
    return (
        f"x-portkey-cache-status: {words.get(mark, 'DISABLED')}\r\n"
        f"x-portkey-trace-id: {answer.journey.call.id}\r\n"
        f"x-portkey-retry-attempt-count: {max(0, len(answer.flight.landing.steps) - 1)}\r\n"
    )


def _cloudflare(answer: Answer, ended: bool) -> str:  # noqa: ARG001 - it tells no cost
    hit = "HIT" if answer.journey.outcome.cache in _HIT else "MISS"
    return f"cf-aig-cache-status: {hit}\r\ncf-aig-log-id: {answer.journey.call.id}\r\n"


def _cost(answer: Answer) -> str:
    upstream = answer.journey.outcome.source == "upstream"
    return usd(answer.flight.landing.cost_nano if upstream else 0)


_LINES = {"litellm": _litellm, "helicone": _helicone, "portkey": _portkey, "cloudflare": _cloudflare}
