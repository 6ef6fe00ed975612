"""Goodput: where the promise is kept (time to first token, time per further token), at the lowest price.

The cost is milliseconds of lateness in one of ten requests: how far the ninetieth percentiles, and what waits ahead,
exceed the promise. What the answer costs is told in the same unit at a rate of a dollar for a millisecond, which is so
little that it only decides among those that are in time. Goodput as in DistServe (OSDI 2024).
"""

from collections.abc import Sequence

from policies.routing import FULL_FROM, Asked, Place

UNIT = "ms late"
PARTS = ("first token late", "tokens late", "price")
_MS_PER_PICO_USD = 1e-12
_UNPRICED = float("inf")


def costs(asked: Asked, places: Sequence[Place]) -> list[tuple[float, float, float]]:
    return [_cost(asked, place) for place in places]


def _cost(asked: Asked, place: Place) -> tuple[float, float, float]:
    price, first = place.price, place.slow_ttft_ms
    dear = _UNPRICED
    if price is not None:
        dear = (asked.prompt * price.input + asked.output * price.output) * _MS_PER_PICO_USD
    if first < 0:
        return 0.0, 0.0, dear
    ahead, over = place.waiting / (place.running + 1.0), place.kv_used - FULL_FROM
    if over > 0.0:
        ahead += over / (1.0 - FULL_FROM)  # who comes to a full cache waits until another leaves
    late = first + first * ahead - asked.ttft_ms
    slow = place.slow_tpot_ms - asked.tpot_ms
    late = late if late > 0.0 else 0.0  # noqa: FURB136 - this runs for every place, and a call costs more than the rest
    return late, slow * asked.output if slow > 0.0 else 0.0, dear
