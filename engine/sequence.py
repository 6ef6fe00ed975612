"""One generation as the scheduler and the core see it: its tokens, its blocks, its clock.

Knows: state only. Does not know: who decides, how tensors look.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.api import EngineUsage, SamplingParams, Timing
from engine.blocks import BLOCK, link, root

if TYPE_CHECKING:
    from engine.grammar import Matcher


@dataclass(slots=True)
class Guesses:
    """What speculation did for one sequence: tokens proposed, and those of them that were right."""

    drafted: int = 0
    accepted: int = 0
    given_up: bool = False
    _window: int = 0
    _right: int = 0

    def note(self, drafted: int, accepted: int, window: int, least: float) -> None:
        """Count; give up for good when of the last `window` guesses less than a share of `least` was right."""
        self.drafted += drafted
        self.accepted += accepted
        self._window += drafted
        self._right += accepted
        if self._window >= window:
            self.given_up = self._right < least * self._window
            self._window = self._right = 0


@dataclass(eq=False, slots=True)
class Sequence:
    """`tokens` is the prompt and what was generated; `computed` counts those whose keys and values are in `blocks`.

    Prefill, decode and the resumption after a preemption are all the same state: `computed < len(tokens)`. `drafts` are
    guesses at what follows, verified by the next step and never part of `tokens` before. `scored`: prompt positions
    whose log probabilities are known, where they are wanted. `reading`: what comes next is being computed, over several
    steps. Times are monotonic seconds.
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
    matcher: "Matcher | None" = None
    closing: int | None = None  # tokens after which a form is brought to an end
    prediction: list[int] = field(default_factory=list[int])
    drafts: list[int] = field(default_factory=list[int])
    guesses: Guesses = field(default_factory=Guesses)
    scored: int = 0
    reading: bool = False
    over: bool = False

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

    @property
    def scoring(self) -> bool:
        """Whether log probabilities of its prompt are still to be computed."""
        return self.sampling.prompt_logprobs is not None and self.scored < self.prompt - 1

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
        return EngineUsage(
            prompt=self.prompt_done,
            completion=self.completion,
            cached=self.cached,
            drafted=self.guesses.drafted,
            accepted=self.guesses.accepted,
        )

    def timing(self, now: float) -> Timing:
        scheduled = now if self.scheduled is None else self.scheduled
        first = now if self.first is None else self.first
        last = first if self.last is None else self.last
        return Timing(
            queue_ms=(scheduled - self.submitted) * 1000,
            ttft_ms=(first - self.submitted) * 1000,
            tpot_ms=(last - first) * 1000 / max(self.completion - 1, 1),
        )
