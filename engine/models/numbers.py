"""Reading numbers out of a `config.json` without believing it.

Knows: keys, bounds, the error that names them. Does not know: what any of them means.
"""

from typing import cast

from engine.api import EngineError

Config = dict[str, object]
_HUGE = 1e300  # what a float can still hold; JSON has no such bound


class UnsupportedModel(EngineError):
    """This configuration asks for something the decoder does not do, or makes no sense. The message names it."""


def number(config: Config, key: str, default: float | None = None) -> float:
    """A positive finite number. Raises UnsupportedModel."""
    value = config.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < _HUGE:
        raise UnsupportedModel(f"config.json: {key} must be a positive number, not {value!r}.")
    return float(value)


def integer(config: Config, key: str, default: int | None = None, *, most: int) -> int:
    """A whole number from 1 to `most`: what no model has is a damaged file. Raises UnsupportedModel."""
    value = number(config, key, default)
    if value != int(value) or value > most:
        raise UnsupportedModel(f"config.json: {key} must be a whole number up to {most:,}, not {config.get(key)!r}.")
    return int(value)


def numbers(config: Config, key: str, count: int) -> tuple[float, ...]:
    """A list of `count` positive numbers. Raises UnsupportedModel."""
    values = config.get(key)
    if not isinstance(values, list) or len(cast("list[object]", values)) != count:
        raise UnsupportedModel(f"config.json: {key} must be a list of {count} numbers.")
    return tuple(number({key: value}, key) for value in cast("list[object]", values))


def entry(config: Config, key: str) -> Config:
    """An object, empty when absent or null. Raises UnsupportedModel."""
    value = config.get(key)
    if value is not None and not isinstance(value, dict):
        raise UnsupportedModel(f"config.json: {key} must be an object, not {value!r}.")
    return cast("Config", value or {})
