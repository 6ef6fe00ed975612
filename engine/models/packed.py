"""Dense weights laid out for the processor once, at loading: oneDNN's own order instead of rows.

Knows: torch's packed product and its types. Does not know: quantized weights, devices other than the processor, models.

Laid out so, a product reads every weight once, in order, whatever the rows of `x`: measured on a processor with AVX-512
and a model of 100 M parameters, a step of one row takes a third of the time of rows in plain order, one of sixteen two
thirds. And a row is computed by itself: in which multiples of rows (mostly one) is measured for every shape, and what
is missing is added here.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from engine.models.linear import Dense, DenseFactory, Linear, Table

_mkldnn: Any = torch.ops.mkldnn  # there are no public names for these
_MULTIPLES = (1, 2, 4, 8)
_SIZES = (1, 2, 3, 4, 5, 8, 16, 17, 32, 33)
_MORE = (*range(1, 34), 48, 64, 100, 128)  # where that costs little; their kernels, a millisecond each, are then made
_LITTLE = 2**22  # weights


class Packed:
    """`weight` [out, in], `bias` [out] or None, as `Dense`. The result is in the type of `x`."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._packed: Tensor = _mkldnn._reorder_linear_weight(weight)
        self._dtype = weight.dtype
        self.bias = bias
        self.bytes = weight.nbytes
        self.multiple = 1
        self._least = _multiple(*weight.shape, weight.dtype, torch.get_num_threads())

    def __call__(self, x: Tensor) -> Tensor:
        if missing := -len(x) % self._least:  # few shapes need this: cheaper here than in all of the model
            return self(functional.pad(x, (0, 0, 0, missing)))[: len(x)]
        if x.dtype == self._dtype:
            return _product(x, self._packed, self.bias)
        y = _product(x.to(self._dtype), self._packed, None).to(x.dtype)
        return y if self.bias is None else y + self.bias


class PackedTable(Packed):
    """Whose rows are looked up too, so they are kept beside."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__(weight)
        self._weight = weight

    def rows(self, ids: Tensor) -> Tensor:
        return functional.embedding(ids, self._weight)


class PackedFactory(DenseFactory):
    """All that is multiplied with is packed; what is only looked up (`dense`) is not."""

    def row(self, name: str, weight: Tensor, bias: Tensor | None) -> Linear:  # noqa: ARG002  (as the others')
        plain = self.dense(weight, bias)
        return Packed(plain.weight, plain.bias)

    def table(self, name: str, weight: Tensor) -> Table:  # noqa: ARG002  (the same)
        return PackedTable(self.dense(weight).weight)


def packing(dtype: torch.dtype, device: torch.device) -> DenseFactory:
    """The factory for dense weights on `device`: packed where torch can and gets it right."""
    if device.type == "cpu" and _works(dtype):
        return PackedFactory(dtype, device)
    return DenseFactory(dtype, device)


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
def _multiple(outputs: int, inputs: int, dtype: torch.dtype, threads: int) -> int:  # noqa: ARG001  (kernels differ)
    """The least multiple of rows in whose batches a row comes out alike, wherever it stands; the largest if none."""
    generator = torch.Generator().manual_seed(0)
    sizes = _SIZES if outputs * inputs > _LITTLE else _MORE
    weight = _mkldnn._reorder_linear_weight(torch.randn(outputs, inputs, generator=generator).to(dtype))
    x = torch.randn(sizes[-1], inputs, generator=generator).to(dtype)
    whole = _product(x, weight, None)
    alike = [
        size
        for size in sizes
        if torch.equal(_product(x[:size], weight, None), whole[:size])
        and torch.equal(_product(x[-size:], weight, None), whole[-size:])
    ]
    fits = (one for one in _MULTIPLES if all(size in alike for size in sizes if size % one == 0))
    return next(fits, _MULTIPLES[-1])


def _product(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    return _mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
