"""Kernels run here in Triton's CPU interpreter, on tiny shapes: what they compute is tested, not how fast."""

from collections.abc import Callable

import pytest
import torch

from engine.blocks import BLOCK, blocks_for
from engine.kernels import Pages, Parts
from tests.unit.engine.kernels.scenes import Scene

pytest.importorskip("triton")

torch.set_num_threads(1)


@pytest.fixture
def make_scene() -> Callable[..., Scene]:
    def make(heads: int, kv_heads: int, size: int, lengths: list[tuple[int, int]], dtype: torch.dtype) -> Scene:
        torch.manual_seed(heads * 100 + size)
        needed = [blocks_for(length) for _, length in lengths]
        order = (torch.randperm(sum(needed) + 3) + 1).tolist()
        blocks = torch.zeros(len(lengths), max(needed) + 1, dtype=torch.int32)
        for at, count in enumerate(needed):
            blocks[at, :count] = torch.tensor([order.pop() for _ in range(count)])
        slots = (sum(needed) + 4) * BLOCK
        keys, values = torch.randn(2, slots, kv_heads, size, dtype=dtype).unbind(0)
        query = torch.randn(sum(count for count, _ in lengths), heads, size, dtype=dtype)
        room = sum(count * length for count, length in lengths)
        parts = Parts(torch.full((room, heads, size), float("nan")), torch.full((room, heads, 2), float("nan")))
        return Scene(query, Pages(keys, values), blocks, parts, lengths)

    return make
