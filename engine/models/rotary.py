"""Rotary position embedding: which angle each pair of channels turns by at each position.

Knows: a `Rope`; tables of cosines and sines. Does not know: configurations, heads, attention.

Sources: RoFormer (arXiv 2104.09864), YaRN (2309.00071), LongRoPE (2402.13753), Llama 3.1's scaling (its own code).
"""

import math

import torch
from torch import Tensor

from engine.models.rope import Rope


def frequencies(rope: Rope, context: int) -> Tensor:
    """Radians per position of each of the rotary/2 planes.

    LongRoPE has two sets, for windows up to the one it was trained with and for longer ones. Which one is decided by
    the window that is served, once: a sequence that changed sets as it grew would not fit its own earlier keys.
    """
    exponent = torch.arange(0, rope.rotary, 2, dtype=torch.int64).float() / rope.rotary
    plain = 1.0 / rope.theta**exponent
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind == "longrope":
        divisors = rope.long if context > rope.original else rope.short
        return 1.0 / (torch.tensor(divisors, dtype=torch.float32) * rope.theta**exponent)
    if rope.kind == "llama3":
        return _llama3(rope, plain)
    if rope.kind == "yarn":
        return _yarn(rope, exponent)
    return plain


def _llama3(rope: Rope, plain: Tensor) -> Tensor:
    """Long waves are slowed by `factor`, short ones kept, those between are blended."""
    waves = 2 * math.pi / plain
    blend = (rope.original / waves - rope.low) / (rope.high - rope.low)
    middle = (1 - blend) * plain / rope.factor + blend * plain
    long, short = waves > rope.original / rope.low, waves < rope.original / rope.high
    return torch.where(long, plain / rope.factor, torch.where(short, plain, middle))


def _yarn(rope: Rope, exponent: Tensor) -> Tensor:
    """A ramp over the planes from `high` turns within the trained window (kept) to `low` (slowed by `factor`)."""

    def plane(turns: float) -> float:
        return rope.rotary * math.log(rope.original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    first, last = plane(rope.high), plane(rope.low)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rope.rotary - 1)
    last = last + 0.001 if first == last else last
    ramp = ((torch.arange(rope.rotary // 2, dtype=torch.float32) - first) / (last - first)).clamp(0, 1)
    kept = 1.0 / rope.theta**exponent
    slowed = 1.0 / (rope.factor * rope.theta**exponent)
    return slowed * ramp + kept * (1 - ramp)


class Rotary:
    """Cosines and signed sines of all kinds of layers, for as many positions as were needed so far.

    A table for a window of 131,072 would be half a gigabyte in some models, and most of it never looked at.
    """

    def __init__(self, ropes: set[Rope], head: int, context: int, device: torch.device) -> None:
        self._frequencies = {rope: frequencies(rope, context).to(device) for rope in ropes}
        self._head = head
        self._context = context
        self._tables: dict[Rope, tuple[Tensor, Tensor]] = {}
        self._length = 0

    def reserve(self, positions: int) -> None:
        """Have tables for at least the first `positions` positions."""
        if positions <= self._length:
            return
        self._length = min(max(positions, 2 * self._length, 1024), max(self._context, positions))
        self._tables = {rope: self._table(rope, planes) for rope, planes in self._frequencies.items()}

    def _table(self, rope: Rope, planes: Tensor) -> tuple[Tensor, Tensor]:
        """[positions, D] each; channels that do not turn have cosine 1 and sine 0."""
        angles = torch.outer(torch.arange(self._length, device=planes.device).float(), planes)
        cos, sin = angles.cos() * rope.amplitude, angles.sin() * rope.amplitude
        still = self._head - rope.rotary
        ones, zeros = cos.new_ones(self._length, still), cos.new_zeros(self._length, still)
        return torch.cat([cos, cos, ones], -1), torch.cat([-sin, sin, zeros], -1)

    def table(self, rope: Rope) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines [positions, D] of the positions reserved so far."""
        return self._tables[rope]

    def at(self, positions: Tensor) -> dict[Rope | None, tuple[Tensor, Tensor]]:
        """Cosines and signed sines [T, 1, D] of `positions` [T] for every kind of layer."""
        return {
            rope: (cos.index_select(0, positions).unsqueeze(1), sin.index_select(0, positions).unsqueeze(1))
            for rope, (cos, sin) in self._tables.items()
        }


def turn(x: Tensor, cos: Tensor, sin: Tensor, rotary: int) -> Tensor:
    """Rotate the first `rotary` channels of `x` [T, heads, D]: rotate_half(x) is x with its halves exchanged, the first
    negated; `sin` carries that sign."""
    half = rotary // 2
    if rotary == x.shape[-1]:
        return torch.addcmul(x * cos, x.roll(half, -1), sin)
    exchanged = torch.cat([x[..., half:rotary], x[..., :half], x[..., rotary:]], -1)
    return torch.addcmul(x * cos, exchanged, sin)
