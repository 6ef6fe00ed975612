"""Guesses at the next tokens, so that one step can verify several (Leviathan et al., arXiv 2211.17192).

Knows: sequences, where guesses come from, when to give up. Does not know: scheduling, how guesses are verified.

Verifying is exact and simple here: a token is a pure function of its row of logits, the request's seed and its
position, so a guess is right if and only if it is the token that plain decoding would draw, greedy or sampled. The
draft model draws with the same noise, so both draw the same token about as often as their distributions allow (a Gumbel
coupling). The answer is the same with and without speculation, token by token, and so its distribution is.
"""

import logging
from array import array
from typing import Protocol

from msgspec.structs import replace

from engine.attention import KVCache, pack
from engine.blocks import BlockPool, blocks_for
from engine.models.decoder import Decoder
from engine.sampler import Row, sample
from engine.scheduler import Work
from engine.sequence import Sequence

_log = logging.getLogger(__name__)
LEAST_RIGHT = 0.3  # fewer right guesses than this and a sequence stops guessing
_WINDOW = 24  # guesses that are judged together
_LONGEST, _SHORTEST = 4, 2  # tokens that must repeat
_WIDTH = array("I").itemsize


class Drafter(Protocol):
    """Where guesses come from."""

    def propose(self, asked: list[tuple[Sequence, int]]) -> list[list[int]]:
        """For each sequence at most that many tokens that may follow its own."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """This sequence has ended."""
        ...


class NGram:
    """What followed the last few tokens when they stood in the prompt, the answer or the prediction before.

    `always` off: only for requests that bring a prediction. On CPUs a guess costs nearly as much as a token.
    """

    def __init__(self, *, always: bool = True) -> None:
        self._always = always

    def propose(self, asked: list[tuple[Sequence, int]]) -> list[list[int]]:
        return [
            _repeat(sequence.prediction + sequence.tokens, most) if self._always or sequence.prediction else []
            for sequence, most in asked
        ]

    def forget(self, sequence: Sequence) -> None:
        """There is nothing to forget."""


def _repeat(tokens: list[int], most: int) -> list[int]:
    """What followed the latest earlier place where the last tokens stood; the longest match wins."""
    packed = array("I", tokens).tobytes()
    for size in range(min(_LONGEST, len(tokens) - 1), _SHORTEST - 1, -1):
        tail = packed[-size * _WIDTH :]
        at = packed.rfind(tail, 0, len(packed) - _WIDTH)
        while at > 0 and at % _WIDTH:  # a match of bytes that is none of tokens
            at = packed.rfind(tail, 0, at + len(tail) - 1)
        if at >= 0:
            begin = at // _WIDTH + size
            return tokens[begin : begin + most]
    return []


class DraftModel:
    """A smaller model with the same vocabulary; it has keys, values and blocks of its own.

    `chunk` bounds what it reads of prompts in one step, so that catching up with a long one delays nobody much.
    """

    def __init__(self, decoder: Decoder, blocks: int, chunk: int = 128) -> None:
        spec = decoder.spec
        self._decoder, self._chunk = decoder, chunk
        self._pool = BlockPool(blocks)
        self._cache = KVCache(spec.layers, blocks, spec.kv_heads, spec.head)
        self._shadows: dict[int, Sequence] = {}  # by arrival

    def propose(self, asked: list[tuple[Sequence, int]]) -> list[list[int]]:
        shadows = [self._catch_up(sequence) for sequence, _ in asked]
        budget = self._chunk
        for turn in range(max((most for _, most in asked), default=0)):
            plan: list[Work] = []
            for shadow, (sequence, most) in zip(shadows, asked, strict=True):
                drawn = len(shadow.tokens) - len(sequence.tokens)
                count = shadow.pending if drawn or shadow.pending == 1 else min(shadow.pending, budget)
                if drawn < min(most, turn + 1) and drawn == turn and count and self._room(shadow, count):
                    plan.append(Work(shadow, count))
                    budget -= count if count > 1 else 0
            if not plan:
                break
            self._draw(plan)
        return [shadow.tokens[len(one.tokens) :] for shadow, (one, _) in zip(shadows, asked, strict=True)]

    def forget(self, sequence: Sequence) -> None:
        shadow = self._shadows.pop(sequence.arrival, None)
        if shadow is not None:
            self._pool.give_back(shadow.blocks)

    def check(self) -> None:
        """Assert that every block is accounted for."""
        self._pool.check([shadow.blocks for shadow in self._shadows.values()])

    def _catch_up(self, sequence: Sequence) -> Sequence:
        """This model's view of a sequence: wrong guesses are taken back."""
        shadow = self._shadows.get(sequence.arrival)
        if shadow is None:
            shadow = self._shadows[sequence.arrival] = _shadow(sequence)
        right, limit = shadow.scored, min(shadow.computed, len(sequence.tokens) - 1)
        while right < limit and shadow.tokens[right] == sequence.tokens[right]:
            right += 1
        shadow.tokens, shadow.computed, shadow.scored = list(sequence.tokens), right, right
        return shadow

    def _room(self, shadow: Sequence, count: int) -> bool:
        need = blocks_for(shadow.computed + count) - len(shadow.blocks)
        if need > self._pool.available:
            return False
        shadow.blocks += self._pool.take(max(need, 0))
        return True

    def _draw(self, plan: list[Work]) -> None:
        ready = [work.sequence for work in plan if work.end == len(work.sequence.tokens)]
        picks = sample(
            self._decoder.forward(pack(plan, self._decoder.multiple), self._cache), [_row(one) for one in ready]
        )
        for work in plan:
            work.sequence.computed = work.end
        for shadow, pick in zip(ready, picks, strict=True):
            if pick.token is not None:
                shadow.tokens.append(pick.token)


def _shadow(sequence: Sequence) -> Sequence:
    """`scored` counts the tokens that both models know to be right."""
    return Sequence(
        key=sequence.key,
        tokens=[],
        prompt=sequence.prompt,
        sampling=replace(sequence.sampling, logprobs=None, prompt_logprobs=None),
        seed=sequence.seed,
        eos=sequence.eos,
        salt=sequence.salt,
        priority=0,
        arrival=sequence.arrival,
        submitted=sequence.submitted,
    )


def _row(sequence: Sequence) -> Row:
    return Row(
        sequence.sampling,
        sequence.seed,
        len(sequence.tokens),
        sequence.tokens[sequence.prompt :],
        sequence.tokens[: sequence.prompt],
    )


class Speculation:
    """Asks a drafter for those who decode, and stops asking where its guesses are mostly wrong.

    `tokens`: guesses per step and sequence. `most`: sequences that may decode at once; more fill a step by themselves.
    """

    def __init__(self, drafter: Drafter, tokens: int = 4, most: int = 16) -> None:
        assert tokens >= 1
        self._drafter, self._tokens, self._most = drafter, tokens, most
        self.drafted = 0
        self.accepted = 0

    def prepare(self, running: list[Sequence]) -> None:
        """Give every sequence that decodes its `drafts`."""
        decoding = [sequence for sequence in running if sequence.pending == 1]
        asked: list[tuple[Sequence, int]] = []
        for sequence in decoding:
            sequence.drafts = []
            left = sequence.sampling.max_tokens - sequence.completion - 1
            if left > 0 and not sequence.guesses.given_up and len(decoding) <= self._most:
                asked.append((sequence, min(self._tokens, left)))
        try:
            proposed = self._drafter.propose(asked)
        except (RuntimeError, MemoryError):  # torch's own errors, as of a draft model for which there is no memory
            _log.exception("guessing failed; %d requests go on without", len(asked))
            for sequence, _ in asked:
                sequence.guesses.given_up = True
            return
        for (sequence, _), drafts in zip(asked, proposed, strict=True):
            sequence.drafts = drafts if sequence.matcher is None else sequence.matcher.valid(drafts)

    def note(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """So many guesses were verified, and so many were right."""
        sequence.guesses.note(drafted, accepted, _WINDOW, LEAST_RIGHT)
        self.drafted += drafted
        self.accepted += accepted

    def forget(self, sequence: Sequence) -> None:
        self._drafter.forget(sequence)
