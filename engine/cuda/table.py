"""Which blocks hold which sequence, on the device: a row per sequence that only changes where the sequence grew.

Knows: sequences' block lists, rows. Does not know: plans, kernels.

Copying every list at every step would be megabytes at long contexts. A row is only a copy: losing one costs time, not
correctness, so rows of sequences that have ended need no farewell; the least recently used row is taken.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from engine.scheduler import Work


class BlockTable:
    """`blocks` [rows, width] int32 on `device`; `rows` is at least the most sequences of a step."""

    def __init__(self, rows: int, width: int, device: torch.device) -> None:
        self.blocks = torch.zeros(rows, width, dtype=torch.int32, device=device)
        self._free = list(range(rows))
        self._known: OrderedDict[Hashable, tuple[int, list[int]]] = OrderedDict()

    def update(self, plan: Sequence[Work]) -> list[int]:
        """Bring the device up to date; the row of each sequence of the plan."""
        places: list[int] = []
        where: list[int] = []
        values: list[int] = []
        width = self.blocks.shape[1]
        for work in plan:
            place, known = self._row(work.sequence.key)
            blocks = work.sequence.blocks
            same = len(known) if blocks[: len(known)] == known else 0
            if same < len(blocks):
                where += range(place * width + same, place * width + len(blocks))
                values += blocks[same:]
                known[same:] = blocks[same:]
            places.append(place)
        if where:
            self._write(where, values)
        return places

    def _row(self, key: Hashable) -> tuple[int, list[int]]:
        if key in self._known:
            self._known.move_to_end(key)
        elif self._free:
            self._known[key] = (self._free.pop(), [])
        else:
            _, (place, _) = self._known.popitem(last=False)
            self._known[key] = (place, [])
        return self._known[key]

    def _write(self, where: list[int], values: list[int]) -> None:
        pinned = self.blocks.device.type == "cuda"
        host = torch.tensor([where, values], dtype=torch.int64)
        moved: Tensor = (host.pin_memory() if pinned else host).to(self.blocks.device, non_blocking=True)
        self.blocks.view(-1).index_copy_(0, moved[0], moved[1].int())
