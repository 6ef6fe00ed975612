"""Values of an explanation as the database gives them back: of the expected kind, or nothing.

Knows: how little can be taken for granted of what an earlier version wrote. Does not know: what any value means.
"""

from typing import cast


def items(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def records(value: object) -> list[dict[str, object]]:
    return [cast("dict[str, object]", item) for item in items(value) if isinstance(item, dict)]


def number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def numbers(value: object) -> dict[str, float]:
    if not isinstance(value, dict):
        return {}
    found = cast("dict[str, object]", value).items()
    return {name: float(number) for name, number in found if isinstance(number, int | float)}


def text(value: object) -> str | None:
    return None if value is None else str(value)
