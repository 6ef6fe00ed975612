"""The fewest dollars for this request: its prompt and the answer to be expected, each at the place's own price.

A place without a price comes last: it can only be refused. Does not know: quality, load.
"""

from collections.abc import Sequence
from math import inf

from policies.routing import Asked, Place

UNIT = "USD"
PARTS = ("prompt", "output")
_PICO = 1e-12
_UNPRICED = (inf, 0.0)


def costs(asked: Asked, places: Sequence[Place]) -> list[tuple[float, float]]:
    prompt, output = asked.prompt * _PICO, asked.output * _PICO
    return [
        _UNPRICED if (price := place.price) is None else (prompt * price.input, output * price.output)
        for place in places
    ]
