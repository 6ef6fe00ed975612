"""The fewest dollars for this request: its prompt and the answer to be expected, each at the place's own price.

A place without a price comes last: it can only be refused. Does not know: quality, load.
"""

from policies.routing import Asked, Place

UNIT = "USD"
PARTS = ("prompt", "output")
_PICO = 1e-12


def cost(asked: Asked, place: Place) -> tuple[float, float]:
    price = place.price
    if price is None:
        return float("inf"), 0.0
    return asked.prompt * price.input * _PICO, asked.output * price.output * _PICO
