"""Attention over paged keys and values, and the packed batch that says who reads what.

Knows: tensors, slots, tiles. Does not know: models beyond head counts, requests, where blocks come from.

An answer must not depend on who else is in the batch, on how its prompt was cut into chunks, or on what was found in
the prefix cache: a cached answer stands for a fresh one only then. So every row is always computed in the same company.
Each sequence attends alone (measured faster on CPUs than padded batches, too); rows of the prompt attend in tiles of
one block, aligned to it; generated rows attend one by one, also when they are computed again after a preemption.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from engine.blocks import BLOCK, blocks_for
from engine.scheduler import Work

_ROWS = 4  # matrix products give the same row in any batch of at least this many (measured, and checked at start)


class Tile(NamedTuple):
    """`rows` rows of the batch from `start`; the first is at `position` of its sequence."""

    start: int
    rows: int
    position: int


@dataclass(slots=True)
class Span:
    """One sequence's part in a batch. `where`: slots of all its tokens so far, a slice if its blocks are neighbours."""

    where: slice | Tensor
    tiles: list[Tile]


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
    out = query.new_zeros(tokens, heads, head)
    for span in spans:
        both = cache[:, span.where] if isinstance(span.where, slice) else cache.index_select(1, span.where)
        keys, values = both.transpose(1, 2).unbind(0)  # [G, length, D] each
        for tile in span.tiles:
            _attend(query, keys, values, tile, window, out)
    return out.view(tokens, heads * head)


def _attend(query: Tensor, keys: Tensor, values: Tensor, tile: Tile, window: int, out: Tensor) -> None:
    """One tile of one sequence; the result goes to the same rows of `out`."""
    start, rows, position = tile
    groups, (_, heads, head) = keys.shape[0], query.shape
    first = max(0, position + 1 - window) if window else 0
    end = position + rows
    keys, values = keys[None, :, first:end], values[None, :, first:end]
    if rows == 1:  # the heads of a group are independent queries to the same keys
        queries = query[start].view(1, groups, heads // groups, head)
        out[start] = functional.scaled_dot_product_attention(queries, keys, values).view(heads, head)
        return
    queries = query[start : start + rows].transpose(0, 1)[None]
    mask = _mask(position, rows, first, window)
    result = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=heads != groups)
    out[start : start + rows] = result[0].transpose(0, 1)


def _mask(position: int, rows: int, first: int, window: int) -> Tensor:
    """Which keys, from `first` on, each row sees [rows, position + rows - first]."""
    at = torch.arange(position, position + rows)[:, None]
    keys = torch.arange(first, position + rows)
    return (keys <= at) & (keys > at - window) if window else keys <= at


def pack(plan: list[Work]) -> Batch:
    """The tensors of one step. T is padded to a multiple of `_ROWS`; padding writes to block 0 and is never read."""
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    rows: list[int] = []
    spans: list[Span] = []
    for sequence, count in plan:
        begin, end = sequence.computed, sequence.computed + count
        spans.append(Span(_where(sequence.blocks, end), _tiles(len(ids), begin, end, sequence.prompt)))
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


def _tiles(start: int, begin: int, end: int, prompt: int) -> list[Tile]:
    """Cut positions `begin` to `end` of one sequence, whose first row in the batch is `start`."""
    tiles: list[Tile] = []
    at = begin
    while at < end:
        stop = min((at // BLOCK + 1) * BLOCK, end, prompt) if at < prompt else at + 1
        tiles.append(Tile(start + at - begin, stop - at, at))
        at = stop
    return tiles


def _where(blocks: list[int], length: int) -> slice | Tensor:
    used = blocks[: blocks_for(length)]
    first = used[0]
    if all(block == first + at for at, block in enumerate(used)):
        return slice(first * BLOCK, first * BLOCK + length)
    slots = torch.tensor(used)[:, None] * BLOCK + torch.arange(BLOCK)
    return slots.flatten()[:length]
