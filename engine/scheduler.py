"""Which tokens of which sequences the next step computes.

Knows: sequences, the block pool, limits. Does not know: tensors, sampling, clients.

There is no prefill phase and no decode phase: a sequence has tokens whose keys and values are not computed yet, one
(it decodes) or many (it prefills). Running sequences come first; a decode always gets its row, so a long prompt slows
others by at most one chunk per step. When blocks run out, the sequence that ranks last gives its blocks up and is
computed again later; published prefix blocks make that cheap.
"""

from bisect import insort
from operator import attrgetter
from typing import NamedTuple

from msgspec import Struct

from engine.blocks import BLOCK, BlockPool, blocks_for
from engine.sequence import Sequence

_rank = attrgetter("rank")


class Limits(Struct, frozen=True, kw_only=True):
    """Tokens a step, sequences at once, tokens per prompt while others decode, blocks kept free on admission."""

    step_tokens: int = 512
    sequences: int = 32
    chunk: int = 128
    watermark: int = 1


class Work(NamedTuple):
    """Compute the next `tokens` tokens of `sequence`."""

    sequence: Sequence
    tokens: int


def _whole_blocks(pending: int, most: int) -> int:
    """Chunks end where blocks end, so that how a prompt was cut cannot be seen in its result."""
    return pending if pending <= most else most // BLOCK * BLOCK


class Scheduler:
    """`waiting` and `running` are sorted by rank."""

    def __init__(self, pool: BlockPool, limits: Limits) -> None:
        assert limits.step_tokens >= limits.sequences + BLOCK, "every decode needs its row, a prompt a block"
        assert limits.chunk >= BLOCK
        self._pool = pool
        self._limits = limits
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.preemptions = 0

    def add(self, sequence: Sequence) -> None:
        """The caller has made sure that the pool could hold it whole: otherwise it would wait for ever."""
        insort(self.waiting, sequence, key=_rank)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence in any state and free its blocks."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        self._release(sequence)

    def distrust(self, sequence: Sequence) -> None:
        """What was computed for this sequence is not to be shared."""
        self._pool.forget(sequence.blocks)

    def expired(self, now: float) -> list[Sequence]:
        """Sequences that waited past their deadline without ever being scheduled."""
        return [s for s in self.waiting if s.deadline is not None and s.scheduled is None and now >= s.deadline]

    def plan(self, now: float) -> list[Work]:
        """The next step, in rank order. Every planned sequence has the blocks it needs. `now` in monotonic seconds."""
        decoding = sum(sequence.pending == 1 for sequence in self.running)
        budget = self._limits.step_tokens - decoding  # what is left for prompts
        chunk = self._limits.chunk if decoding else budget
        plan: list[Work] = []
        preemptions, at = self.preemptions, 0
        while at < len(self.running):
            sequence = self.running[at]
            count = 1 if sequence.pending == 1 else _whole_blocks(sequence.pending, min(chunk, budget))
            if count and not self._make_room(sequence, count):
                break
            if count:
                plan.append(Work(sequence, count))
                budget -= count if sequence.pending > 1 else 0
            at += 1
        if self.preemptions == preemptions:  # else the freed blocks belong to those that ran short
            plan += self._admit(budget, chunk, now)
        return plan

    def settle(self, plan: list[Work]) -> None:
        """The step was computed: advance, and publish the blocks that became full."""
        for sequence, count in plan:
            done = sequence.computed // BLOCK
            sequence.computed += count
            sequence.prompt_done = max(sequence.prompt_done, min(sequence.computed, sequence.prompt))
            sequence.extend_hashes()
            for at in range(done, sequence.computed // BLOCK):
                self._pool.publish(sequence.blocks[at], sequence.hashes[at])

    def _admit(self, budget: int, chunk: int, now: float) -> list[Work]:
        plan: list[Work] = []
        while self.waiting and len(self.running) < self._limits.sequences:
            sequence = self.waiting[0]
            sequence.extend_hashes()
            # The last token is always computed: its logits are what the next token is drawn from.
            shared = self._pool.match(sequence.hashes[: (len(sequence.tokens) - 1) // BLOCK])
            start = len(shared) * BLOCK
            count = _whole_blocks(len(sequence.tokens) - start, min(chunk, budget))
            if count == 0:
                break
            fresh = blocks_for(start + count) - len(shared)
            spare = self._limits.watermark if self.running else 0
            if fresh + self._pool.idle(shared) + spare > self._pool.available:
                break
            del self.waiting[0]
            self._pool.share(shared)
            sequence.blocks = shared + self._pool.take(fresh)
            sequence.computed = start
            self._note_admission(sequence, len(shared), now)
            insort(self.running, sequence, key=_rank)
            plan.append(Work(sequence, count))
            budget -= count
        return plan

    def _note_admission(self, sequence: Sequence, shared: int, now: float) -> None:
        if sequence.scheduled is None:  # a preempted sequence finds its own blocks again: that is no reuse
            sequence.scheduled = now
            sequence.cached = sequence.prompt_done = sequence.computed
            self._pool.queried += (len(sequence.tokens) - 1) // BLOCK
            self._pool.hit += shared

    def _make_room(self, sequence: Sequence, count: int) -> bool:
        """Give `sequence` the blocks for `count` more tokens, preempting from the last rank. False: it was the last."""
        need = blocks_for(sequence.computed + count) - len(sequence.blocks)
        while need > self._pool.available:
            victim = self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        sequence.blocks += self._pool.take(need)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._release(sequence)
        sequence.preempted += 1
        self.preemptions += 1
        insort(self.waiting, sequence, key=_rank)

    def _release(self, sequence: Sequence) -> None:
        self._pool.give_back(sequence.blocks)
        sequence.blocks = []
        sequence.computed = 0

    def check(self) -> None:
        """Assert that blocks are owned by running sequences only and that none is lost."""
        self._pool.check([sequence.blocks for sequence in self.running])
        assert not any(sequence.blocks for sequence in self.waiting)
