"""Run one planned step and draw its tokens.

Knows: the decoder, the cache it fills, the sampler. Does not know: why these sequences were planned, what becomes of
the picks. A device that computes beside the host has a `Runner` of its own; `launch` then returns before the step ends.
"""

from typing import Protocol

from torch import Tensor

from engine.attention import KVCache, pack
from engine.models.decoder import Decoder
from engine.sampler import Pick, Row, sample
from engine.scheduler import Work


class Step(Protocol):
    """A step that was started."""

    def finish(self) -> list[Pick]:
        """Wait for it: one pick per row. Raises RuntimeError when the device failed."""
        ...


class Runner(Protocol):
    """`cache` holds the keys and values of all layers."""

    @property
    def cache(self) -> KVCache: ...

    def launch(self, plan: list[Work], rows: list[Row]) -> Step:
        """Start a step. `rows`: what to do with every row of logits, in the order of the plan, then of positions.

        Raises RuntimeError when the device failed.
        """
        ...


class _Done:
    """A step that ran at once."""

    def __init__(self, logits: Tensor, rows: list[Row]) -> None:
        self._logits, self._rows = logits, rows

    def finish(self) -> list[Pick]:
        return sample(self._logits, self._rows)


class EagerRunner:
    """Everything at once, on the processor."""

    def __init__(self, decoder: Decoder, blocks: int, kv_dtype: str = "float32") -> None:
        spec = decoder.spec
        self._decoder = decoder
        self.cache = KVCache(spec.layers, blocks, spec.kv_heads, spec.head, kv_dtype)

    def launch(self, plan: list[Work], rows: list[Row]) -> Step:
        return _Done(self._decoder.forward(pack(plan, self._decoder.multiple), self.cache), rows)
