"""Attention over paged keys and values, and the packed batch that says who reads what.

Knows: tensors, slots, tiles, the types keys and values are kept in. Does not know: models beyond head counts, requests,
where blocks come from.

An answer must not depend on who else is in the batch, on how its prompt was cut into chunks, or on what was found in
the prefix cache: a cached answer stands for a fresh one only then. So a row is always computed over the same shape:
rows of the prompt attend in tiles of one block, aligned to it; generated rows attend one by one, also when they are
computed again after a preemption; and the keys of a tile are padded to a length that follows from its position alone.
Tiles of equal shape share one call, which computes each of them by itself.
"""

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from engine.blocks import BLOCK, blocks_for
from engine.scheduler import Work

_PLAIN = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_SCALED = {"int8": (torch.int8, 127.0), "fp8": (torch.float8_e4m3fn, 448.0)}  # type, largest value
_NOWHERE = BLOCK - 1  # the last slot of block 0, which nobody writes: what keys are padded with
_NEVER, _ALWAYS = np.float32("-inf"), np.float32(0)
_LEAST = 64  # keys that are read at least
_LONG = 512  # keys from which on the tiles of one sequence read them together
_AT_ONCE = 4096  # keys that one call reads at most, unless one tile alone needs more: they are copied into caches


class Tile(NamedTuple):
    """`rows` rows of the batch from `start`; the first is at `position` of its sequence."""

    start: int
    rows: int
    position: int


@dataclass(slots=True)
class Span:
    """One sequence's part in a batch: the `blocks` that hold its tokens so far, the rows that attend to them."""

    blocks: list[int]
    tiles: list[Tile]


class Group(NamedTuple):
    """n tiles of r rows each, whose keys are padded to P.

    `rows`: rows of the batch [n * r], None when they are all there are. `slots` [n * P]: where their keys are, [P] when
    all tiles share them. `mask` [n, 1, r, P]: 0 where a row sees a key, else minus infinity.
    """

    rows: Tensor | None
    slots: Tensor
    mask: Tensor


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
    _groups: dict[int, list[Group]] = field(default_factory=dict[int, list[Group]])

    def groups(self, window: int) -> list[Group]:
        """The tiles of layers that look `window` tokens back (0: all), alike ones together."""
        found = self._groups.get(window)
        if found is None:
            found = self._groups[window] = _group(self.spans, window, self.ids)
        return found


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
        slots = (blocks + 1) * BLOCK
        self.dtype = dtype
        kind = _PLAIN.get(dtype) or _SCALED[dtype][0]
        self.layers = [_zeros((2, slots, kv_heads, head), kind, device) for _ in range(layers)]
        self._halves = [(_bytes(both) if dtype in _SCALED else both).unbind(0) for both in self.layers]
        scaled = layers if dtype in _SCALED else 0
        self.scales = [_zeros((2, slots, kv_heads), torch.float32, device) for _ in range(scaled)]

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
            kept = self._halves[layer][at]
            if self.scales:
                kind, largest = _SCALED[self.dtype]
                scale = given.abs().amax(-1) / largest
                self.scales[layer][at].index_copy_(0, slots, scale)
                steps = given / scale.masked_fill(scale == 0, 1)[..., None]
                given = _bytes((steps.round() if kind == torch.int8 else steps).to(kind))
            kept.index_copy_(0, slots, given if given.dtype == kept.dtype else given.to(kept.dtype))

    def attend(self, layer: int, query: Tensor, batch: Batch, look: Look) -> Tensor:
        groups = batch.groups(look.window)
        if len(groups) == 1 and groups[0].rows is None:
            return self._attend(layer, query, groups[0], look)
        out = query.new_zeros(query.shape[0], query.shape[1] * query.shape[2])
        for group in groups:
            assert group.rows is not None
            out.index_copy_(0, group.rows, self._attend(layer, query.index_select(0, group.rows), group, look))
        return out

    def _attend(self, layer: int, query: Tensor, group: Group, look: Look) -> Tensor:
        """The tiles of a group: `query` [n * r, H, D], and the result as rows of H * D."""
        (count, _, rows, length), (_, heads, head) = group.mask.shape, query.shape
        both = self._read(layer, group.slots)
        groups = both.shape[2]
        both = both.view(2, -1, length, groups, head).transpose(2, 3)
        if both.shape[1] != count:
            both = both.expand(-1, count, -1, -1, -1)
        keys, values = both.unbind(0)
        if rows == 1:  # the heads that share keys are so many queries to them
            queries = query.view(count, groups, -1, head)
        else:
            queries = query.view(count, rows, heads, head).transpose(1, 2)
        if look.softcap:
            result = _softcapped(queries, keys, values, group.mask, look)
        else:
            result = functional.scaled_dot_product_attention(
                queries, keys, values, attn_mask=group.mask, scale=look.scale, enable_gqa=rows > 1
            )
        return (result if rows == 1 else result.transpose(1, 2)).reshape(count * rows, heads * head)

    def _read(self, layer: int, slots: Tensor) -> Tensor:
        """Keys and values [2, slots, G, D] in float32."""
        kept = self.layers[layer]
        if not self.scales:
            return kept.index_select(1, slots).float()
        found = _bytes(kept).index_select(1, slots).view(kept.dtype).float()
        return found * self.scales[layer].index_select(1, slots)[..., None]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    """On a processor numpy's: they come from untouched pages, so memory is used only as blocks are. torch's do not."""
    if torch.device(device).type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)).view(dtype).view(shape)


def _bytes(tensor: Tensor) -> Tensor:
    """The same memory as int8."""
    return tensor.view(torch.int8)


def _softcapped(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, look: Look) -> Tensor:
    """Attention whose scores are bent to stay within the cap (Gemma 2, arXiv 2408.00118): as `queries`.

    Tile by tile: a batched product does not promise that each matrix comes out as it would alone.
    """
    groups, head, rows = keys.shape[1], queries.shape[3], mask.shape[2]
    results: list[Tensor] = []
    for tile, key, value, hidden in zip(queries, keys, values, mask, strict=True):
        scores = tile.reshape(groups, -1, head) @ key.transpose(1, 2)
        bent = torch.tanh(scores * (look.scale / look.softcap)) * look.softcap
        seen = (bent.view(-1, rows, key.shape[1]) + hidden).view(bent.shape)
        results.append((seen.softmax(-1) @ value).view(tile.shape))
    return torch.stack(results)


def _group(spans: list[Span], window: int, ids: Tensor) -> list[Group]:
    """Tiles of equal shape together, on the device of `ids` [T]."""
    alike: dict[tuple[int, int, int | None], list[tuple[Span, Tile]]] = {}
    for number, span in enumerate(spans):
        for tile in span.tiles:
            padded = _padded(tile.position + tile.rows - _first(tile, window))
            share = number if tile.rows > 1 and padded >= _LONG and not window else None
            alike.setdefault((tile.rows, padded, share), []).append((span, tile))
    groups: list[Group] = []
    for (rows, padded, share), tiles in alike.items():
        most = max(1, _AT_ONCE * (1 if share is None else BLOCK) // padded)
        for at in range(0, len(tiles), most):
            made = _made(tiles[at : at + most], rows, padded, window)
            groups.append(made if share is None else made._replace(slots=made.slots[-padded:]))
    if ids.is_cuda:
        groups = [Group(*(part.to(ids.device) for part in group if part is not None)) for group in groups]
    whole = len(groups) == 1 and groups[0].mask.shape[0] * groups[0].mask.shape[2] == len(ids)
    return [groups[0]._replace(rows=None)] if whole else groups


def _first(tile: Tile, window: int) -> int:
    """Position of the first key that is read: where a block begins."""
    return max(0, tile.position + 1 - window) // BLOCK * BLOCK if window else 0


def _padded(keys: int) -> int:
    """Up to a multiple of 64, and of an eighth of the power of two below: few shapes, little waste."""
    step = max(_LEAST, (1 << keys.bit_length()) >> 4)
    return -(-keys // step) * step


def _made(tiles: list[tuple[Span, Tile]], rows: int, padded: int, window: int) -> Group:
    slots = np.full((len(tiles), padded), _NOWHERE)
    for at, (span, tile) in enumerate(tiles):
        first, end = _first(tile, window), tile.position + tile.rows
        slots[at, : end - first] = _slots(tuple(span.blocks))[first:end]
    if rows == 1 and not window:
        hidden = slots[:, None] == _NOWHERE
    else:
        begins = np.array([(tile.position, _first(tile, window)) for _, tile in tiles])[..., None]
        positions, keys = (begins[:, :1] + np.arange(rows)).mT, begins[:, 1:] + np.arange(padded)
        hidden = (keys > positions) | (keys <= positions - (window or padded))
    mask = np.where(hidden, _NEVER, _ALWAYS)[:, None]
    at = (np.array([tile.start for _, tile in tiles])[:, None] + np.arange(rows)).ravel()
    return Group(torch.from_numpy(at), torch.from_numpy(slots.ravel()), torch.from_numpy(mask))


@lru_cache(maxsize=64)
def _slots(blocks: tuple[int, ...]) -> NDArray[np.int64]:
    """Of the tokens in these blocks. A sequence asks for the same ones until it fills another."""
    return (np.array(blocks)[:, None] * BLOCK + np.arange(BLOCK)).ravel()


def pack(plan: list[Work], multiple: int = 4) -> Batch:
    """The tensors of one step. T is padded to a `multiple` (the decoder's); padding writes to block 0, never read."""
    assert multiple <= _NOWHERE
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    rows: list[int] = []
    spans: list[Span] = []
    for work in plan:
        sequence, begin, end = work.sequence, work.begin, work.end
        spans.append(Span(sequence.blocks[: blocks_for(end)], _tiles(len(ids), begin, end, sequence.prompt)))
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
