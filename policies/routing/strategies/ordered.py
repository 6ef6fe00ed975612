"""As the operator wrote them. Does not know: anything about the places but where they stand."""

from collections.abc import Sequence

from policies.routing import Asked, Place

UNIT = "place in the list"
PARTS = ("place",)


def costs(asked: Asked, places: Sequence[Place]) -> list[tuple[float]]:  # noqa: ARG001 - every strategy is asked alike
    return [(float(place.number),) for place in places]
