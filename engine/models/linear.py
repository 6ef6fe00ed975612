"""What a decoder multiplies with, and the one place where it is made.

Knows: dense weights. Does not know: quantized ones (`engine.quant`), several devices, files.

A `LinearFactory` is handed to the loader and sees every matrix of a model once, as the file has it. So a factory can
pack it into fewer bits, keep only its own share of the rows or columns, or both, by handing its share to another one.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from engine.models.spec import Spec

ALL = slice(None)


class Linear(Protocol):
    """y = x W^T + b for `x` [T, in]; gives [T, out] in the type of `x`.

    `multiple`: a row comes out the same, to the bit, in every batch whose T is a multiple of this.
    """

    multiple: int

    def __call__(self, x: Tensor) -> Tensor: ...

    @property
    def bytes(self) -> int:
        """Read from memory for one use."""
        ...


class Table(Linear, Protocol):
    """A linear whose weights are also looked up by row: a head that is the embedding too."""

    def rows(self, ids: Tensor) -> Tensor:
        """Rows [T, in] of the weights for `ids` [T]; in a type of the table's choosing."""
        ...


class LinearFactory(Protocol):
    """Makes the linears of one model. `name` is the tensor's name without `.weight`, for messages."""

    def local(self, spec: Spec) -> Spec:
        """The spec of the decoder these linears are for: fewer heads and channels, when others hold the rest."""
        ...

    def column(self, name: str, parts: list[Tensor], biases: list[Tensor] | None) -> Linear:
        """Stacked `parts` [rows, in] that can be divided by rows, each part by itself (q, k, v; gate, up)."""
        ...

    def row(self, name: str, weight: Tensor, bias: Tensor | None, own: slice = ALL) -> Linear:
        """A matrix [out, in] that can be divided by columns; the shares' products are then summed, the bias once.

        `own`: the columns of this share. A scale that belongs to a whole row is the one it has undivided.
        """
        ...

    def table(self, name: str, weight: Tensor) -> Table:
        """Embedding or head [vocabulary, hidden]."""
        ...


class Dense:
    """`weight` [out, in], `bias` [out] or None. Multiplies in the type of the weights whatever the type of `x`."""

    multiple = 4  # measured for float32 (bfloat16 is content with any), and checked at start

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        if x.dtype == self.weight.dtype:
            return functional.linear(x, self.weight, self.bias)
        y = functional.linear(x.to(self.weight.dtype), self.weight).to(x.dtype)
        return y if self.bias is None else y + self.bias

    def rows(self, ids: Tensor) -> Tensor:
        return functional.embedding(ids, self.weight)

    @property
    def bytes(self) -> int:
        return self.weight.nbytes


class DenseFactory:
    """All matrices as they are, in `dtype` on `device`; biases in float32, the type of what flows between them."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self.device = device

    @property
    def label(self) -> str:
        """The type of the linears in a few letters."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def notes(self) -> tuple[str, ...]:
        """What could not be made as asked."""
        return ()

    def dense(self, weight: Tensor, bias: Tensor | None = None) -> Dense:
        """Never packed. Copied: what is read from a file is the file itself until then, and may change under us."""
        return Dense(weight.to(self.device, self.dtype, copy=True).contiguous(), self.float(bias))

    def float(self, small: Tensor | None) -> Tensor | None:
        """What is too small to save on: biases."""
        return None if small is None else small.to(self.device, torch.float32, copy=True)

    def local(self, spec: Spec) -> Spec:
        return spec

    def column(self, name: str, parts: list[Tensor], biases: list[Tensor] | None) -> Linear:
        return self.row(name, torch.cat(parts), None if biases is None else torch.cat(biases))

    def row(self, name: str, weight: Tensor, bias: Tensor | None, own: slice = ALL) -> Linear:  # noqa: ARG002  (packing ones name it)
        return self.dense(weight[:, own], bias)

    def table(self, name: str, weight: Tensor) -> Table:  # noqa: ARG002  (the same)
        return self.dense(weight)
