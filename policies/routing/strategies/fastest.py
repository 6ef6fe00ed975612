"""The whole answer soonest: the median time to the first token and that of each further one, as measured.

A place that nobody has measured of late counts as immediate, so that it is found out.
"""

from policies.routing import Asked, Place

UNIT = "ms"
PARTS = ("ttft", "generation")


def cost(asked: Asked, place: Place) -> tuple[float, float]:
    if place.ttft_ms < 0:
        return 0.0, 0.0
    return place.ttft_ms, max(0.0, place.tpot_ms) * asked.output
