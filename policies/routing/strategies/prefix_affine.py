"""Where the answer is complete soonest, counting what of the prompt is there already.

The cost is that of `policies.routing.affinity`, whose index says what is matched; written out, because fifty places are
weighed for every request. A test holds both to the same numbers.
"""

from policies.routing import Asked, Place

UNIT = "ms"
PARTS = ("prefill", "queue", "company")


def cost(asked: Asked, place: Place) -> tuple[float, float, float]:
    prompt, each = asked.prompt, 1_000.0 / place.prefill_rate
    matched, queued, running = place.matched, place.queued_tokens, place.in_flight
    if matched >= prompt:
        matched = prompt - 1
    if place.waiting:
        queued += int(place.waiting * prompt)
    if place.running > running:
        running = int(place.running)
    return (prompt - matched) * each, queued * each, running * place.slowdown_ms * asked.output
