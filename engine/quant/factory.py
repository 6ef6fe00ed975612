"""Which linear of a model is kept in how many bits, and a word about those that could not be.

Knows: kinds of quantization, what a device can do. Does not know: kernels' insides, files.
"""

import logging
from collections import Counter

import torch
from torch import Tensor

from engine.api import EngineError
from engine.models.linear import ALL, DenseFactory, Linear, Table
from engine.quant import KINDS
from engine.quant.linears import Fp8, Int4, Int8, Quantized

_log = logging.getLogger(__name__)
_GROUPS = (64, 32)
_ADA = (8, 9)


class UnsupportedQuantization(EngineError):
    """This device cannot multiply such weights. The message says what would."""


def quantizing(kind: str, dense: DenseFactory) -> DenseFactory:
    """A factory for `kind`, one of KINDS; `dense` says types and device, and is returned for `none`.

    Raises UnsupportedQuantization.
    """
    if kind not in KINDS:
        raise UnsupportedQuantization(f"quant {kind!r} is not known. Known: {', '.join(KINDS)}.")
    if kind == "none":
        return dense
    if kind == "fp8" and (why := _no_fp8(dense.device)):
        raise UnsupportedQuantization(f"quant fp8: {why} int8 and int4 work on every device.")
    return QuantFactory(kind, dense)


def _no_fp8(device: torch.device) -> str | None:
    if device.type != "cuda":
        return f"needs a CUDA device that multiplies 8-bit floats, this is a {device.type.upper()}."
    if torch.cuda.get_device_capability(device) < _ADA:
        return f"needs compute capability 8.9 or newer, {torch.cuda.get_device_name(device)} has less."
    return None


class QuantFactory(DenseFactory):
    """int8 and fp8: all linears. int4: all but the head, which is int8, as its rows are what quality hangs on most.

    `slow`: how many linears are exact but slow, and why; `kept`: how many were left as they are, and why.
    """

    def __init__(self, kind: str, dense: DenseFactory) -> None:
        super().__init__(dense.dtype, dense.device)
        self.kind = kind
        self.slow: Counter[str] = Counter()
        self.kept: Counter[str] = Counter()
        self._verdicts: dict[tuple[type[Quantized], tuple[int, int]], str | None] = {}

    @property
    def label(self) -> str:
        return f"{self.kind}/{super().label}"

    @property
    def notes(self) -> tuple[str, ...]:
        slow = [f"{count} linears are multiplied exactly but slowly: {why}" for why, count in self.slow.items()]
        kept = [f"{count} linears are kept as they are: {why}" for why, count in self.kept.items()]
        return (*slow, *kept)

    def row(self, name: str, weight: Tensor, bias: Tensor | None, own: slice = ALL) -> Linear:
        weight = weight.to(self.device)
        moved = self.float(bias)
        if self.kind == "int8":
            return self._judged(name, Int8(weight, moved, own))
        if self.kind == "fp8":
            return self._judged(name, Fp8(weight, moved, own))
        group = next((group for group in _GROUPS if weight.shape[1] % group == 0), None)
        if group is None:
            self._say(self.kept, name, f"{weight.shape[1]} inputs do not divide into groups of {_GROUPS[-1]}", "kept")
            return self.dense(weight[:, own], bias)
        return self._judged(name, Int4(weight, moved, group, own))

    def table(self, name: str, weight: Tensor) -> Table:
        made = Int8(weight.to(self.device))
        self._judged(name, made)
        return made

    def _judged(self, name: str, linear: Quantized) -> Quantized:
        """The packed kernel is tried once per shape; where it fails or is wrong, the exact way is taken and said."""
        key = (type(linear), linear.shape)
        if key not in self._verdicts:
            self._verdicts[key] = linear.refusal() or _disagreement(linear)
        elif self._verdicts[key] is None:
            linear.prepare()
        why = self._verdicts[key]
        linear.settle(exact=why is not None)
        if why is not None:
            self._say(self.slow, name, why, "multiplied exactly but slowly")
        return linear

    def _say(self, told: "Counter[str]", name: str, why: str, what: str) -> None:
        if told[why] == 0:
            _log.warning("%s: %s is %s: %s (and others alike)", self.kind, name, what, why)
        told[why] += 1


def _disagreement(linear: Quantized) -> str | None:
    """Private kernels change between versions: compare with the definition before believing one."""
    generator = torch.Generator().manual_seed(0)
    weight = linear.widened()
    x = torch.randn(4, linear.shape[1], generator=generator).to(weight.device).bfloat16()
    wanted = x.float() @ weight.T
    try:
        linear.prepare()
        found = linear.packed(x).float()
    except (RuntimeError, NotImplementedError) as error:
        return f"torch refuses: {str(error).splitlines()[0]}"
    off = float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-30))
    return None if off <= linear.tolerance else f"the packed kernel is off by {off:.0%}"
