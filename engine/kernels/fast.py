"""Launches the Triton kernels: which tile sizes, how many programs, and where results go.

Knows: shapes, tile sizes chosen for sm_90. Does not know: models, batches, graphs. Import it only where Triton can run:
on a GPU, or in its interpreter.
"""

# How a kernel is launched (warps, stages) is no parameter of it, and its constants are handed over as plain values.
# pyright: reportCallIssue=false, reportArgumentType=false

from collections.abc import Sequence

import torch
import triton
from torch import Tensor

from engine.blocks import BLOCK
from engine.kernels import NO_SPLIT, HeadNorm, Look, Noise, Norm, Pages, Parts, Rotary, Tiles, Weights
from engine.kernels import attention as _attention
from engine.kernels import fused as _fused
from engine.kernels import linear as _linear
from engine.kernels import sampling as _sampling
from engine.kernels.plain import largest, working_type

_KEYS = 64  # keys read at a time
_COLUMNS = 1024
_CHUNK = 4096
_next = triton.next_power_of_2


def _common(heads: int, pages: Pages) -> tuple[int, int, bool]:
    """Head size, the power of two above it, whether pages are quantized."""
    size = pages.keys.shape[2]
    assert heads % pages.keys.shape[1] == 0
    return size, max(16, _next(size)), pages.key_scales is not None


def attend(query: Tensor, pages: Pages, tiles: Sequence[Tiles], blocks: Tensor, look: Look, parts: Parts) -> Tensor:
    out = torch.empty_like(query)
    for some in tiles:
        _attend(query, pages, some, blocks, look, parts, out)
    return out.view(len(out), -1)


def _attend(  # noqa: PLR0913  (the same and where to)
    query: Tensor, pages: Pages, tiles: Tiles, blocks: Tensor, look: Look, parts: Parts, out: Tensor
) -> None:
    heads, kv_heads = query.shape[1], pages.keys.shape[1]
    size, padded, scaled = _common(heads, pages)
    rows = max(16, _next(tiles.rows * (heads // kv_heads)))
    count = len(tiles.table)
    assert tiles.rows == 1 or tiles.split == NO_SPLIT, "only single rows are merged"
    _attention.attend[(count, kv_heads, tiles.programs)](
        query, pages.keys, pages.values, pages.key_scales, pages.value_scales, out, parts.sums, parts.stats,
        tiles.table, blocks, blocks.shape[1], tiles.split, look.scale,
        HEADS=heads, KV_HEADS=kv_heads, HEAD=size, PADDED=padded, BLOCK=BLOCK, ROWS=rows, KEYS=_KEYS,
        WINDOW=look.window, SOFTCAP=look.softcap, SCALED=scaled,
        num_warps=8 if rows >= 128 else 4, num_stages=3 if padded <= 128 else 2,
    )  # fmt: skip
    if tiles.split != NO_SPLIT:
        _attention.merge[(count, heads)](
            out, parts.sums, parts.stats, tiles.table, tiles.split,
            HEADS=heads, HEAD=size, PADDED=padded, WINDOW=look.window, MERGED=_attention.MERGED, num_warps=2,
        )  # fmt: skip


def rotate_and_write(
    qkv: Tensor, positions: Tensor, slots: Tensor, rotary: Rotary | None, norm: HeadNorm | None, pages: Pages
) -> Tensor:
    kv_heads = pages.keys.shape[1]
    heads = qkv.shape[1] // pages.keys.shape[2] - 2 * kv_heads
    size, padded, scaled = _common(heads, pages)
    together = 8
    while heads % together or kv_heads % together:
        together //= 2
    query = qkv.new_empty(len(qkv), heads, size)
    cos, sin, turned = rotary or (None, None, 0)
    _fused.rotate_and_write[(len(qkv), (heads + 2 * kv_heads) // together)](
        qkv, positions, slots, cos, sin, norm.weight if norm else None, query, *pages,
        norm.epsilon if norm else 0.0, largest(pages.keys.dtype) if scaled else 0.0,
        HEADS=heads, KV_HEADS=kv_heads, HEAD=size, PADDED=padded, TURNED=turned,
        TOGETHER=together, NORM=norm is not None, SCALED=scaled, num_warps=2 if together * padded >= 1024 else 1,
    )  # fmt: skip
    return query


def add_norm(x: Tensor, branch: Tensor | None, norm: Norm, dtype: torch.dtype) -> Tensor:
    width = x.shape[1]
    out = torch.empty_like(x, dtype=dtype)
    _fused.add_norm[(len(x),)](
        x, branch, norm.weight, out, norm.epsilon,
        WIDTH=width, PADDED=_next(width), ADD=branch is not None, num_warps=8 if width > 2048 else 4,
    )  # fmt: skip
    return out


def gate(both: Tensor, activation: str) -> Tensor:
    width = both.shape[1] // 2
    out = both.new_empty(len(both), width)
    _fused.gate[(len(both), triton.cdiv(width, _COLUMNS))](
        both, out, WIDTH=width, COLUMNS=_COLUMNS, SILU=activation == "silu"
    )
    return out


def _vector(x: Tensor, weights: Weights, y: Tensor, norm: Norm | None, *, activation: str | None, add: bool) -> None:
    count, width = y.shape[1], x.shape[1]
    out, inner = vector_tile(count, width, gated=activation is not None)
    _linear.vector[(triton.cdiv(count, out),)](
        x, norm.weight if norm else None, weights.weight, weights.scale, weights.bias, y,
        norm.epsilon if norm else 0.0, count, width,
        OUT=out, IN=inner, STAGES=3, NORM=norm is not None, SCALED=weights.scale is not None,
        BIAS=weights.bias is not None, GATE=activation is not None, SILU=activation == "silu", ADD=add, num_warps=4,
    )  # fmt: skip


def vector_tile(count: int, width: int, *, gated: bool) -> tuple[int, int]:
    """Outputs and inputs a program takes at a time: enough programs for 132 multiprocessors, 16 bytes per thread.

    A gate holds two sums per output: twice as many outputs would not fit into registers.
    """
    if gated:
        return 2, min(1024, _next(width))
    return (8 if count >= 32_768 else 4), min(1024, _next(width))


def vector(x: Tensor, weights: Weights, norm: Norm | None, activation: str | None) -> Tensor:
    count = len(weights.weight) // (1 if activation is None else 2)
    y = torch.empty(1, count, dtype=x.dtype if norm is None else working_type(weights), device=x.device)
    _vector(x, weights, y, norm, activation=activation, add=False)
    return y


def vector_add(x: Tensor, y: Tensor, weights: Weights) -> None:
    _vector(y, weights, x, None, activation=None, add=True)


def matrix(x: Tensor, weights: Weights) -> Tensor:
    count, width = weights.weight.shape
    y = x.new_empty(len(x), count)
    _linear.matrix[(triton.cdiv(len(x), 64), triton.cdiv(count, 64))](
        x, weights.weight, weights.scale, weights.bias, y, len(x), count, width,
        ROWS=64, OUT=64, IN=64, SCALED=weights.scale is not None, BIAS=weights.bias is not None,
        num_warps=4, num_stages=4,
    )  # fmt: skip
    return y


def sample(logits: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
    rows, vocabulary = logits.shape
    chunks = triton.cdiv(vocabulary, _CHUNK)
    found = torch.empty(rows, chunks, 4, dtype=torch.float32, device=logits.device)
    where = torch.empty(rows, chunks, dtype=torch.int32, device=logits.device)
    tokens = torch.empty(rows, dtype=torch.int32, device=logits.device)
    logprobs = torch.empty(rows, dtype=torch.float32, device=logits.device)
    _sampling.draw[(rows, chunks)](
        logits, noise.temperature, noise.words, found, where, vocabulary, chunks, CHUNK=_CHUNK, num_warps=8
    )
    _sampling.choose[(rows,)](found, where, tokens, logprobs, chunks, CHUNKS=_next(chunks), num_warps=1)
    return tokens, logprobs
