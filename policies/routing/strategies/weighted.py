"""By weights: of many requests each place gets its share first, and the rest follow by theirs.

The cost is a draw: the lowest of -ln(u)/weight is each place with the probability of its weight.
"""

from math import inf, log

from policies.routing import Asked, Place

UNIT = "draw"
PARTS = ("draw",)
_MASK = (1 << 64) - 1


def cost(asked: Asked, place: Place) -> tuple[float]:
    """An exponential draw by `policies.routing.draws`, its mixer written out: it runs for every place."""
    weight = place.weight
    if weight <= 0:
        return (inf,)
    bits = (asked.draw + (place.number + 1) * 0x9E3779B97F4A7C15) & _MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
    return (-log((((bits ^ (bits >> 31)) >> 11) + 1) / 9007199254740992.0) / weight,)
