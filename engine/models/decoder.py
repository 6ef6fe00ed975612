"""The one decoder: embeddings, rotary attention over paged keys and values, gated feed-forward, head.

Knows: a `Spec`, weights, one packed batch. Does not know: requests, scheduling, sampling, files.

Shapes: T tokens of a step (all sequences packed), H heads, G key/value heads, D per head, V vocabulary. The residual
stream, attention and the cache are float32 (on CPUs bfloat16 attention is many times slower); only the linears may be
bfloat16. Sources: Llama (arXiv 2302.13971), rotary embeddings (2104.09864), RMSNorm (1910.07467), Qwen3 (2505.09388).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from engine.attention import Batch, KVCache, attend
from engine.models.spec import Rope, Spec


@dataclass(slots=True)
class Linear:
    """`weight` [out, in], `bias` [out] or None. Takes and gives float32 whatever the weight's type."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        if x.dtype == self.weight.dtype:
            return functional.linear(x, self.weight, self.bias)
        y = functional.linear(x.to(self.weight.dtype), self.weight).float()
        return y if self.bias is None else y + self.bias


@dataclass(slots=True)
class Layer:
    """Packed projections: `qkv` makes queries, keys and values at once, `gate_up` both halves of the gate.

    `qk_norm` [H + G, D]: the weights of Qwen3's norms, one row per query head and per key head, or None.
    """

    norm_attention: Tensor
    qkv: Linear
    qk_norm: Tensor | None
    out: Linear
    norm_mlp: Tensor
    gate_up: Linear
    down: Linear


class Decoder:
    """`forward` turns a packed batch into logits of the rows that need them."""

    def __init__(self, spec: Spec, embed: Tensor, layers: list[Layer], norm: Tensor, head: Linear) -> None:
        self.spec = spec
        self._embed = embed
        self._layers = layers
        self._norm = norm
        self._head = head
        self._cos, self._sin = _rotary_tables(spec)

    @property
    def dtype(self) -> str:
        """Type of the linears, e.g. float32."""
        return str(self._embed.dtype).removeprefix("torch.")

    @torch.inference_mode()
    def forward(self, batch: Batch, cache: KVCache) -> Tensor:
        """Logits [rows, V] in float32 for `batch.rows`; keys and values of all T tokens end up in `cache`."""
        spec = self.spec
        x = functional.embedding(batch.ids, self._embed).float()
        cos, sin = self._cos[batch.positions, None], self._sin[batch.positions, None]
        for index, layer in enumerate(self._layers):
            normed = functional.rms_norm(x, (spec.hidden,), layer.norm_attention, spec.epsilon)
            query, key, value = self._project(layer, normed, cos, sin)
            cache.write(index, batch.slots, key, value)
            x = x + layer.out(attend(query, cache.layers[index], batch.spans, spec.windows[index]))
            normed = functional.rms_norm(x, (spec.hidden,), layer.norm_mlp, spec.epsilon)
            gate, up = layer.gate_up(normed).chunk(2, -1)
            x = x + layer.down(functional.silu(gate) * up)
        last = functional.rms_norm(x[batch.rows], (spec.hidden,), self._norm, spec.epsilon)
        return self._head(last)

    def _project(self, layer: Layer, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries [T, H, D], rotated keys and plain values [T, G, D]."""
        spec = self.spec
        both = layer.qkv(x).view(x.shape[0], spec.heads + 2 * spec.kv_heads, spec.head)
        mixed, value = both[:, : -spec.kv_heads], both[:, -spec.kv_heads :]
        if layer.qk_norm is not None:
            mixed = functional.rms_norm(mixed, (spec.head,), None, spec.epsilon) * layer.qk_norm
        # rotate_half(x) is x rolled by half a head with the first half negated; `sin` carries that sign.
        turned = torch.addcmul(mixed * cos, mixed.roll(spec.head // 2, -1), sin)
        return turned[:, : spec.heads], turned[:, spec.heads :], value


def _rotary_tables(spec: Spec) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines [context, D] of every position."""
    angles = torch.outer(torch.arange(spec.context).float(), _frequencies(spec.rope, spec.head))
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)


def _frequencies(rope: Rope, head: int) -> Tensor:
    """Radians per position of each of the D/2 planes."""
    plain = 1.0 / rope.theta ** (torch.arange(0, head, 2, dtype=torch.int64).float() / head)
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind == "default":
        return plain
    # Llama 3.1: long waves are slowed by `factor`, short ones kept, those between are blended.
    waves = 2 * math.pi / plain
    blend = (rope.original / waves - rope.low) / (rope.high - rope.low)
    middle = (1 - blend) * plain / rope.factor + blend * plain
    long = waves > rope.original / rope.low
    short = waves < rope.original / rope.high
    return torch.where(long, plain / rope.factor, torch.where(short, plain, middle))
