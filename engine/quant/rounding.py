"""From real weights to few-bit ones: which scale, which zero, which integer.

Knows: arithmetic on one matrix. Does not know: kernels, models, devices.

Scales are rounded to bfloat16, the type kernels take them in, before anything is divided by them: so what is multiplied
later is exactly what was rounded to here. Rows or groups of zeros (pruned channels) stay exactly zero.
"""

import torch
from torch import Tensor

_FP8_LARGEST = 448.0  # of float8 e4m3 (arXiv 2209.05433)
_SHRINK = (1.0, 0.95, 0.9, 0.85)
_CACHED = 65_536  # weights
_AT_ONCE = 2**26  # weights on a GPU, where each piece is some forty launches: small ones take minutes for 8 B of them


def round_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric per row: int8 [out, in] and bfloat16 scales [out]."""
    scales = _safe((weight.float().abs().amax(1) / 127).bfloat16())
    steps = (weight.float() / scales.float()[:, None]).round().clamp(-127, 127)
    return steps.to(torch.int8), scales


def round_int4(weight: Tensor, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """Per `group` of a row: integers 0 to 15 [out, in] (int32), scales and zeros [out, in / group] (bfloat16).

    A weight is (integer - 8) * scale + zero. Of a few ranges, each a little narrower than the last, a group gets the
    one that leaves the least squared error: one outlier should not cost its neighbours their precision.
    """
    # On a processor as many rows as stay in its cache: several times faster.
    rows = max(1, (_CACHED if weight.device.type == "cpu" else _AT_ONCE) // weight.shape[1])
    parts = [_round_int4(part.float().view(len(part), -1, group)) for part in weight.split(rows)]
    steps, scales, zeros = (torch.cat(same) for same in zip(*parts, strict=True))
    return (steps + 8).to(torch.int32).view(weight.shape), scales.bfloat16(), zeros.bfloat16()


def _round_int4(groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of [rows, groups, group]: steps -8 to 7, and the scale and zero of each group, all float32."""
    low, high = groups.aminmax(dim=-1, keepdim=True)
    middle, width = (high + low) / 2, high - low
    steps, scales, zeros = torch.zeros_like(groups), middle, middle
    least = torch.full_like(middle, float("inf"))
    for shrink in _SHRINK:
        scale = _safe((width * shrink / 15).bfloat16()).float()
        zero = (middle + (scale / 2).masked_fill(width == 0, 0)).bfloat16().float()
        exact = (groups - zero).div_(scale)
        rounded = exact.round().clamp_(-8, 7)
        error = exact.sub_(rounded).square_().sum(-1, keepdim=True) * scale.square()
        better = error < least
        steps = torch.where(better, rounded, steps)
        scales, zeros = torch.where(better, scale, scales), torch.where(better, zero, zeros)
        least = torch.minimum(error, least)
    return steps, scales.squeeze(-1), zeros.squeeze(-1)


def round_fp8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric per row: float8 e4m3 [rows, in] and float32 scales [rows]. For weights and for activations alike."""
    scales = _safe(weight.float().abs().amax(1) / _FP8_LARGEST)
    steps = (weight.float() / scales[:, None]).clamp(-_FP8_LARGEST, _FP8_LARGEST)
    return steps.to(torch.float8_e4m3fn), scales


def _safe(scales: Tensor) -> Tensor:
    """1 where everything is zero."""
    return scales.masked_fill(scales == 0, 1)
