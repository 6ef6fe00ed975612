"""One generation as the scheduler and the core see it: its tokens, its blocks, its clock.

Knows: state only. Does not know: who decides, how tensors look.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field

from engine.api import EngineUsage, SamplingParams, Timing
from engine.blocks import BLOCK, link, root


@dataclass(eq=False, slots=True)
class Sequence:
    """`tokens` is the prompt and what was generated; `computed` counts those whose keys and values are in `blocks`.

    Prefill, decode and the resumption after a preemption are all the same state: `computed < len(tokens)`.
    Times are monotonic seconds.
    """

    key: Hashable
    tokens: list[int]
    prompt: int
    sampling: SamplingParams
    seed: int
    eos: frozenset[int]
    salt: str
    priority: int
    arrival: int
    submitted: float
    deadline: float | None = None
    computed: int = 0
    blocks: list[int] = field(default_factory=list[int])
    hashes: list[bytes] = field(default_factory=list[bytes])
    cached: int = 0
    prompt_done: int = 0
    preempted: int = 0
    scheduled: float | None = None
    first: float | None = None
    last: float | None = None

    @property
    def rank(self) -> tuple[int, int]:
        """Smaller goes first: by priority, then by arrival."""
        return (-self.priority, self.arrival)

    @property
    def pending(self) -> int:
        return len(self.tokens) - self.computed

    @property
    def completion(self) -> int:
        return len(self.tokens) - self.prompt

    def extend_hashes(self) -> None:
        """Hash the blocks that have become full of known tokens.

        Generated tokens are computed one by one and a prompt's in tiles, which differ in the last bits. So a block with
        generated tokens is only found by a sequence with the same prompt before them: itself, after a preemption.
        """
        while (len(self.hashes) + 1) * BLOCK <= len(self.tokens):
            at, end = len(self.hashes), (len(self.hashes) + 1) * BLOCK
            previous = self.hashes[-1] if at else root(self.salt)
            if end > self.prompt:
                previous += self.prompt.to_bytes(8, "little")
            self.hashes.append(link(previous, self.tokens[end - BLOCK : end]))

    def usage(self) -> EngineUsage:
        return EngineUsage(prompt=self.prompt_done, completion=self.completion, cached=self.cached)

    def timing(self, now: float) -> Timing:
        scheduled = now if self.scheduled is None else self.scheduled
        first = now if self.first is None else self.first
        last = first if self.last is None else self.last
        return Timing(
            queue_ms=(scheduled - self.submitted) * 1000,
            ttft_ms=(first - self.submitted) * 1000,
            tpot_ms=(last - first) * 1000 / max(self.completion - 1, 1),
        )
