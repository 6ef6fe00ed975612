"""What a GPU computes for the decoder: seven small kernels, and the same functions in plain torch.

Knows: the values that kernels are called with, and the two implementations' common shape. Does not know: Triton (only
the modules beside this one import it, and only where there is a GPU or its interpreter), models, requests.

`engine.kernels.fast` launches Triton kernels; `engine.kernels.plain` says in plain torch what each must compute. Tests
hold the first to the second in float64, and the whole CUDA path runs on the second where there is no GPU.
Shapes: T rows of a step, S sequences, H heads, G key/value heads, D per head, F inner width, V vocabulary.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

TILE_FIELDS = 8  # of which five are used: a row of 32 bytes stays aligned
NO_SPLIT = 1 << 30


class Pages(NamedTuple):
    """One layer's keys and values [slots, G, D]; with them scales [slots, G] float32 when they are int8 or fp8."""

    keys: Tensor
    values: Tensor
    key_scales: Tensor | None = None
    value_scales: Tensor | None = None


class Look(NamedTuple):
    """How a layer attends: `scale` multiplies q.k; `window` tokens back and a tanh `softcap`, 0 for none."""

    scale: float
    window: int = 0
    softcap: float = 0.0


class Tiles(NamedTuple):
    """Which rows attend together, and how the work over keys is cut.

    `table` [N, 8] int32: sequence (-1: padding), first row, rows, position of the first row, first partial result.
    `rows`: the most rows of a tile. Keys are read in ranges of `split` (a multiple of 64, or NO_SPLIT), by `programs`
    programs per tile and key/value head. Partial results depend on `split` alone, never on `programs` or on company.
    """

    table: Tensor
    rows: int = 1
    split: int = NO_SPLIT
    programs: int = 1


class Parts(NamedTuple):
    """Room for partial results: `sums` [P, H, D], `stats` [P, H, 2] (running maximum in log2 units, denominator)."""

    sums: Tensor
    stats: Tensor


class Rotary(NamedTuple):
    """Cosines and signed sines [positions, D]; the first `turned` dimensions of a head turn (engine.models.rope)."""

    cos: Tensor
    sin: Tensor
    turned: int


class HeadNorm(NamedTuple):
    """RMSNorm of each query and key head: `weight` [H + G, D] float32."""

    weight: Tensor
    epsilon: float


class Norm(NamedTuple):
    """RMSNorm: `weight` [width] float32, ready to multiply (Gemma's `1 + w` is folded in when weights are read)."""

    weight: Tensor
    epsilon: float


class Weights(NamedTuple):
    """A linear layer: `weight` [out, in] in bfloat16, int8 or float8_e4m3fn, `scale` [out] of the latter two."""

    weight: Tensor
    scale: Tensor | None = None
    bias: Tensor | None = None


class Noise(NamedTuple):
    """Per row: `temperature` [B] float32 (0: the likeliest), two 32-bit `words` [B, 2] as int32 (engine.sampler)."""

    temperature: Tensor
    words: Tensor


class Kernels(Protocol):
    """Both implementations. Results go where the caller says, so that a CUDA graph finds them again."""

    def attend(
        self, query: Tensor, pages: Pages, tiles: Sequence[Tiles], blocks: Tensor, look: Look, parts: Parts
    ) -> Tensor:
        """Causal attention of `query` [T, H, D] over pages; `blocks` [S, W] int32. Gives [T, H * D].

        Rows in no tile are left unset.
        """
        ...

    def rotate_and_write(
        self, qkv: Tensor, positions: Tensor, slots: Tensor, rotary: Rotary | None, norm: HeadNorm | None, pages: Pages
    ) -> Tensor:
        """`qkv` [T, (H + 2G) * D]: norm and turn queries and keys, write keys and values. Gives queries [T, H, D]."""
        ...

    def add_norm(self, x: Tensor, branch: Tensor | None, norm: Norm, dtype: torch.dtype) -> Tensor:
        """Add `branch` to the residual stream `x` [T, d] float32 in place; gives the norm of the sum."""
        ...

    def gate(self, both: Tensor, activation: str) -> Tensor:
        """act(first half) * second half of [T, 2F]. `activation`: silu or gelu_tanh."""
        ...

    def vector(self, x: Tensor, weights: Weights, norm: Norm | None, activation: str | None) -> Tensor:
        """One row: linear(norm(x)), gated when there is an activation. `x` [1, in], float32 exactly with a norm."""
        ...

    def vector_add(self, x: Tensor, y: Tensor, weights: Weights) -> None:
        """One row: `x` [1, out] float32 += linear(`y` [1, in])."""
        ...

    def matrix(self, x: Tensor, weights: Weights) -> Tensor:
        """linear(x) [T, out] with one tiling for every T: a row's result does not depend on its company."""
        ...

    def sample(self, logits: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        """A token per row of `logits` [B, V] (-1 when they are not finite) and its own log probability."""
        ...
