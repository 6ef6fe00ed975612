"""Where the fewest requests are for its weight: ours under way, and what the place itself says waits.

What runs there is ours in flight or somebody else's: the larger of both counts.
"""

from collections.abc import Sequence
from math import inf

from policies.routing import Asked, Place

UNIT = "requests"
PARTS = ("under way", "waiting")


def costs(asked: Asked, places: Sequence[Place]) -> list[tuple[float, float]]:  # noqa: ARG001 - every strategy is asked alike
    return [_cost(place) for place in places]


def _cost(place: Place) -> tuple[float, float]:
    weight, ours, theirs = place.weight, place.in_flight, place.running
    if weight <= 0:
        return inf, 0.0
    return (max(theirs, ours)) / weight, place.waiting / weight
