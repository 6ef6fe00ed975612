"""Where the fewest requests are for its weight: ours under way, and what the place itself says waits.

What runs there is ours in flight or somebody else's: the larger of both counts. From nine tenths of its cache of keys
and values on it counts up to twice, since who comes to a full one waits until another leaves.
"""

from collections.abc import Sequence
from math import inf

from policies.routing import FULL_FROM, Asked, Place

UNIT = "requests"
PARTS = ("under way", "waiting", "cache full")


def costs(asked: Asked, places: Sequence[Place]) -> list[tuple[float, float, float]]:  # noqa: ARG001 - every strategy is asked alike
    return [_cost(place) for place in places]


def _cost(place: Place) -> tuple[float, float, float]:
    weight, ours, theirs = place.weight, place.in_flight, place.running
    if weight <= 0:
        return inf, 0.0, 0.0
    under_way, over = max(ours, theirs) / weight, place.kv_used - FULL_FROM
    full = under_way * over / (1.0 - FULL_FROM) if over > 0 else 0.0
    return under_way, place.waiting / weight, full
