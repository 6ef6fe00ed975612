"""The one decoder: embeddings, attention over paged keys and values, gated feed-forward, head.

Knows: a `Spec`, weights, one packed batch, a cache that writes keys and values and attends to them.
Does not know: requests, scheduling, sampling, files, how keys and values are kept, how linears multiply.

Shapes: T tokens of a step (all sequences packed), H heads, G key/value heads, D per head, V vocabulary. The residual
stream and norms are float32, on CPUs attention and the cache too (bfloat16 attention is many times slower there); the
linears may be less. Sources: RMSNorm (arXiv 1910.07467), gated feed-forward (2002.05202), and those of `spec`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from engine.attention import Batch, Cache, Look
from engine.models.linear import Linear, Table
from engine.models.rope import Rope
from engine.models.rotary import Rotary, turn
from engine.models.spec import Spec


@dataclass(slots=True)
class Layer:
    """Packed projections: `qkv` makes queries, keys and values at once, `gate_up` both halves of the gate.

    `qk_norm` [H + G, D]: norms of queries and keys, one row per head, or None. `norm_attended` and `norm_fed`: what
    attention and feed-forward give is normalised by these before it joins the stream (Gemma), or None.
    """

    norm_attention: Tensor
    qkv: Linear
    qk_norm: Tensor | None
    out: Linear
    norm_attended: Tensor | None
    norm_mlp: Tensor
    gate_up: Linear
    down: Linear
    norm_fed: Tensor | None


class _Norm:
    """RMSNorm over the last dimension: `weight` [..., D], or None for a norm that changes nothing.

    The root of a mean of squares and epsilon is the hypotenuse of the vector's length and a constant, both scaled: four
    operations, where torch's own takes nine on a processor.
    """

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        size = weight.shape[-1]
        self._weight = weight * math.sqrt(size)
        self._floor = torch.tensor(math.sqrt(size * epsilon), device=weight.device)

    def __call__(self, x: Tensor) -> Tensor:
        return x.div(torch.linalg.vector_norm(x, 2, -1, True).hypot_(self._floor)).mul_(self._weight)


class _Norms(NamedTuple):
    """Of one layer, ready for use; those it has."""

    attention: _Norm
    mlp: _Norm
    qk: _Norm | None
    attended: _Norm | None
    fed: _Norm | None


@dataclass(slots=True)
class Passage:
    """A batch on its way: `x` [T, hidden] is the stream before layer `layer`, `turns` are how each rope turns it."""

    batch: Batch
    x: Tensor
    turns: dict[Rope | None, tuple[Tensor, Tensor]]
    layer: int = 0


class Decoder:
    """`forward` turns a packed batch into logits of the rows that need them.

    `begin`, `advance` and `end` are the same in parts, for who cannot spend the time at once; under
    `torch.inference_mode`.
    """

    def __init__(self, spec: Spec, embed: Table, layers: list[Layer], norm: Tensor, head: Linear) -> None:
        self.spec = spec
        self.embed = embed
        self.layers = layers
        self.norm = norm
        self.head = head
        self.dtype = "float32"  # of the linears, in words; the loader knows better
        self.notes: tuple[str, ...] = ()  # what whoever runs it should know, e.g. linears that are slow
        self.rotary = Rotary({rope for rope in spec.ropes if rope}, spec.head, spec.context, norm.device)
        self._looks = [Look(window, spec.scale, spec.attention_softcap) for window in spec.windows]
        self._gate = _ACTIVATIONS[spec.activation]
        self.multiple = max(linear.multiple for linear in self.linears)  # what to pad the rows of a batch to

    @property
    def linears(self) -> list[Linear]:
        """All that is multiplied with; not an embedding that is only looked up."""
        inner = [linear for layer in self.layers for linear in (layer.qkv, layer.out, layer.gate_up, layer.down)]
        return [*inner, self.head]

    @property
    def bytes(self) -> int:
        """Weights read for one step."""
        return sum(linear.bytes for linear in self.linears)

    @property
    def parts(self) -> int:
        """Into how many parts a pass may be divided."""
        return len(self.layers)

    @torch.inference_mode()
    def forward(self, batch: Batch, cache: Cache) -> Tensor:
        """Logits [rows, V] in float32 for `batch.rows`; keys and values of all T tokens end up in `cache`."""
        passage = self.begin(batch)
        self.advance(passage, cache, len(self.layers))
        return self.end(passage)

    def begin(self, batch: Batch) -> Passage:
        """Before the first layer."""
        self.rotary.reserve(batch.length)
        x = self.embed.rows(batch.ids)
        if self.spec.embed_scale != 1.0:
            x = x * torch.tensor(self.spec.embed_scale, dtype=x.dtype)  # rounded as in training
        # looked up, so nobody else's: what layers give is added in place
        return Passage(batch, x.float(), self.rotary.at(batch.positions))

    def advance(self, passage: Passage, cache: Cache, layers: int) -> None:
        """Through the next `layers` layers, as far as there are."""
        spec, batch, x = self.spec, passage.batch, passage.x
        for index in range(passage.layer, min(passage.layer + layers, len(self.layers))):
            layer, norms, rope = self.layers[index], self._norms[index], spec.ropes[index]
            rotation = None if rope is None else (*passage.turns[rope], rope.rotary)
            query, key, value = self._project(layer.qkv(norms.attention(x)), norms.qk, rotation)
            cache.write(index, batch.slots, key, value)
            attended = layer.out(cache.attend(index, query, batch, self._looks[index]))
            x = x.add_(attended if norms.attended is None else norms.attended(attended))
            gate, up = layer.gate_up(norms.mlp(x)).chunk(2, -1)
            fed = layer.down(self._gate(gate).mul_(up))
            x = x.add_(fed if norms.fed is None else norms.fed(fed))
            passage.layer = index + 1

    def end(self, passage: Passage) -> Tensor:
        """Logits, as of `forward`, after the last layer."""
        assert passage.layer == len(self.layers)
        return self.logits(passage.x.index_select(0, passage.batch.rows))

    def logits(self, x: Tensor) -> Tensor:
        """From the stream [rows, hidden] after the last layer to logits [rows, V] in float32."""
        logits = self.head(self._last(x)).float()
        cap = self.spec.logit_softcap
        return torch.tanh(logits / cap) * cap if cap else logits

    @cached_property
    def _last(self) -> _Norm:
        return _Norm(self.norm, self.spec.epsilon)

    @cached_property
    def _norms(self) -> list[_Norms]:
        def made(weight: Tensor | None) -> _Norm | None:
            return None if weight is None else _Norm(weight, self.spec.epsilon)

        return [
            _Norms(
                attention=_Norm(layer.norm_attention, self.spec.epsilon),
                mlp=_Norm(layer.norm_mlp, self.spec.epsilon),
                qk=made(layer.qk_norm),
                attended=made(layer.norm_attended),
                fed=made(layer.norm_fed),
            )
            for layer in self.layers
        ]

    def _project(
        self, qkv: Tensor, norm: _Norm | None, rotation: tuple[Tensor, Tensor, int] | None
    ) -> tuple[Tensor, ...]:
        """Rotated queries [T, H, D], rotated keys and plain values [T, G, D]."""
        heads, groups = self.spec.heads, self.spec.kv_heads
        every = qkv.view(-1, heads + 2 * groups, self.spec.head)
        mixed, value = every[:, :-groups], every[:, -groups:]
        if norm is not None:
            mixed = norm(mixed)
        if rotation is not None:
            mixed = turn(mixed, *rotation)
        return mixed[:, :heads], mixed[:, heads:], value


def _gelu(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"silu": functional.silu, "gelu_pytorch_tanh": _gelu}
