"""How a layer's rotary position embedding is set: read from `config.json`, refused where it cannot be honoured.

Knows: `rope_parameters`, or `rope_theta` and `rope_scaling`. Does not know: angles (`rotary`), other settings.
"""

import math
from typing import cast

from msgspec import Struct

from engine.models.numbers import Config, UnsupportedModel, integer, number, numbers

_KEYS: dict[str, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}),
    "longrope": frozenset(
        {"factor", "short_factor", "long_factor", "attention_factor", "original_max_position_embeddings"}
    ),
    "yarn": frozenset(
        {"factor", "beta_fast", "beta_slow", "truncate", "attention_factor", "original_max_position_embeddings"}
    ),
}
_ALWAYS = frozenset({"rope_theta", "rope_type", "type", "partial_rotary_factor"})
_MOST_CONTEXT = 2**24


class Rope(Struct, frozen=True, kw_only=True):
    """Rotation of the first `rotary` channels of a head; `amplitude` scales cosines and sines (YaRN, LongRoPE).

    `low`, `high`: llama3's frequency factors, or yarn's slow and fast rotations. `short`, `long`: LongRoPE's divisors.
    """

    rotary: int
    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    low: float = 1.0
    high: float = 4.0
    original: int = 8192
    amplitude: float = 1.0
    truncate: bool = True
    short: tuple[float, ...] = ()
    long: tuple[float, ...] = ()


def read_rope(config: Config, given: Config, head: int) -> Rope:
    """`given` holds the rotary parameters of one kind of layer; what it lacks is looked up in `config`.

    Raises UnsupportedModel.
    """
    kind = str(given.get("rope_type") or given.get("type") or "default")
    kind = "longrope" if kind == "su" else kind  # its name in the first Phi-3 files
    if kind not in _KEYS:
        raise UnsupportedModel(f"Rotary scaling {kind!r} is not supported. Known: {', '.join(_KEYS)}.")
    known = _ALWAYS | frozenset[str]().union(*_KEYS.values()) if kind == "default" else _ALWAYS | _KEYS[kind]
    if unknown := sorted(set(given) - known):
        raise UnsupportedModel(f"Rotary scaling {kind!r}: {', '.join(unknown)} is not honoured.")
    theta = number(given, "rope_theta", number(config, "rope_theta", 10000.0))
    share = number(given, "partial_rotary_factor", number(config, "partial_rotary_factor", 1.0))
    rotary = int(head * share)
    if share > 1 or rotary % 2 or rotary == 0:
        raise UnsupportedModel(f"Rotary embedding of {rotary} of a head's {head} channels is not possible.")
    plain = Rope(rotary=rotary, theta=theta, kind=kind)
    return plain if kind == "default" else _scaled(plain, config, given)


def _scaled(plain: Rope, config: Config, given: Config) -> Rope:
    """The settings of every kind but the default one."""
    values: dict[str, object] = {name: getattr(plain, name) for name in ("rotary", "theta", "kind")}
    context = integer(config, "max_position_embeddings", most=_MOST_CONTEXT)
    outer = config.get("original_max_position_embeddings")  # Phi-3 keeps it outside
    original = integer(
        {**given} | ({"original_max_position_embeddings": outer} if outer else {}),
        "original_max_position_embeddings",
        context,
        most=_MOST_CONTEXT,
    )
    if plain.kind == "longrope":
        factor = number(given, "factor", context / original)
        grown = math.sqrt(1 + math.log(factor) / math.log(max(original, 2))) if factor > 1 else 1.0
        half = plain.rotary // 2
        short, long = numbers(given, "short_factor", half), numbers(given, "long_factor", half)
        values |= {"short": short, "long": long, "amplitude": number(given, "attention_factor", grown)}
    else:
        factor = number(given, "factor")
    if plain.kind == "llama3":
        values |= {"low": number(given, "low_freq_factor"), "high": number(given, "high_freq_factor")}
        if values["low"] == values["high"]:
            raise UnsupportedModel("Rotary scaling 'llama3': low_freq_factor and high_freq_factor must differ.")
    if plain.kind == "yarn":
        grown = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
        values |= {
            "low": number(given, "beta_slow", 1.0),
            "high": number(given, "beta_fast", 32.0),
            "truncate": bool(given.get("truncate", True)),
            "amplitude": number(given, "attention_factor", grown),
        }
    return Rope(**cast("dict[str, object]", values | {"factor": factor, "original": original}))  # pyright: ignore[reportArgumentType]  (checked one by one above)
