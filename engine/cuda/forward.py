"""The decoder on a GPU: the layers of a loaded model, computed with fused kernels.

Knows: a `Decoder`'s weights, kernels, pages. Does not know: plans, graphs, sampling. `Decoder.forward` defines what is
computed here; a test holds one to the other for every family.

The residual stream is float32; matrices take and give bfloat16. What a layer adds to the stream is added by whoever
reads the stream next, in the same pass as its norm. A single row takes another way: its linears are streams of weights
with norms, gates and sums built in, six launches a layer in place of ten.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from engine.attention import KVCache
from engine.cuda.frame import Inputs
from engine.kernels import HeadNorm, Kernels, Look, Norm, Pages, Parts, Rotary, Weights
from engine.models.decoder import Decoder, Layer
from engine.models.linear import Dense, Linear
from engine.quant.linears import Fp8, Int8

_FEW = 64  # rows up to which quantized weights are multiplied by `Kernels.matrix`: beyond, libraries win


class Projection:
    """A linear of the model and, where kernels can read them, its weights."""

    def __init__(self, linear: Linear, kernels: Kernels, *, deterministic: bool) -> None:
        self._linear = linear
        self._kernels = kernels
        self._deterministic = deterministic
        self.weights = readable(linear)

    def __call__(self, x: Tensor) -> Tensor:
        """[T, in] to [T, out], in the type of `x`."""
        weights = self.weights
        if weights is None:
            return self._linear(x).to(x.dtype)
        if self._deterministic or (weights.scale is not None and len(x) <= _FEW):
            return self._kernels.matrix(x, weights)
        if weights.weight.dtype == torch.float8_e4m3fn:
            return self._linear(x).to(x.dtype)
        weight = weights.weight
        if weights.scale is not None:
            weight = weight.to(x.dtype) * weights.scale.to(x.dtype)[:, None]
        bias = None if weights.bias is None else weights.bias.to(x.dtype)
        return functional.linear(x, weight, bias)


def readable(linear: Linear) -> Weights | None:
    """The weights of a dense, int8 or fp8 linear; None for any other kind, which only knows how to be called."""
    if isinstance(linear, Dense):
        return Weights(linear.weight, None, linear.bias)
    if isinstance(linear, Int8 | Fp8):
        return Weights(linear.weight, linear.scale, linear.bias)
    return None


class _Step(NamedTuple):
    """A layer, ready to run."""

    qkv: Projection
    out: Projection
    gate_up: Projection
    down: Projection
    norm_attention: Norm
    norm_attended: Norm | None
    norm_mlp: Norm
    norm_fed: Norm | None
    heads: HeadNorm | None
    rotary: Rotary | None
    look: Look
    pages: Pages


class Forward:
    """`__call__` gives logits [R, V] of the rows that need them; keys and values end up in the cache."""

    def __init__(
        self, decoder: Decoder, cache: KVCache, kernels: Kernels, blocks: Tensor, parts: Parts, *, deterministic: bool
    ) -> None:
        spec = decoder.spec
        decoder.rotary.reserve(spec.context)
        self.spec = spec
        self.blocks = blocks
        self._decoder = decoder
        self.kernels = kernels
        self.deterministic = deterministic
        self._parts = parts
        self._activation = "silu" if spec.activation == "silu" else "gelu_tanh"
        self._norm = Norm(decoder.norm, spec.epsilon)
        self._head = self._projection(decoder.head)
        self._layers = [self._step(index, layer, cache) for index, layer in enumerate(decoder.layers)]
        first = self._layers[0].qkv.weights
        self.dtype = torch.bfloat16 if first is None or first.scale is not None else first.weight.dtype

    @property
    def room(self) -> int:
        """Partial results that fit into what was set aside for them."""
        return len(self._parts.sums)

    def _projection(self, linear: Linear) -> Projection:
        return Projection(linear, self.kernels, deterministic=self.deterministic)

    def _step(self, index: int, layer: Layer, cache: KVCache) -> _Step:
        spec = self.spec
        rope = spec.ropes[index]
        scales = cache.scales[index].unbind(0) if cache.scales else ()
        return _Step(
            *(self._projection(linear) for linear in (layer.qkv, layer.out, layer.gate_up, layer.down)),
            norm_attention=Norm(layer.norm_attention, spec.epsilon),
            norm_attended=None if layer.norm_attended is None else Norm(layer.norm_attended, spec.epsilon),
            norm_mlp=Norm(layer.norm_mlp, spec.epsilon),
            norm_fed=None if layer.norm_fed is None else Norm(layer.norm_fed, spec.epsilon),
            heads=None if layer.qk_norm is None else HeadNorm(layer.qk_norm, spec.epsilon),
            rotary=None if rope is None else Rotary(*self._decoder.rotary.table(rope), rope.rotary),
            look=Look(spec.scale, spec.windows[index], spec.attention_softcap),
            pages=Pages(*cache.layers[index].unbind(0), *scales),
        )

    @torch.inference_mode()
    def __call__(self, inputs: Inputs) -> Tensor:
        x = self._decoder.embed.rows(inputs.ids)
        if self.spec.embed_scale != 1.0:
            x = x * torch.full((), self.spec.embed_scale, dtype=x.dtype, device=x.device)
        x = x.float()
        run = self._one if len(x) == 1 and not self.deterministic and self._streamable() else self._many
        x, branch = run(x, inputs)
        rows = inputs.rows
        last = x[rows]
        normed = self.kernels.add_norm(last, None if branch is None else branch[rows], self._norm, self.dtype)
        logits = self._head(normed)
        cap = self.spec.logit_softcap
        return torch.tanh(logits.float() / cap) * cap if cap else logits

    def _streamable(self) -> bool:
        steps = self._layers
        return all(p.weights is not None for step in steps for p in (step.qkv, step.out, step.gate_up, step.down))

    def _attend(self, step: _Step, qkv: Tensor, inputs: Inputs) -> Tensor:
        kernels = self.kernels
        query = kernels.rotate_and_write(qkv, inputs.positions, inputs.slots, step.rotary, step.heads, step.pages)
        return kernels.attend(query, step.pages, inputs.tiles, self.blocks, step.look, self._parts)

    def _many(self, x: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
        """The stream, and what is still to be added to it."""
        kernels, branch = self.kernels, None
        for step in self._layers:
            normed = kernels.add_norm(x, branch, step.norm_attention, self.dtype)
            branch = self._after(step.out(self._attend(step, step.qkv(normed), inputs)), step.norm_attended)
            normed = kernels.add_norm(x, branch, step.norm_mlp, self.dtype)
            branch = self._after(step.down(kernels.gate(step.gate_up(normed), self._activation)), step.norm_fed)
        return x, branch

    def _after(self, branch: Tensor, norm: Norm | None) -> Tensor:
        """Gemma normalises what joins the stream."""
        return branch if norm is None else self.kernels.add_norm(branch, None, norm, self.dtype)

    def _one(self, x: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
        """A single row: every linear is a stream of weights with its surroundings built in."""
        for step in self._layers:
            qkv = self.kernels.vector(x, _given(step.qkv), step.norm_attention, None)
            self._join(x, self._attend(step, qkv, inputs), step.out, step.norm_attended)
            fed = self.kernels.vector(x, _given(step.gate_up), step.norm_mlp, self._activation)
            self._join(x, fed, step.down, step.norm_fed)
        return x, None

    def _join(self, x: Tensor, y: Tensor, projection: Projection, norm: Norm | None) -> None:
        if norm is None:
            self.kernels.vector_add(x, y, _given(projection))
        else:
            x += self._after(self.kernels.vector(y, _given(projection), None, None), norm)


def _given(projection: Projection) -> Weights:
    assert projection.weights is not None
    return projection.weights
