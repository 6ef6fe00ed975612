"""Linears whose weights are kept in few bits.

Knows: torch's packed kernels and the shapes they can take. Does not know: models, which linear becomes what.

Each can do two things: multiply with its packed kernel (bfloat16 in and out), or `widened()`, the very numbers that the
kernel multiplies with. A linear that the kernel cannot take stays correct through the second, and slow; who makes it
says so. The shape rules are not in torch's documentation: on CPUs the kernels read past the end instead of refusing.
"""

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from engine.models.linear import ALL, Dense
from engine.quant.rounding import round_fp8, round_int4, round_int8

_kernels: Any = torch  # private names; a call through `torch.ops` takes some ten microseconds more
_INT4_TILES = 8  # inner k tiles of the CUDA packing


class Quantized(ABC):
    """`exact`: multiply with the widened weights in float32 instead of the packed kernel.

    `tolerance`: how far a product of the kernel may be off, as a part of the largest.
    """

    tolerance: ClassVar[float] = 0.02

    def __init__(self, bias: Tensor | None) -> None:
        self.bias = bias
        self.exact = False
        self.multiple = 1  # packed kernels compute each row by itself

    def __call__(self, x: Tensor) -> Tensor:
        y = functional.linear(x.float(), self.widened()) if self.exact else self.packed(x.bfloat16())
        y = y.type_as(x)
        return y if self.bias is None else y + self.bias

    @property
    @abstractmethod
    def bytes(self) -> int: ...

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]: ...

    @abstractmethod
    def widened(self) -> Tensor:
        """Float32 weights [out, in]."""

    @abstractmethod
    def packed(self, x: Tensor) -> Tensor:
        """The kernel's product [T, out] for `x` [T, in] (bfloat16)."""

    @abstractmethod
    def refusal(self) -> str | None:
        """Why the packed kernel must not be called, None when it may."""

    def prepare(self) -> None:  # noqa: B027  (most kernels take the weights as they are kept)
        """Bring the weights into the form the packed kernel takes. Raises RuntimeError where torch refuses."""

    def settle(self, *, exact: bool) -> None:
        """Decided: what only the other way needs is let go."""
        self.exact = exact
        self.multiple = Dense.multiple if exact else 1


class _PerChannel(Quantized):
    """A weight [out, in] in fewer bits and a scale for each output channel.

    Of a matrix that is divided among processes `own` are the columns kept here; the scale is that of the whole row, so
    that all together hold the very model that one would.
    """

    weight: Tensor
    scale: Tensor

    @property
    def bytes(self) -> int:
        return self.weight.nbytes + self.scale.nbytes

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.weight.shape
        return rows, columns


class Int8(_PerChannel):
    """int8 per output channel. Also a table: a tied head is the embedding too."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, own: slice = ALL) -> None:
        super().__init__(bias)
        whole, self.scale = round_int8(weight)
        self.weight = whole[:, own].contiguous()

    def widened(self) -> Tensor:
        return self.weight.float() * self.scale.float()[:, None]

    def packed(self, x: Tensor) -> Tensor:
        return _kernels._weight_int8pack_mm(x, self.weight, self.scale)

    def refusal(self) -> str | None:
        return f"{self.shape[1]} inputs are no multiple of 32" if self.shape[1] % 32 else None

    def rows(self, ids: Tensor) -> Tensor:
        return self.weight.index_select(0, ids).float() * self.scale.index_select(0, ids)[:, None]


class Int4(Quantized):
    """int4 with a scale and a zero per `group` of inputs of each output. `group` must divide the inputs.

    `own` as of int8: where a share's columns begin or end within a group, its parts are groups with the same scale.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, group: int, own: slice = ALL) -> None:
        super().__init__(bias)
        integers, scales, zeros = round_int4(weight, group)
        begin, end, _ = own.indices(weight.shape[1])
        integers = integers[:, begin:end]
        self.group = math.gcd(group, begin, end)
        scales, zeros = (
            one.repeat_interleave(group // self.group, 1)[:, begin // self.group : end // self.group]
            for one in (scales, zeros)
        )
        self._shape = weight.shape[0], end - begin
        self._scales_zeros = torch.stack([scales.T, zeros.T], -1).contiguous()  # [in / group, out, 2]
        self._pairs: Tensor | None = (integers[:, ::2] << 4 | integers[:, 1::2]).to(torch.uint8)
        self._kernel: Tensor | None = None

    @property
    def bytes(self) -> int:
        out, inputs = self._shape
        return out * inputs // 2 + self._scales_zeros.nbytes

    @property
    def shape(self) -> tuple[int, int]:
        return self._shape

    def prepare(self) -> None:
        assert self._pairs is not None
        if self._pairs.device.type == "cpu":
            self._kernel = _kernels._convert_weight_to_int4pack_for_cpu(self._integers(), 1)
        else:
            self._kernel = _kernels._convert_weight_to_int4pack(self._pairs, _INT4_TILES)

    def settle(self, *, exact: bool) -> None:
        super().settle(exact=exact)
        if exact:
            self._kernel = None
        else:
            self._pairs = None

    def _integers(self) -> Tensor:
        """[out, in], 0 to 15 (int32). Until the packed form was settled on."""
        assert self._pairs is not None
        return torch.stack([self._pairs >> 4, self._pairs & 15], -1).view(self._shape).to(torch.int32)

    def widened(self) -> Tensor:
        integers = self._integers().view(self._shape[0], -1, self.group).float()
        scales, zeros = (self._scales_zeros[..., at].T[..., None].float() for at in (0, 1))
        return ((integers - 8) * scales + zeros).view(self._shape)

    def packed(self, x: Tensor) -> Tensor:
        assert self._kernel is not None
        if x.device.type == "cpu":
            return _kernels._weight_int4pack_mm_for_cpu(x, self._kernel, self.group, self._scales_zeros)
        return _kernels._weight_int4pack_mm(x, self._kernel, self.group, self._scales_zeros)

    def refusal(self) -> str | None:
        return f"{self._shape[0]} outputs are no multiple of 16" if self._shape[0] % 16 else None


class Fp8(_PerChannel):
    """float8 e4m3 per output channel; activations are rounded to it too, each token by its own scale (dynamic)."""

    tolerance: ClassVar[float] = 0.15

    def __init__(self, weight: Tensor, bias: Tensor | None = None, own: slice = ALL) -> None:
        super().__init__(bias)
        whole, self.scale = round_fp8(weight)
        self.weight = whole[:, own].contiguous()

    def widened(self) -> Tensor:
        return self.weight.float() * self.scale[:, None]

    def packed(self, x: Tensor) -> Tensor:
        eights, scales = round_fp8(x)
        return _kernels._scaled_mm(eights, self.weight.t(), scales[:, None], self.scale[None], out_dtype=torch.bfloat16)

    def refusal(self) -> str | None:
        return f"{' x '.join(map(str, self.shape))} are no multiples of 16" if any(s % 16 for s in self.shape) else None
