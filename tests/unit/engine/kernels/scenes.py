"""Sequences whose keys lie in scattered blocks, cut into tiles either way."""

from typing import NamedTuple

import torch
from torch import Tensor

from engine.kernels import NO_SPLIT, TILE_FIELDS, Pages, Parts, Tiles


def relative(result: Tensor, truth: Tensor) -> float:
    """||result - truth|| / ||truth||; not a number counts as infinitely wrong."""
    error = float((result.double() - truth.double()).norm() / truth.double().norm())
    return error if error == error else float("inf")


class Scene(NamedTuple):
    """`lengths`: rows in the batch and tokens so far of each sequence. Room for partial results holds no number yet."""

    query: Tensor
    pages: Pages
    blocks: Tensor
    parts: Parts
    lengths: list[tuple[int, int]]

    def tiles(self, rows: int, split: int = NO_SPLIT, programs: int = 1) -> Tiles:
        table: list[list[int]] = []
        start = part = 0
        for sequence, (count, length) in enumerate(self.lengths):
            for at in range(0, count, rows):
                position = length - count + at
                table.append([sequence, start + at, min(rows, count - at), position, part, 0, 0, 0])
                part += -(-length // split)
            start += count
        table.append([-1] + [0] * (TILE_FIELDS - 1))
        return Tiles(torch.tensor(table, dtype=torch.int32), rows, split, programs)
