"""Everything a step tells the device, as one block of 32-bit words: written by the host, copied at once.

Knows: plans, rows to draw, where each field lies. Does not know: kernels, models, graphs.

A step's few hundred numbers in ten small copies would cost more than the copies' bytes; and a CUDA graph reads the same
addresses each time. So a frame has a fixed layout for its sizes, and the device's frame is a mirror of the host's.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.blocks import BLOCK
from engine.kernels import NO_SPLIT, TILE_FIELDS, Noise, Tiles
from engine.sampler import GREEDY_BELOW, Row, words
from engine.scheduler import Work

_ALIGNED = 4  # words: fields begin at multiples of 16 bytes


class Cut(NamedTuple):
    """How attention is cut into tiles: keys of single rows as in engine.kernels.Tiles, `prompt` rows of a prompt.

    `room`: partial results that fit beside each other. Rows that need more of them attend in turns.
    """

    split: int = NO_SPLIT
    programs: int = 1
    prompt: int = 16
    room: int = NO_SPLIT

    def parts(self, length: int) -> int:
        """Partial results of a single row that sees `length` keys: none where nothing is split."""
        return 0 if self.split == NO_SPLIT else -(-length // self.split)


class Sizes(NamedTuple):
    """Room in a frame: rows of the step, logits rows, tiles of single rows, tiles of prompts."""

    rows: int
    picks: int
    singles: int
    prompts: int = 0

    def bounds(self) -> list[tuple[int, int]]:
        """Where each field of a frame begins and ends, in words."""
        tiles = (TILE_FIELDS * self.singles, TILE_FIELDS * self.prompts)
        lengths = (self.rows, self.rows, self.rows, self.picks, self.picks, 2 * self.picks, *tiles)
        starts = accumulate((-(-length // _ALIGNED) * _ALIGNED for length in lengths), initial=0)
        return [(start, start + length) for start, length in zip(starts, lengths, strict=False)]


class Inputs(NamedTuple):
    """The device's view. `ids`, `positions`, `slots` [T]; `rows` [R]: which need logits. All int32."""

    ids: Tensor
    positions: Tensor
    slots: Tensor
    rows: Tensor
    tiles: tuple[Tiles, ...]
    noise: Noise


class Frame:
    """Host words (pinned where the device is a GPU) and their mirror, `inputs`."""

    def __init__(self, sizes: Sizes, device: torch.device, cut: Cut) -> None:
        self.sizes = sizes
        self.cut = cut
        bounds = sizes.bounds()
        self._host = torch.zeros(bounds[-1][1], dtype=torch.int32, pin_memory=device.type == "cuda")
        self._device = torch.zeros_like(self._host, device=device)
        words = self._host.numpy()
        self._fields = [words[low:high] for low, high in bounds]
        ids, positions, slots, rows, heat, noise, singles, prompts = (self._device[low:high] for low, high in bounds)
        tiles = [Tiles(singles.view(-1, TILE_FIELDS), 1, cut.split, cut.programs)] if sizes.singles else []
        tiles += [Tiles(prompts.view(-1, TILE_FIELDS), cut.prompt)] if sizes.prompts else []
        drawn = Noise(heat.view(torch.float32), noise.view(-1, 2))
        self.inputs = Inputs(ids, positions, slots, rows, tuple(tiles), drawn)

    def fill(self, plan: Sequence[Work], rows: Sequence[Row], places: Sequence[int]) -> None:
        """Write a plan that fits, and start the copy. `places`: each sequence's row in the table of blocks.

        What is left over writes to block 0, is drawn from row 0, and attends to nothing.
        """
        ids, positions, slots, wanted, heat, noise, singles, prompts = self._fields
        packed = pack(plan)
        for field, values in zip((ids, positions, slots, wanted), packed, strict=True):
            field[: len(values)] = values
            field[len(values) :] = 0
        tiles = single_tiles(plan, places, self.cut)
        _put(singles, tiles)
        self._take_turns([at for at, tile in enumerate(tiles) if at and tile[4] == 0 and self.cut.split != NO_SPLIT])
        _put(prompts, prompt_tiles(plan, places, self.cut))
        temperatures = [row.sampling.temperature for row in rows]
        heat.view(np.float32)[: len(rows)] = [t if t >= GREEDY_BELOW else 0.0 for t in temperatures]
        heat[len(rows) :] = 0
        for at, row in enumerate(rows):
            if row.sampling.temperature >= GREEDY_BELOW:
                noise.view(np.uint32)[2 * at : 2 * at + 2] = words(row.seed, row.position)
        self._device.copy_(self._host, non_blocking=True)

    def _take_turns(self, starts: list[int]) -> None:
        """Single rows from each of `starts` on begin with the room for partial results anew: a launch of their own.

        A recorded frame has one launch, and is only filled with what fits into the room at once.
        """
        if starts:
            singles, *prompts = self.inputs.tiles
            bounds = zip([0, *starts], [*starts, len(singles.table)], strict=True)
            turns = [singles._replace(table=singles.table[low:high]) for low, high in bounds]
            self.inputs = self.inputs._replace(tiles=(*turns, *prompts))


def pack(plan: Sequence[Work]) -> tuple[list[int], list[int], list[int], list[int]]:
    """Ids, positions and slots of all rows, and which rows need logits."""
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    wanted: list[int] = []
    for work in plan:
        begin, end, blocks = work.begin, work.end, work.sequence.blocks
        ids += work.ids()
        positions += range(begin, end)
        slots += [blocks[at // BLOCK] * BLOCK + at % BLOCK for at in range(begin, end)]
        wanted += range(len(ids) - work.wanted, len(ids))
    return ids, positions, slots, wanted


def sizes_of(plan: Sequence[Work], cut: Cut) -> Sizes:
    """The smallest frame for a plan."""
    places = [0] * len(plan)
    rows, picks = sum(work.tokens for work in plan), sum(work.wanted for work in plan)
    return Sizes(rows, picks, len(single_tiles(plan, places, cut)), len(prompt_tiles(plan, places, cut)))


def single_tiles(plan: Sequence[Work], places: Sequence[int], cut: Cut) -> list[list[int]]:
    """Generated rows attend one by one, also when they are computed again: so a row is the same in every company.

    Where the room for partial results is full, it begins anew.
    """
    tiles: list[list[int]] = []
    start = part = 0
    for work, place in zip(plan, places, strict=True):
        for position in range(max(work.begin, work.sequence.prompt), work.end):
            parts = cut.parts(position + 1)
            part = 0 if part + parts > cut.room else part
            tiles.append([place, start + position - work.begin, 1, position, part])
            part += parts
        start += work.tokens
    return tiles


def prompt_tiles(plan: Sequence[Work], places: Sequence[int], cut: Cut) -> list[list[int]]:
    """Rows of prompts attend together."""
    tiles: list[list[int]] = []
    start = 0
    for work, place in zip(plan, places, strict=True):
        end = min(work.end, work.sequence.prompt)
        for position in range(work.begin, end, cut.prompt):
            rows = min(cut.prompt, end - position)
            tiles.append([place, start + position - work.begin, rows, position, 0])
        start += work.tokens
    return tiles


def _put(field: NDArray[Any], tiles: list[list[int]]) -> None:
    table = field.reshape(-1, TILE_FIELDS)
    table[len(tiles) :, 0] = -1
    if tiles:
        table[: len(tiles), :5] = tiles
