"""Attention over paged keys and values, and the packed batch that says who reads what.

Knows: tensors, slots, tiles, the types keys and values are kept in. Does not know: models beyond head counts, requests,
where blocks come from.

An answer must not depend on who else is in the batch, on how its prompt was cut into chunks, or on what was found in
the prefix cache: a cached answer stands for a fresh one only then. So every row is always computed in the same company.
Each sequence attends alone (measured faster on CPUs than padded batches, too); rows of the prompt attend in tiles of
one block, aligned to it; generated rows attend one by one, also when they are computed again after a preemption.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from engine.blocks import BLOCK, blocks_for
from engine.scheduler import Work

_PLAIN = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_SCALED = {"int8": (torch.int8, 127.0), "fp8": (torch.float8_e4m3fn, 448.0)}  # type, largest value


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
    """T packed tokens: `ids`, `positions` and `slots` [T] (int64); `rows`: which of them need logits.

    `length`: the highest position and one.
    """

    ids: Tensor
    positions: Tensor
    slots: Tensor
    rows: Tensor
    spans: list[Span]
    length: int


class Look(NamedTuple):
    """How a layer attends: `window` tokens back (0: all), scores times `scale`, then softcapped (0: not)."""

    window: int
    scale: float
    softcap: float


class Cache(Protocol):
    """What a decoder needs of keys and values. Other devices bring their own."""

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """`key` and `value` [T, G, D] go to `slots` [T]."""
        ...

    def attend(self, layer: int, query: Tensor, batch: Batch, look: Look) -> Tensor:
        """Causal attention of `query` [T, H, D] over what was written, grouped heads. Returns [T, H * D]."""
        ...


class KVCache:
    """Keys and values of all layers. Slot = block * 16 + offset; block 0 is for padding rows.

    `layers[i]` [2, slots, G, D] in `dtype`. int8 and fp8 (e4m3) have beside it `scales[i]` [2, slots, G]: the largest
    magnitude of each token's head is the largest number the type has. Attention itself is always float32 here.
    """

    def __init__(
        self, layers: int, blocks: int, kv_heads: int, head: int, dtype: str = "float32", device: str = "cpu"
    ) -> None:
        # Zeros come from untouched pages: memory is used only as blocks are.
        slots = (blocks + 1) * BLOCK
        self.dtype = dtype
        kind = _PLAIN.get(dtype) or _SCALED[dtype][0]
        self.layers = [torch.zeros(2, slots, kv_heads, head, dtype=kind, device=device) for _ in range(layers)]
        scaled = layers if dtype in _SCALED else 0
        self.scales = [torch.zeros(2, slots, kv_heads, device=device) for _ in range(scaled)]

    @staticmethod
    def token_bytes(layers: int, kv_heads: int, head: int, dtype: str) -> int:
        """Memory that one token takes."""
        each = head * _PLAIN[dtype].itemsize if dtype in _PLAIN else head * _SCALED[dtype][0].itemsize + 4
        return 2 * layers * kv_heads * each

    def tensors(self) -> list[Tensor]:
        """Everything, each with slots as its second dimension: what moves when blocks move to another engine."""
        return [*self.layers, *self.scales]

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        for at, given in enumerate((key, value)):
            kept = self.layers[layer][at]
            if self.scales:
                kind, largest = _SCALED[self.dtype]
                scale = given.abs().amax(-1) / largest
                self.scales[layer][at].index_copy_(0, slots, scale)
                steps = given / scale.masked_fill(scale == 0, 1)[..., None]
                given = (steps.round() if kind == torch.int8 else steps).to(kind)
            kept, given = (_bytes(kept), _bytes(given)) if self.scales else (kept, given.to(kept.dtype))
            kept.index_copy_(0, slots, given)

    def attend(self, layer: int, query: Tensor, batch: Batch, look: Look) -> Tensor:
        tokens, heads, head = query.shape
        out = query.new_zeros(tokens, heads, head)
        for span in batch.spans:
            first = max(0, span.tiles[0].position + 1 - look.window) if look.window else 0
            keys, values = self._read(layer, span.where, first)
            for tile in span.tiles:
                _attend(query, keys, values, tile._replace(position=tile.position - first), look, out)
        return out.view(tokens, heads * head)

    def _read(self, layer: int, where: slice | Tensor, first: int) -> tuple[Tensor, Tensor]:
        """Keys and values [G, length - first, D] in float32."""

        def part(of: Tensor) -> Tensor:
            if isinstance(where, slice):
                return of[:, where.start + first : where.stop]
            return of.index_select(1, where[first:])

        if not self.scales:
            both = part(self.layers[layer]).float()
        else:
            both = part(_bytes(self.layers[layer])).view(self.layers[layer].dtype).float()
            both = both * part(self.scales[layer])[..., None]
        keys, values = both.transpose(1, 2).unbind(0)
        return keys, values


def _bytes(tensor: Tensor) -> Tensor:
    """The same memory as int8."""
    return tensor.view(torch.int8)


def _attend(query: Tensor, keys: Tensor, values: Tensor, tile: Tile, look: Look, out: Tensor) -> None:
    """One tile of one sequence; the result goes to the same rows of `out`. Its position counts from the first key."""
    start, rows, position = tile
    groups, (_, heads, head) = keys.shape[0], query.shape
    first = max(0, position + 1 - look.window) if look.window else 0
    end = position + rows
    keys, values = keys[None, :, first:end], values[None, :, first:end]
    mask = None if rows == 1 else _mask(position, rows, first, look.window)
    if rows == 1 and not look.softcap:  # the heads of a group are independent queries to the same keys
        queries = query[start].view(1, groups, heads // groups, head)
        result = functional.scaled_dot_product_attention(queries, keys, values, scale=look.scale)
        out[start] = result.view(heads, head)
        return
    queries = query[start : start + rows].transpose(0, 1)[None]
    if look.softcap:
        result = _softcapped(queries, keys, values, mask, look)
    else:
        result = functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, scale=look.scale, enable_gqa=heads != groups
        )
    out[start : start + rows] = result[0].transpose(0, 1)


def _softcapped(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, look: Look) -> Tensor:
    """Attention whose scores are bent to stay within the cap (Gemma 2, arXiv 2408.00118): [1, H, rows, D]."""
    _, heads, rows, head = queries.shape
    groups = keys.shape[1]
    grouped = queries.reshape(1, groups, heads // groups * rows, head)
    scores = torch.tanh(grouped @ keys.transpose(-1, -2) * (look.scale / look.softcap)) * look.softcap
    if mask is not None:
        scores = scores.view(1, groups, -1, rows, mask.shape[-1]).masked_fill(~mask, float("-inf"))
        scores = scores.view(1, groups, -1, mask.shape[-1])
    return (scores.softmax(-1) @ values).view(1, heads, rows, head)


def _mask(position: int, rows: int, first: int, window: int) -> Tensor:
    """Which keys, from `first` on, each row sees [rows, position + rows - first]."""
    at = torch.arange(position, position + rows)[:, None]
    keys = torch.arange(first, position + rows)
    return (keys <= at) & (keys > at - window) if window else keys <= at


def pack(plan: list[Work], multiple: int = 4) -> Batch:
    """The tensors of one step. T is padded to a `multiple` (the decoder's); padding writes to block 0, never read."""
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    rows: list[int] = []
    spans: list[Span] = []
    for work in plan:
        sequence, begin, end = work.sequence, work.begin, work.end
        spans.append(Span(_where(sequence.blocks, end), _tiles(len(ids), begin, end, sequence.prompt)))
        ids += work.ids()
        positions += range(begin, end)
        slots += [sequence.blocks[at // BLOCK] * BLOCK + at % BLOCK for at in range(begin, end)]
        rows += range(len(ids) - work.wanted, len(ids))
    padding = -len(ids) % multiple
    ids += [0] * padding
    positions += [0] * padding
    slots += range(padding)
    rows += [0] * (-len(rows) % multiple)
    tensor = torch.tensor
    length = max((work.end for work in plan), default=0)
    return Batch(tensor(ids), tensor(positions), tensor(slots), tensor(rows, dtype=torch.int64), spans, length)


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
