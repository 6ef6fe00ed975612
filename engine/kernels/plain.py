"""What each kernel computes, in plain torch: the reference of the tests, and the CUDA path where there is no GPU.

Knows: the definitions. Does not know: speed. Arithmetic is float32, or float64 where the inputs are.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from engine.blocks import BLOCK
from engine.kernels import HeadNorm, Look, Noise, Norm, Pages, Parts, Rotary, Tiles, Weights


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def attend(
    query: Tensor,
    pages: Pages,
    tiles: Sequence[Tiles],
    blocks: Tensor,
    look: Look,
    parts: Parts,  # noqa: ARG001  (there are no partial results here)
) -> Tensor:
    """One tile after the other, every key at once."""
    _, heads, size = query.shape
    group = heads // pages.keys.shape[1]
    out = torch.empty_like(query)
    for sequence, row, rows, position, *_ in torch.cat([some.table for some in tiles]).tolist():
        if sequence < 0:
            continue
        end = position + rows
        slots = (blocks[sequence].long()[:, None] * BLOCK + torch.arange(BLOCK, device=query.device)).flatten()[:end]
        keys = _read(pages.keys, pages.key_scales, slots, query).repeat_interleave(group, 1)
        values = _read(pages.values, pages.value_scales, slots, query).repeat_interleave(group, 1)
        x = torch.einsum("nhd,lhd->hnl", _wide(query[row : row + rows]), keys) * look.scale
        if look.softcap:
            x = look.softcap * torch.tanh(x / look.softcap)
        at = torch.arange(position, end, device=query.device)[:, None]
        j = torch.arange(end, device=query.device)
        seen = (j <= at) & (j > at - look.window) if look.window else j <= at
        weights = x.masked_fill(~seen, float("-inf")).softmax(-1)
        out[row : row + rows] = torch.einsum("hnl,lhd->nhd", weights, values).to(out.dtype)
    return out.view(-1, heads * size)


def _read(stored: Tensor, scales: Tensor | None, slots: Tensor, like: Tensor) -> Tensor:
    taken = stored[slots].to(torch.float64 if like.dtype == torch.float64 else torch.float32)
    return taken if scales is None else taken * scales[slots][..., None]


def rotate_and_write(
    qkv: Tensor, positions: Tensor, slots: Tensor, rotary: Rotary | None, norm: HeadNorm | None, pages: Pages
) -> Tensor:
    kv_heads, size = pages.keys.shape[1:]
    both = _wide(qkv).view(len(qkv), -1, size)
    mixed, value = both[:, :-kv_heads], both[:, -kv_heads:]
    if norm is not None:
        mixed = functional.rms_norm(mixed, (size,), None, norm.epsilon) * norm.weight
    if rotary is not None:
        cos, sin, turned = rotary
        exchanged = torch.cat([mixed[..., :turned].roll(turned // 2, -1), mixed[..., turned:]], -1)
        mixed = mixed * cos[positions][:, None] + exchanged * sin[positions][:, None]
    _store(mixed[:, -kv_heads:], slots, pages.keys, pages.key_scales)
    _store(value, slots, pages.values, pages.value_scales)
    return mixed[:, :-kv_heads].to(qkv.dtype).contiguous()


def largest(dtype: torch.dtype) -> float:
    """The largest number of int8 or a float8."""
    return float(torch.finfo(dtype).max if dtype.is_floating_point else torch.iinfo(dtype).max)


def _store(x: Tensor, slots: Tensor, to: Tensor, scales: Tensor | None) -> None:
    if scales is not None:
        scale = (x.abs().amax(-1) / largest(to.dtype)).clamp_min(1e-12)
        scales[slots] = scale.float()
        x = x / scale[..., None]
        x = x if to.dtype.is_floating_point else (x + 0.5).floor()
    to[slots] = x.to(to.dtype)


def add_norm(x: Tensor, branch: Tensor | None, norm: Norm, dtype: torch.dtype) -> Tensor:
    if branch is not None:
        x += branch
    return (functional.rms_norm(_wide(x), x.shape[-1:], None, norm.epsilon) * norm.weight).to(dtype)


def gate(both: Tensor, activation: str) -> Tensor:
    first, second = _wide(both).chunk(2, -1)
    acted = functional.silu(first) if activation == "silu" else functional.gelu(first, approximate="tanh")
    return (acted * second).to(both.dtype)


def _linear(x: Tensor, weights: Weights) -> Tensor:
    y = _wide(x) @ weights.weight.to(_wide(x).dtype).T
    y = y if weights.scale is None else y * weights.scale
    return y if weights.bias is None else y + weights.bias


def vector(x: Tensor, weights: Weights, norm: Norm | None, activation: str | None) -> Tensor:
    # What a residual stream becomes has the type of unquantized weights; it is bfloat16 wherever they are quantized.
    dtype = x.dtype if norm is None else working_type(weights)
    if norm is not None:
        x = functional.rms_norm(_wide(x), x.shape[-1:], None, norm.epsilon) * norm.weight
    y = _linear(x, weights)
    return (y if activation is None else gate(y, activation)).to(dtype)


def working_type(weights: Weights) -> torch.dtype:
    """What a linear layer takes and gives."""
    return torch.bfloat16 if weights.scale is not None else weights.weight.dtype


def vector_add(x: Tensor, y: Tensor, weights: Weights) -> None:
    x += _linear(y, weights)


def matrix(x: Tensor, weights: Weights) -> Tensor:
    return _linear(x, weights).to(x.dtype)


def sample(logits: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
    finite = logits.isfinite().all(-1)
    logits = _wide(logits)
    temperature = noise.temperature[:, None]
    drawn = logits / temperature.clamp_min(1e-6) + gumbel(noise.words, logits.shape[1])
    tokens = torch.where(temperature > 0, drawn, logits.double()).argmax(-1)
    logprobs = logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    return torch.where(finite, tokens, -1).int(), logprobs.float()


def gumbel(words: Tensor, vocabulary: int) -> Tensor:
    """The noise of engine.sampler from its words [B, 2]: [B, V] in float64."""
    mask = 0xFFFFFFFF

    def scramble(x: Tensor) -> Tensor:
        x = (x ^ x >> 16) * 0x85EBCA6B & mask
        x = (x ^ x >> 13) * 0xC2B2AE35 & mask
        return x ^ x >> 16

    tokens = torch.arange(vocabulary, dtype=torch.int64, device=words.device) * 0x9E3779B1 & mask
    wide = words.long() & mask
    mixed = scramble(scramble(tokens ^ wide[:, :1]) ^ wide[:, 1:])
    return -(-((mixed.double() + 0.5) / 2**32).log()).log()
