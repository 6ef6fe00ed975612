"""The memory of a packed matrix, read where it lies: some of its rows, and one row times all of it.

Knows: the order in which oneDNN keeps a matrix and adds up its products on processors with AVX-512. Does not know:
where it does so (`engine.models.packed` compares to the bit before it believes), models.

64 outputs are a block; in it lies one line of 64 numbers per input, of bfloat16 one of 64 pairs per two inputs. So a
row times a block of float32 is the sum of its lines, each weighted by one number of the row: an embedding bag, whose
kernel reads ahead, where oneDNN's for a single row does not. It takes three quarters of the time at 5 M parameters.
"""

from ctypes import c_char
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_mkldnn: Any = torch.ops.mkldnn  # there are no public names for these
_WIDTH = 64  # outputs of a block
PIECES = (512, 1024)  # inputs that oneDNN adds up before it begins with the next: which, depends on the shape


def lines(packed: Tensor, outputs: int, inputs: int, dtype: torch.dtype) -> Tensor | None:
    """[blocks, inputs or more, 64, 1], of bfloat16 [blocks, pairs of inputs, 64, 2]: the memory of `packed` itself.

    Valid only while `packed` is. None where its size shows that it is kept in another order.
    """
    pair, blocks = 4 // dtype.itemsize, -(-outputs // _WIDTH)
    try:
        address, size = int(_mkldnn.data_ptr(packed)), int(_mkldnn._nbytes(packed))
    except AttributeError:  # an older torch
        return None
    kept, odd = divmod(size, blocks * _WIDTH * dtype.itemsize)
    if odd or kept < inputs or kept % pair:
        return None
    memory = (c_char * size).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).view(blocks, kept // pair, _WIDTH, pair)


def rows(kept: Tensor, ids: Tensor, inputs: int) -> Tensor:
    """Rows [T, inputs] of the matrix in `kept` lines for `ids` [T]; a copy."""
    if len(ids) == 1:  # whoever decodes alone; an index of many costs more than one row
        block, place = divmod(int(ids), _WIDTH)
        return kept[block, :, place].clone(memory_format=torch.contiguous_format).view(1, -1)[:, :inputs]
    return kept[ids // _WIDTH, :, ids % _WIDTH].flatten(1)[:, :inputs]


class Alone:
    """One row times a float32 matrix in `kept` lines; its sums are made of those of `piece` inputs each."""

    def __init__(self, kept: Tensor, outputs: int, piece: int) -> None:
        blocks, inputs = kept.shape[:2]
        self._table = kept.view(-1, _WIDTH)
        self._blocks, self._inputs, self._outputs = blocks, inputs, outputs
        self._pieces = -(-inputs // piece)
        self._lines = _counted(blocks * inputs)
        self._weights = torch.empty(blocks, inputs)  # of the lines: the row, once for each block
        self._all_weights = self._weights.view(-1)
        self._starts = (torch.arange(blocks)[:, None] * inputs + torch.arange(0, inputs, piece)).flatten().int()

    def __call__(self, x: Tensor) -> Tensor:
        """[1, outputs] for `x` [1, inputs]."""
        if missing := self._inputs - x.shape[1]:
            x = functional.pad(x, (0, missing))
        self._weights.copy_(x)
        found = torch.embedding_bag(self._table, self._lines, self._starts, False, 0, False, self._all_weights)[0]
        if self._pieces > 1:
            found = found.view(self._blocks, self._pieces, _WIDTH).sum(1)
        y = found.view(1, -1)
        return y if y.shape[1] == self._outputs else y[:, : self._outputs]


@cache
def _counted(size: int) -> Tensor:
    """0, 1, 2 … (int32): linears of one size share it."""
    return torch.arange(size, dtype=torch.int32)
