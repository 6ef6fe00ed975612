"""Attention over paged keys and values, and the packed batch that says who reads what.

Knows: tensors, slots, spans. Does not know: models beyond head counts, requests, where blocks come from.

Each sequence attends alone: measured faster on CPUs than padded batches, and the result of a row cannot depend on who
else is in the batch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from engine.blocks import BLOCK
from engine.scheduler import Work

_ROWS = 4  # float32 matrix products give the same row in any batch whose size is a multiple of this (measured)


@dataclass(slots=True)
class Span:
    """`count` rows from `start` belong to one sequence that is `length` tokens long after them.

    `where` are the slots of those `length` tokens: a slice when its blocks happen to be neighbours, else indices.
    """

    start: int
    count: int
    length: int
    where: slice | Tensor


@dataclass(slots=True)
class Batch:
    """T packed tokens: `ids`, `positions` and `slots` [T] (int64); `rows`: which of them need logits."""

    ids: Tensor
    positions: Tensor
    slots: Tensor
    rows: Tensor
    spans: list[Span]


class KVCache:
    """`layers[i]` [2, slots, G, D] float32: keys, values. Slot = block * 16 + offset; block 0 is for padding rows."""

    def __init__(self, layers: int, blocks: int, kv_heads: int, head: int) -> None:
        # Zeros come from untouched pages: memory is used only as blocks are.
        self.layers = [torch.zeros(2, (blocks + 1) * BLOCK, kv_heads, head) for _ in range(layers)]

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """`key` and `value` [T, G, D] go to `slots` [T]."""
        keys, values = self.layers[layer].unbind(0)
        keys.index_copy_(0, slots, key)
        values.index_copy_(0, slots, value)


def attend(query: Tensor, cache: Tensor, spans: list[Span], window: int) -> Tensor:
    """Causal attention of `query` [T, H, D] over `cache` [2, slots, G, D], grouped heads. Returns [T, H * D]."""
    tokens, heads, head = query.shape
    groups = cache.shape[2]
    out = query.new_zeros(tokens, heads, head)
    for span in spans:
        first = max(0, span.length - span.count + 1 - window) if window else 0
        keys, values = _gather(cache, span, first)
        rows = query[span.start : span.start + span.count]
        if span.count == 1:  # the heads of a group are independent queries to the same keys
            result = functional.scaled_dot_product_attention(rows.view(1, groups, heads // groups, head), keys, values)
            out[span.start] = result.view(heads, head)
        else:
            mask = _mask(span, first, window)
            result = functional.scaled_dot_product_attention(
                rows.transpose(0, 1)[None], keys, values, attn_mask=mask, enable_gqa=heads != groups
            )
            out[span.start : span.start + span.count] = result[0].transpose(0, 1)
    return out.view(tokens, heads * head)


def _gather(cache: Tensor, span: Span, first: int) -> tuple[Tensor, Tensor]:
    """Keys and values [1, G, length - first, D] of one sequence."""
    if isinstance(span.where, slice):
        both = cache[:, span.where.start + first : span.where.stop]
    else:
        both = cache.index_select(1, span.where[first:])
    keys, values = both.transpose(1, 2).unbind(0)
    return keys[None], values[None]


def _mask(span: Span, first: int, window: int) -> Tensor:
    """Which keys each row sees [count, length - first]."""
    rows = torch.arange(span.length - span.count, span.length)[:, None]
    keys = torch.arange(first, span.length)
    seen = keys <= rows
    return seen & (keys > rows - window) if window else seen


def pack(plan: list[Work]) -> Batch:
    """The tensors of one step. T is padded to a multiple of `_ROWS`; padding writes to block 0 and is never read."""
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    rows: list[int] = []
    spans: list[Span] = []
    for sequence, count in plan:
        begin, end = sequence.computed, sequence.computed + count
        spans.append(Span(len(ids), count, end, _where(sequence.blocks, end)))
        ids += sequence.tokens[begin:end]
        positions += range(begin, end)
        slots += [sequence.blocks[at // BLOCK] * BLOCK + at % BLOCK for at in range(begin, end)]
        if end == len(sequence.tokens):
            rows.append(len(ids) - 1)
    padding = -len(ids) % _ROWS
    ids += [0] * padding
    positions += [0] * padding
    slots += range(padding)
    rows += [0] * (-len(rows) % _ROWS)
    tensor = torch.tensor
    return Batch(tensor(ids), tensor(positions), tensor(slots), tensor(rows, dtype=torch.int64), spans)


def _where(blocks: list[int], length: int) -> slice | Tensor:
    used = blocks[: -(-length // BLOCK)]
    first = used[0]
    if all(block == first + at for at, block in enumerate(used)):
        return slice(first * BLOCK, first * BLOCK + length)
    slots = torch.tensor(used)[:, None] * BLOCK + torch.arange(BLOCK)
    return slots.flatten()[:length]
