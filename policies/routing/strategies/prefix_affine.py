"""Where the answer is complete soonest, counting what of the prompt is there already.

The cost is that of `policies.routing.affinity`, whose index says what is matched; written out, because fifty places are
weighed for every request. A test holds both to the same numbers.
"""

from collections.abc import Sequence

from policies.routing import Asked, Place

UNIT = "ms"
PARTS = ("prefill", "queue", "company")


def costs(asked: Asked, places: Sequence[Place]) -> list[tuple[float, float, float]]:
    prompt, output = asked.prompt, asked.output
    matched = asked.matched or [0] * (places[-1].number + 1 if places else 0)
    found: list[tuple[float, float, float]] = []
    for place in places:
        each, held = 1_000.0 / place.prefill_rate, matched[place.number]
        queued, running = place.queued_tokens, place.in_flight
        if held >= prompt:
            held = prompt - 1
        if place.waiting:
            queued += int(place.waiting * prompt)
        if place.running > running:
            running = int(place.running)
        found.append(((prompt - held) * each, queued * each, running * place.slowdown_ms * output))
    return found
