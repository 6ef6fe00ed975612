"""Run one planned step and draw its tokens.

Knows: the decoder, the cache it fills, the sampler. Does not know: why these sequences were planned, what becomes of
the picks. A device that computes beside the host has a `Runner` of its own; `launch` then returns before the step ends.
"""

from typing import Protocol

import torch
from torch import Tensor

from engine.attention import KVCache, pack
from engine.models.decoder import Decoder, Passage
from engine.sampler import Pick, Row, sample
from engine.scheduler import Work


class Step(Protocol):
    """A step that was started."""

    def finish(self) -> list[Pick]:
        """Wait for it: one pick per row. Raises RuntimeError when the device failed."""
        ...


class Reading(Protocol):
    """A step that was begun and is computed in parts, beside others."""

    def go_on(self, parts: int) -> Step | None:
        """Compute so many parts more: the step, once it was the last. Raises RuntimeError when the device failed."""
        ...


class Runner(Protocol):
    """`cache` holds the keys and values of all layers."""

    @property
    def cache(self) -> KVCache: ...

    @property
    def parts(self) -> int:
        """Into how many parts a step may be divided; one: not at all, `read` is not called."""
        ...

    def launch(self, plan: list[Work], rows: list[Row]) -> Step:
        """Start a step. `rows`: what to do with every row of logits, in the order of the plan, then of positions.

        Raises RuntimeError when the device failed.
        """
        ...

    def read(self, plan: list[Work], rows: list[Row]) -> Reading:
        """Begin a step that is computed in parts. Its blocks must stay its own until it is done or let go."""
        ...


class _Done:
    """A step that ran at once."""

    def __init__(self, logits: Tensor, rows: list[Row]) -> None:
        self._logits, self._rows = logits, rows

    def finish(self) -> list[Pick]:
        return sample(self._logits, self._rows)


class _Layers:
    """A step whose parts are the decoder's layers."""

    def __init__(self, decoder: Decoder, cache: KVCache, passage: Passage, rows: list[Row]) -> None:
        self._decoder, self._cache, self._passage, self._rows = decoder, cache, passage, rows

    @torch.inference_mode()
    def go_on(self, parts: int) -> Step | None:
        self._decoder.advance(self._passage, self._cache, parts)
        if self._passage.layer < self._decoder.parts:
            return None
        return _Done(self._decoder.end(self._passage), self._rows)


class EagerRunner:
    """Everything at once, on the processor."""

    def __init__(self, decoder: Decoder, blocks: int, kv_dtype: str = "float32") -> None:
        spec = decoder.spec
        self._decoder = decoder
        self.cache = KVCache(spec.layers, blocks, spec.kv_heads, spec.head, kv_dtype)

    @property
    def parts(self) -> int:
        return self._decoder.parts

    def launch(self, plan: list[Work], rows: list[Row]) -> Step:
        return _Done(self._decoder.forward(pack(plan, self._decoder.multiple), self.cache), rows)

    @torch.inference_mode()
    def read(self, plan: list[Work], rows: list[Row]) -> Reading:
        passage = self._decoder.begin(pack(plan, self._decoder.multiple))
        return _Layers(self._decoder, self.cache, passage, rows)
