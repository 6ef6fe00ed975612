"""The whole answer soonest: the median time to the first token and that of each further one, as measured.

A place that nobody has measured of late counts as immediate, so that it is found out.
"""

from collections.abc import Sequence

from policies.routing import Asked, Place

UNIT = "ms"
PARTS = ("ttft", "generation")


def costs(asked: Asked, places: Sequence[Place]) -> list[tuple[float, float]]:
    output, nothing = asked.output, (0.0, 0.0)
    return [
        nothing if (first := place.ttft_ms) < 0 else (first, each * output if (each := place.tpot_ms) > 0 else 0.0)
        for place in places
    ]
