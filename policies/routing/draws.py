"""Independent draws out of one random number, and the same draw for the same name every time.

Pure: SplitMix64 (Steele, Lea, Flood 2014) as the mixer; -ln(u)/w as in Efraimidis and Spirakis (2006): the lowest of
them is a draw with those weights, the order of all of them a draw without replacement.
"""

import math
from functools import lru_cache
from hashlib import blake2b, shake_128
from struct import unpack

_MASK = (1 << 64) - 1
_STEP = 1.0 / (1 << 32)


def mixed(seed: int, number: int) -> int:
    """64 bits that look random, decided by both."""
    value = (seed + (number + 1) * 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def uniform(seed: int, count: int) -> list[float]:
    """So many draws in (0, 1], all decided by the seed; SHAKE128 costs a fraction of so many turns of a mixer."""
    raw = shake_128(seed.to_bytes(8, "big")).digest(4 * count)
    return [(bits + 1) * _STEP for bits in unpack(f"{count}I", raw)]


def exponential(bits: int, weight: float) -> float:
    """An exponential draw of that rate; infinite for a weight of 0, which is only taken when nothing else is left."""
    if weight <= 0:
        return math.inf
    return -math.log(((bits >> 11) + 1) / (1 << 53)) / weight


def share(session: int, name: str, weight: float) -> float:
    """The draw of a place for a session: always the same."""
    return exponential(mixed(session, number_of(name)), weight)


@lru_cache(4_096)
def number_of(text: str) -> int:
    """64 bits of a text."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def fraction(bits: int) -> float:
    """In [0, 1)."""
    return (bits >> 11) / (1 << 53)
