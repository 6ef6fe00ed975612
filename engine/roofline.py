"""What a machine's memory and arithmetic allow at most: the bound that measured speeds are held against.

Knows: shapes of a model, bytes, operations. Does not know: how either was measured, kernels, any clock.
Formulas: a decode step reads all weights once and every sequence's keys and values; a token costs two operations for
each weight it meets. (Williams et al., "Roofline", CACM 2009.)
"""

from msgspec import Struct

from engine.models.spec import Spec

# Bytes per weight of layers and of the head, with the scales of groups of 64; those of whole channels are too few.
_QUANTIZED = {"int8": (1.0, 1.0), "fp8": (1.0, 1.0), "int4": (0.5 + 4 / 64, 1.0)}


class Machine(Struct, frozen=True, kw_only=True):
    """Measured ceilings: `read` bytes/s that a large sum streams, `flops` floating-point operations/s of a product."""

    read: float
    flops: float


class Shape(Struct, frozen=True, kw_only=True):
    """A model in memory. `kv`: bytes of keys and values per token; `streamed`: weight bytes a decode step reads."""

    parameters: int
    streamed: int
    stored: int
    kv: int

    def decode(self, machine: Machine, batch: int, context: int) -> float:
        """Tokens/s of `batch` sequences that are each `context` tokens long, at most."""
        moved = (self.streamed + batch * context * self.kv) / machine.read
        computed = 2 * self.parameters * batch / machine.flops
        return batch / max(moved, computed)

    def prefill(self, machine: Machine) -> float:
        """Prompt tokens/s, at most."""
        return machine.flops / (2 * self.parameters)


def shape(spec: Spec, weight_bytes: float, kv_bytes: int = 4, quant: str = "none") -> Shape:
    """`weight_bytes` and `kv_bytes` per number. An untied input embedding is looked up, not streamed, nor quantized."""
    embedding = spec.vocabulary * spec.hidden
    met = spec.parameters - (0 if spec.tied else embedding)
    body, head = _QUANTIZED.get(quant, (weight_bytes, weight_bytes))
    streamed = (met - embedding) * body + embedding * head
    return Shape(
        parameters=met,
        streamed=int(streamed),
        stored=int(streamed + (spec.parameters - met) * weight_bytes),
        kv=2 * spec.layers * spec.kv_heads * spec.head * kv_bytes,
    )
