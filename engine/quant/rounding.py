"""From real weights to few-bit ones: which scale, which zero, which integer.

Knows: arithmetic on one matrix. Does not know: kernels, models, devices.

Scales are rounded to bfloat16, the type kernels take them in, before anything is divided by them: so what is multiplied
later is exactly what was rounded to here. Rows or groups of zeros (pruned channels) stay exactly zero.
"""

import torch
from torch import Tensor

_FP8_LARGEST = 448.0  # of float8 e4m3 (arXiv 2209.05433)
_SHRINK = (1.0, 0.96, 0.92, 0.88, 0.84)


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
    groups = weight.float().view(weight.shape[0], -1, group)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    middle, width = (high + low) / 2, high - low
    best: tuple[Tensor, Tensor, Tensor] | None = None
    least = torch.full_like(middle, float("inf"))
    for shrink in _SHRINK:
        scale = _safe((width * shrink / 15).bfloat16()).float()
        zero = (middle + (scale / 2).masked_fill(width == 0, 0)).bfloat16().float()
        steps = ((groups - zero) / scale + 8).round().clamp(0, 15)
        error = ((steps - 8) * scale + zero - groups).square().sum(-1, keepdim=True)
        if best is None:
            best, least = (steps, scale, zero), error
            continue
        better = error < least
        least = torch.where(better, error, least)
        pairs = zip((steps, scale, zero), best, strict=True)
        best = tuple(torch.where(better, new, old) for new, old in pairs)  # pyright: ignore[reportAssignmentType]  (three)
    assert best is not None
    steps, scale, zero = best
    integers = steps.to(torch.int32).view(weight.shape)
    return integers, scale.squeeze(-1).bfloat16(), zero.squeeze(-1).bfloat16()


def round_fp8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric per row: float8 e4m3 [rows, in] and float32 scales [rows]. For weights and for activations alike."""
    scales = _safe(weight.float().abs().amax(1) / _FP8_LARGEST)
    steps = (weight.float() / scales[:, None]).clamp(-_FP8_LARGEST, _FP8_LARGEST)
    return steps.to(torch.float8_e4m3fn), scales


def _safe(scales: Tensor) -> Tensor:
    """1 where everything is zero."""
    return scales.masked_fill(scales == 0, 1)
