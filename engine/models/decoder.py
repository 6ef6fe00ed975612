"""The one decoder: embeddings, attention over paged keys and values, gated feed-forward, head.

Knows: a `Spec`, weights, one packed batch, a cache that writes keys and values and attends to them.
Does not know: requests, scheduling, sampling, files, how keys and values are kept, how linears multiply.

Shapes: T tokens of a step (all sequences packed), H heads, G key/value heads, D per head, V vocabulary. The residual
stream and norms are float32, on CPUs attention and the cache too (bfloat16 attention is many times slower there); the
linears may be less. Sources: RMSNorm (arXiv 1910.07467), gated feed-forward (2002.05202), and those of `spec`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from engine.attention import Batch, Cache, Look
from engine.models.linear import Linear, Table
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


class Decoder:
    """`forward` turns a packed batch into logits of the rows that need them."""

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

    @torch.inference_mode()
    def forward(self, batch: Batch, cache: Cache) -> Tensor:
        """Logits [rows, V] in float32 for `batch.rows`; keys and values of all T tokens end up in `cache`."""
        spec = self.spec
        self.rotary.reserve(batch.length)
        turns = self.rotary.at(batch.positions)
        x = self.embed.rows(batch.ids)
        if spec.embed_scale != 1.0:
            x = x * torch.tensor(spec.embed_scale, dtype=x.dtype)  # rounded as in training
        x = x.float()
        for index, layer in enumerate(self.layers):
            normed = self._normalise(x, layer.norm_attention)
            rope = spec.ropes[index]
            query, key, value = self._project(layer, normed, None if rope is None else (*turns[rope], rope.rotary))
            cache.write(index, batch.slots, key, value)
            attended = layer.out(cache.attend(index, query, batch, self._looks[index]))
            x = x + self._normalise(attended, layer.norm_attended)
            gate, up = layer.gate_up(self._normalise(x, layer.norm_mlp)).chunk(2, -1)
            x = x + self._normalise(layer.down(self._gate(gate) * up), layer.norm_fed)
        return self.logits(x[batch.rows])

    def logits(self, x: Tensor) -> Tensor:
        """From the stream [rows, hidden] after the last layer to logits [rows, V] in float32."""
        logits = self.head(self._normalise(x, self.norm)).float()
        cap = self.spec.logit_softcap
        return torch.tanh(logits / cap) * cap if cap else logits

    def _normalise(self, x: Tensor, weight: Tensor | None) -> Tensor:
        """As it is without a weight."""
        return x if weight is None else functional.rms_norm(x, (self.spec.hidden,), weight, self.spec.epsilon)

    def _project(self, layer: Layer, x: Tensor, rotation: tuple[Tensor, Tensor, int] | None) -> tuple[Tensor, ...]:
        """Rotated queries [T, H, D], rotated keys and plain values [T, G, D]."""
        spec = self.spec
        both = layer.qkv(x).view(x.shape[0], spec.heads + 2 * spec.kv_heads, spec.head)
        mixed, value = both[:, : -spec.kv_heads], both[:, -spec.kv_heads :]
        if layer.qk_norm is not None:
            mixed = functional.rms_norm(mixed, (spec.head,), None, spec.epsilon) * layer.qk_norm
        if rotation is not None:
            mixed = turn(mixed, *rotation)
        return mixed[:, : spec.heads], mixed[:, spec.heads :], value


def _gelu(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"silu": functional.silu, "gelu_pytorch_tanh": _gelu}
