"""Which tokens of which sequences the next step computes.

Knows: sequences, the block pool, limits. Does not know: tensors, sampling, clients.

There is no prefill phase and no decode phase: a sequence has tokens whose keys and values are not computed yet, one
(it decodes) or many (it prefills). Running sequences come first; a decode always gets its row, so a long prompt slows
others by at most one chunk per step. When blocks run out, the sequence that ranks last gives its blocks up and is
computed again later; published prefix blocks make that cheap. Guesses at further tokens (speculation) are rows like any
other, but never at the cost of somebody else's blocks.

Who waits is let in by priority, then by what its tenant was served so far, then by arrival. A higher priority may take
the place of a lower one that runs. A prompt whose next block somebody is computing right now waits for it, so the
choices of one request, or many requests that begin alike, compute what they share once.
"""

from bisect import insort
from operator import attrgetter
from typing import NamedTuple

from msgspec import Struct

from engine.blocks import BLOCK, BlockPool, blocks_for
from engine.fairness import Fairness
from engine.sequence import Sequence

_rank = attrgetter("rank")


class Limits(Struct, frozen=True, kw_only=True):
    """Tokens a step, sequences at once, tokens per prompt while others decode, blocks kept free on admission.

    `queue_seconds`: how long what waits may take to be read before newcomers are refused.
    """

    step_tokens: int = 512
    sequences: int = 32
    chunk: int = 128
    watermark: int = 1
    queue_seconds: float = 60.0


class Work(NamedTuple):
    """Compute the next `tokens` tokens of `sequence`; the last `len(drafts)` of them are guesses to be verified."""

    sequence: Sequence
    tokens: int
    drafts: tuple[int, ...] = ()

    @property
    def begin(self) -> int:
        """Position of the first row."""
        return self.sequence.computed

    @property
    def end(self) -> int:
        """One past the position of the last row."""
        return self.sequence.computed + self.tokens

    def ids(self) -> list[int]:
        """Token ids of the rows."""
        return self.sequence.tokens[self.begin : self.end] + list(self.drafts)

    @property
    def wanted(self) -> int:
        """How many of the last rows need logits: to draw from, to verify guesses, or to score a prompt."""
        sequence = self.sequence
        if sequence.scoring:
            return max(self.end - max(self.begin, sequence.scored), 0)
        return max(self.end - len(sequence.tokens) + 1, 0)


def _whole_blocks(pending: int, most: int) -> int:
    """Chunks end where blocks end, so that how a prompt was cut cannot be seen in its result."""
    return pending if pending <= most else most // BLOCK * BLOCK


class Scheduler:
    """`waiting` and `running` are sorted by rank."""

    def __init__(self, pool: BlockPool, limits: Limits) -> None:
        assert limits.step_tokens >= limits.sequences + BLOCK, "every decode needs its row, a prompt a block"
        assert limits.chunk >= BLOCK
        self._pool = pool
        self.limits = limits
        self._fairness = Fairness()
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.preemptions = 0

    def add(self, sequence: Sequence) -> None:
        """The caller has made sure that the pool could hold it whole: otherwise it would wait for ever."""
        self._fairness.join(sequence.salt)
        insort(self.waiting, sequence, key=_rank)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence in any state and free its blocks."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        self._fairness.leave(sequence.salt)
        self._release(sequence)

    def distrust(self, sequence: Sequence) -> None:
        """What was computed for this sequence is not to be shared."""
        self._pool.forget(sequence.blocks)

    def expired(self, now: float) -> list[Sequence]:
        """Sequences that waited past their deadline without ever being scheduled."""
        return [s for s in self.waiting if s.deadline is not None and s.scheduled is None and now >= s.deadline]

    def plan(self, now: float, chunk: int | None = None, alone: int | None = None) -> list[Work]:
        """The next step, in rank order. Every planned sequence has the blocks it needs. `now` in monotonic seconds.

        Sequences that are `reading` are busy; they may still lose their blocks, and are not reading any more then.
        `chunk`: tokens of a prompt while others decode; `alone`: of all prompts else. None: the limits' own.
        """
        self._displace()
        decoding = sum(sequence.pending == 1 for sequence in self.running)
        budget = self.limits.step_tokens - decoding  # what is left for prompts and guesses
        if not decoding:
            budget = min(alone or budget, budget)
        chunk = min(chunk or self.limits.chunk, self.limits.chunk) if decoding else budget
        plan: list[Work] = []
        preemptions, at = self.preemptions, 0
        while at < len(self.running):
            sequence = self.running[at]
            if sequence.reading:
                at += 1
                continue
            count = (
                1 if sequence.pending == 1 else _whole_blocks(sequence.pending, self._share(sequence, chunk, budget))
            )
            if count and not self._make_room(sequence, count):
                break
            if count:
                plan.append(Work(sequence, count))
                budget -= count if sequence.pending > 1 else 0
            at += 1
        for at, (sequence, count, _) in enumerate(plan):  # now that everybody has the blocks that are really needed
            if sequence.pending == 1 and sequence.drafts:
                drafts = self._guesses(sequence, budget)
                plan[at] = Work(sequence, count + len(drafts), drafts)
                budget -= len(drafts)
        if self.preemptions == preemptions:  # else the freed blocks belong to those that ran short
            plan += self._admit(budget, chunk, now)
        return plan

    def settle(self, work: Work, drawn: int = 0) -> None:
        """`work` was computed, `drawn` tokens came of it and are in `tokens`: all but the last were right guesses.

        Advances the sequence and publishes the blocks that became full.
        """
        sequence = work.sequence
        done, prompt = sequence.computed // BLOCK, sequence.prompt_done
        sequence.computed += work.tokens - len(work.drafts) + max(drawn - 1, 0)
        sequence.prompt_done = max(prompt, min(sequence.computed, sequence.prompt))
        self._fairness.charge(sequence.salt, sequence.prompt_done - prompt, drawn)
        sequence.extend_hashes()
        for at in range(done, sequence.computed // BLOCK):
            self._pool.publish(sequence.blocks[at], sequence.hashes[at])

    def _share(self, sequence: Sequence, chunk: int, budget: int) -> int:
        """Prompt tokens for this sequence. Scores need a row of logits per token: their chunks stay short."""
        return min(chunk, budget, self.limits.chunk) if sequence.scoring else min(chunk, budget)

    def _guesses(self, sequence: Sequence, budget: int) -> tuple[int, ...]:
        """As many of a sequence's drafts as budget and free blocks allow; takes the blocks."""
        room = (len(sequence.blocks) + max(self._pool.available - self.limits.watermark, 0)) * BLOCK
        drafts = tuple(sequence.drafts[: max(0, min(budget, room - len(sequence.tokens)))])
        need = blocks_for(len(sequence.tokens) + len(drafts)) - len(sequence.blocks)
        sequence.blocks += self._pool.take(max(need, 0))
        return drafts

    def _next(self) -> Sequence | None:
        """Who is let in next, of those whose next block nobody is computing right now."""
        ready = [one for one in self.waiting if not self._computed_elsewhere(one)]
        return min(ready, key=lambda one: (-one.priority, self._fairness.served(one.salt), one.arrival), default=None)

    def _computed_elsewhere(self, sequence: Sequence) -> bool:
        sequence.extend_hashes()
        reusable = self._reusable(sequence)
        at = len(self._pool.match(reusable))
        return at < len(reusable) and any(
            other.computed <= at * BLOCK < other.prompt - BLOCK + 1 and other.hashes[at : at + 1] == [reusable[at]]
            for other in self.running
        )

    @staticmethod
    def _reusable(sequence: Sequence) -> list[bytes]:
        """Blocks that need not be computed if somebody did. Always one token is: the next is drawn from its logits."""
        return [] if sequence.scoring else sequence.hashes[: (len(sequence.tokens) - 1) // BLOCK]

    def _displace(self) -> None:
        """Preempt what runs at a lower priority while somebody of a higher one finds no place."""
        head = self._next()
        while head is not None and self.running and self.running[-1].priority < head.priority:
            first = min(len(head.tokens), self.limits.chunk)
            spare = self._pool.available - self.limits.watermark
            if len(self.running) < self.limits.sequences and blocks_for(first) <= spare:
                return
            self._preempt(self.running[-1])

    def _admit(self, budget: int, chunk: int, now: float) -> list[Work]:
        plan: list[Work] = []
        while len(self.running) < self.limits.sequences and (sequence := self._next()) is not None:
            shared = self._pool.match(self._reusable(sequence))
            start = len(shared) * BLOCK
            count = _whole_blocks(len(sequence.tokens) - start, self._share(sequence, chunk, budget))
            if count == 0:
                break
            fresh = blocks_for(start + count) - len(shared)
            spare = self.limits.watermark if self.running else 0
            if fresh + self._pool.idle(shared) + spare > self._pool.available:
                break
            self.waiting.remove(sequence)
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
        need = max(blocks_for(sequence.computed + count) - len(sequence.blocks), 0)
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
        sequence.drafts = []
        sequence.reading = False
        sequence.computed = 0

    def check(self) -> None:
        """Assert that blocks are owned by running sequences only and that none is lost."""
        self._pool.check([sequence.blocks for sequence in self.running])
        assert not any(sequence.blocks for sequence in self.waiting)
