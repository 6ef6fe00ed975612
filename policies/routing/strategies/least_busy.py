"""Where the fewest requests are for its weight: ours under way, and what the place itself says waits.

What runs there is ours in flight or somebody else's: the larger of both counts.
"""

from policies.routing import Asked, Place

UNIT = "requests"
PARTS = ("under way", "waiting")


def cost(asked: Asked, place: Place) -> tuple[float, float]:  # noqa: ARG001 - every strategy is asked alike
    if place.weight <= 0:
        return float("inf"), 0.0
    return max(place.in_flight, place.running) / place.weight, place.waiting / place.weight
