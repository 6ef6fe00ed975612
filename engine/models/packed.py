"""Dense weights laid out for the processor once, at loading: oneDNN's own order instead of rows.

Knows: torch's packed product and its types. Does not know: quantized weights, devices other than the processor, models.

Laid out so, a product reads every weight once, in order, whatever the rows of `x`: measured on a processor with AVX-512
and a model of 100 M parameters, a step of one row takes a third of the time of rows in plain order, one of sixteen two
thirds. And a row is computed by itself: in which multiples of rows (mostly one) is measured for every shape and number
of threads, and what is missing is added here. So is what makes a product of few rows quicker and changes no bit of it.
"""

import logging
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from engine.models import blocked
from engine.models.linear import ALL, Dense, DenseFactory, Linear, Table

_log = logging.getLogger(__name__)
_mkldnn: Any = torch.ops.mkldnn  # there are no public names for these
_MULTIPLES = (1, 2, 4, 8)
_SIZES = (1, 2, 3, 4, 5, 8, 16, 17, 32, 33)
_MORE = (*range(1, 34), 48, 64, 100, 128)  # where that costs little; their kernels, a millisecond each, are then made
_LITTLE = 2**22  # weights
_LARGE = 2**20  # weights; more come from memory, not from a cache,
_FEW = 4  # and then so many rows are up to a quarter quicker than fewer: oneDNN reads further ahead


class _Found(NamedTuple):
    """What was measured for a shape: a row comes out alike in batches of so many `multiple`s of rows.

    `seen`: the packed memory is what `blocked` takes it for. `piece`: so are its sums, in pieces of this size (0: not).
    """

    multiple: int
    seen: bool
    piece: int


class Packed:
    """`weight` [out, in], `bias` [out] or None, as `Dense`. The result is in the type of `x`."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._packed: Tensor = _mkldnn._reorder_linear_weight(weight)
        self._shape = (weight.shape[0], weight.shape[1])
        self._dtype = weight.dtype
        self.bias = bias
        self.bytes = weight.nbytes
        self.multiple = 1
        self._threads = 0
        self._lines: Tensor | None = None
        self._measure()

    def _measure(self) -> None:
        """Kernels differ with the number of threads, which is torch's and may change."""
        self._threads = torch.get_num_threads()
        found = _measured(*self._shape, self._dtype, self._threads)
        self._least = found.multiple
        self._few = _FEW if self._shape[0] * self._shape[1] > _LARGE else 1
        self._lines = blocked.lines(self._packed, *self._shape, self._dtype) if found.seen else None
        self._alone = None
        if self._lines is not None and found.piece:
            self._alone = blocked.Alone(self._lines, self._shape[0], found.piece)

    def __call__(self, x: Tensor) -> Tensor:
        if x.dtype == self._dtype:
            return self._multiplied(x, self.bias)
        y = self._multiplied(x.to(self._dtype), None).type_as(x)
        return y if self.bias is None else y + self.bias

    def _multiplied(self, x: Tensor, bias: Tensor | None) -> Tensor:
        if self._threads != torch.get_num_threads():
            self._measure()
        rows = x.shape[0]
        if rows == 1 and self._alone is not None:
            y = self._alone(x)
            return y if bias is None else y + bias
        wanted = -(-max(rows, self._few) // self._least) * self._least
        if rows == wanted:
            return _product(x, self._packed, bias)
        return _product(functional.pad(x, (0, 0, 0, wanted - rows)), self._packed, bias)[:rows]


class PackedTable(Packed):
    """Whose rows are looked up too: in the packed memory, or where that cannot be read in a copy kept beside."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__(weight)
        self._copy = weight if self._lines is None else None

    def rows(self, ids: Tensor) -> Tensor:
        if self._copy is not None:
            return functional.embedding(ids, self._copy)
        assert self._lines is not None
        return blocked.rows(self._lines, ids, self._shape[1])


class PackedFactory(DenseFactory):
    """All that is multiplied with is packed; what is only looked up (`dense`) is not."""

    def row(self, name: str, weight: Tensor, bias: Tensor | None, own: slice = ALL) -> Linear:  # noqa: ARG002  (as the others')
        plain = self.dense(weight[:, own], bias)
        return Packed(plain.weight, plain.bias)

    def table(self, name: str, weight: Tensor) -> Table:  # noqa: ARG002  (the same)
        return PackedTable(self.dense(weight).weight)


def packing(dtype: torch.dtype, device: torch.device) -> DenseFactory:
    """The factory for dense weights on `device`: packed where torch can and gets it right."""
    if device.type != "cpu":
        return DenseFactory(dtype, device)
    if not _works(dtype):
        _log.warning("weights stay in plain rows, which is slower: torch's packed product is missing or wrong here")
        return DenseFactory(dtype, device)
    return PackedFactory(dtype, device)


@cache
def _works(dtype: torch.dtype) -> bool:
    """Private names change between versions: compare with the definition before believing one."""
    if not torch.backends.mkldnn.is_available():
        return False
    generator = torch.Generator().manual_seed(0)
    weight, x = (torch.randn(rows, 64, generator=generator).to(dtype) for rows in (32, 4))
    try:
        found = Packed(weight)(x)
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return torch.allclose(found.float(), Dense(weight)(x).float(), rtol=0.02, atol=0.02)


@cache
def _measured(outputs: int, inputs: int, dtype: torch.dtype, threads: int) -> _Found:  # noqa: ARG001  (kernels differ)
    """With numbers of our own: what holds for them holds for all of this shape."""
    generator = torch.Generator().manual_seed(0)
    plain = torch.randn(outputs, inputs, generator=generator).to(dtype)
    weight = _mkldnn._reorder_linear_weight(plain)
    sizes = _SIZES if outputs * inputs > _LITTLE else _MORE
    x = torch.randn(sizes[-1], inputs, generator=generator).to(dtype)
    whole = _product(x, weight, None)
    kept = blocked.lines(weight, outputs, inputs, dtype)
    multiple = _multiple(x, weight, sizes, whole)
    if kept is None or not torch.equal(blocked.rows(kept, torch.arange(outputs), inputs), plain):
        return _Found(multiple, seen=False, piece=0)
    tried = blocked.PIECES if dtype == torch.float32 else ()
    alike = (piece for piece in tried if _alike(blocked.Alone(kept, outputs, piece), x, whole))
    return _Found(multiple, seen=True, piece=next(alike, 0))


def _alike(alone: blocked.Alone, x: Tensor, whole: Tensor) -> bool:
    """Whether rows alone have the bits that they have in company."""
    return all(torch.equal(alone(x[at : at + 1]), whole[at : at + 1]) for at in range(8))


def _multiple(x: Tensor, weight: Tensor, sizes: tuple[int, ...], whole: Tensor) -> int:
    """The least multiple of rows in whose batches a row comes out alike, wherever it stands; the largest if none."""
    alike = [
        size
        for size in sizes
        if torch.equal(_product(x[:size], weight, None), whole[:size])
        and torch.equal(_product(x[-size:], weight, None), whole[-size:])
    ]
    fits = (one for one in _MULTIPLES if all(size in alike for size in sizes if size % one == 0))
    return next(fits, _MULTIPLES[-1])


def _product(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    return _mkldnn._linear_pointwise.default(x, packed, bias, "none", [], "")
