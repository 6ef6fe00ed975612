"""By weights: of many requests each place gets its share first, and the rest follow by theirs.

The cost is a draw: the lowest of -ln(u)/weight is each place with the probability of its weight.
"""

from collections.abc import Sequence
from math import inf, log

from policies.routing import Asked, Place
from policies.routing.draws import uniform

UNIT = "draw"
PARTS = ("draw",)


def costs(asked: Asked, places: Sequence[Place]) -> list[tuple[float]]:
    """Exponential draws as in `policies.routing.draws`; which one a place gets is decided by its number."""
    drawn = uniform(asked.draw, 1 + max((place.number for place in places), default=0))
    return [(-log(drawn[place.number]) / weight if (weight := place.weight) > 0 else inf,) for place in places]
