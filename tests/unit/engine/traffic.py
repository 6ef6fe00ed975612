"""Random traffic on a core with far too few blocks, and what it must come to. Knows no assertion framework."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from engine.api import SamplingParams
from engine.attention import KVCache, pack
from engine.blocks import blocks_for
from engine.core import Ended, EngineCore
from engine.frames import Submit
from engine.models.decoder import Decoder
from engine.pacing import Pace
from engine.sampler import Row, sample
from engine.scheduler import Limits, Work
from engine.sequence import Sequence
from engine.speculation import Drafter, DraftModel, NGram, Speculation

MOST_TURNS = 5_000
MOST_STILL = 3  # turns without work while somebody waits; one is possible, when the only one that ran was preempted


def right(decoder: Decoder, request: Submit, said: list[int]) -> bool:
    """Whether `said` is the answer by the plainest use of the decoder: one sequence, one step, nothing shared.

    Every token is what its row gives after those before it; so, by induction, all of them are.
    """
    spec, tokens = decoder.spec, request.tokens + said
    blocks = blocks_for(len(tokens))
    one = Sequence(
        key=0,
        tokens=tokens,
        prompt=len(request.tokens),
        sampling=SamplingParams(max_tokens=1, prompt_logprobs=0),
        seed=request.seed,
        eos=frozenset(),
        salt="",
        priority=0,
        arrival=0,
        submitted=0.0,
        blocks=list(range(1, blocks + 1)),
        scored=len(request.tokens) - 2,
    )
    if not said:
        return True
    logits = decoder.forward(pack([Work(one, len(tokens) - 1)]), KVCache(spec.layers, blocks, spec.kv_heads, spec.head))
    rows = [Row(request.sampling, request.seed, len(request.tokens) + at) for at in range(-1, len(said))]
    return [pick.token for pick in sample(logits, rows[1:] if len(request.tokens) == 1 else rows)][-len(said) :] == said


@dataclass
class Seen:
    """What a scenario met, so that a fuzz can prove that it meets what it is for."""

    requests: int = 0
    preemptions: int = 0
    hit: int = 0
    evicted: int = 0
    drafted: int = 0
    accepted: int = 0
    aborted: int = 0
    aborted_in_flight: int = 0
    copies: int = 0
    divided: int = 0
    wrong: int = 0


class Uneven(Pace):
    """Now and then a block of a prompt is too much for one step."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)

    def part(self) -> float:
        return self._random.choice([1.0, 0.6, 0.1])


class Traffic:
    """One scenario. Prompts share prefixes; two letters only, mostly, and the same blocks in other orders,
    so that a broken hash chain is found out."""

    def __init__(self, seed: int, draft: Decoder) -> None:
        self.rng = rng = random.Random(seed)
        letters = rng.choice([2, 2, 200])
        blocks = [[rng.randrange(1, 1 + letters) for _ in range(16)] for _ in range(3)]
        bases = [[token for _ in range(4) for token in rng.choice(blocks)] for _ in range(3)]
        self.todo: dict[int, Submit] = {}
        self.copies = 0
        while len(self.todo) < rng.randint(4, 14):
            tail = [rng.randrange(1, 1 + letters) for _ in range(rng.randint(1, 12))]
            prompt = rng.choice(bases)[: rng.choice([rng.randint(1, 60), 16, 32, 48])] + rng.choice([tail, tail, []])
            sampling = SamplingParams(max_tokens=rng.randint(1, 24), temperature=rng.choice([0.0, 0.0, 0.7]))
            salt, priority = rng.choice("ab"), rng.choice([0, 0, 1, 2])
            several = rng.choice([1, 1, 1, 3])  # the choices of one request
            self.copies += several - 1
            for at in range(several):
                self.todo[len(self.todo)] = Submit(
                    handle=0,
                    tokens=prompt,
                    sampling=sampling,
                    seed=seed + at,
                    eos=[],
                    salt=salt,
                    priority=priority,
                    deadline_ms=None,
                    prediction=rng.choice([[], prompt[::-1]]),
                )
        self.limits = Limits(
            step_tokens=rng.choice([24, 40, 200]),
            sequences=rng.choice([2, 5, 8]),
            chunk=rng.choice([16, 23, 64]),
            watermark=rng.choice([0, 1, 3]),
        )
        self.blocks = rng.choice([8, 12, 30])
        self.drafter = self._drafter(draft)
        self.guesses = rng.choice([1, 3, 6])

    def _drafter(self, draft: Decoder) -> Drafter | None:
        kind = self.rng.choice(["none", "ngram", "model"])
        if kind == "none":
            return None
        return NGram() if kind == "ngram" else DraftModel(draft, self.rng.choice([6, 40]), chunk=32)


@dataclass
class Run:
    """A scenario on its way: `said` by request, and which of them were aborted."""

    traffic: Traffic
    core: EngineCore
    said: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    aborted: set[int] = field(default_factory=set[int])
    ended: set[int] = field(default_factory=set[int])
    seen: Seen = field(default_factory=Seen)

    def play(self) -> None:
        """To the end. Raises AssertionError for a lost block, a wrong usage, an answer that never ends."""
        waiting, rng, turns, still = dict(self.traffic.todo), self.traffic.rng, 0, 0
        while waiting or self.core.busy:
            turns += 1
            assert turns < MOST_TURNS, "livelock"
            while waiting and rng.random() < 0.4:
                key, request = waiting.popitem()
                self.core.submit(key, request)
                self.said[key] = []
            self._abort(0.02, in_flight=False)
            flight = self.core.launch()
            self.seen.divided += self.core._read is not None
            self._abort(0.03, in_flight=True)
            still = 0 if flight.asked or not self.core.busy else still + 1
            assert still <= MOST_STILL, "nobody gets on"
            for one in self.core.collect(flight):
                self._hear(one)
            self.core.check()
            if isinstance(self.traffic.drafter, DraftModel):
                self.traffic.drafter.check()
        assert self.core.stats().kv_used == 0, "blocks are lost"
        assert self.ended == set(self.traffic.todo), "somebody never ended"

    def _abort(self, chance: float, *, in_flight: bool) -> None:
        if not self.said or self.traffic.rng.random() >= chance:
            return
        key = self.traffic.rng.choice(list(self.said))
        output = self.core.cancel(key, "abort")
        if output is not None:
            self.aborted.add(key)
            self.seen.aborted_in_flight += in_flight
            self._end(key, output.usage)

    def _hear(self, one: Ended) -> None:
        key = one.key
        assert isinstance(key, int)
        assert key not in self.ended, "spoken to after the end"
        self.said[key] += one.output.tokens
        if one.output.finish is not None:
            assert one.output.finish == "length"
            assert len(self.said[key]) == self.traffic.todo[key].sampling.max_tokens
            self._end(key, one.output.usage)
            assert one.output.usage is not None
            assert one.output.usage.prompt == len(self.traffic.todo[key].tokens)

    def _end(self, key: int, usage: Any) -> None:
        assert key not in self.ended, "ended twice"
        self.ended.add(key)
        assert usage.completion == len(self.said[key]), "usage is not what was said"
        assert usage.cached <= usage.prompt <= len(self.traffic.todo[key].tokens)

    def wrong(self, decoder: Decoder) -> int:
        """Requests whose tokens are not the oracle's; what was aborted must still be right as far as it came."""
        return sum(not right(decoder, self.traffic.todo[key], said) for key, said in self.said.items())


def play(seed: int, decoder: Decoder, draft: Decoder, clock: Callable[[], float]) -> Seen:
    """Scenario `seed` to its end."""
    traffic = Traffic(seed, draft)
    speculation = None if traffic.drafter is None else Speculation(traffic.drafter, traffic.guesses)
    core = EngineCore(
        "fuzzed",
        decoder,
        blocks=traffic.blocks,
        limits=traffic.limits,
        queue=1000,
        monotonic=clock,
        speculation=speculation,
    )
    core._pace = Uneven(seed)
    run = Run(traffic, core)
    run.play()
    stats, seen = core.stats(), run.seen
    seen.requests, seen.copies, seen.aborted = len(traffic.todo), traffic.copies, len(run.aborted)
    seen.preemptions, seen.drafted, seen.accepted = stats.preemptions, stats.drafted_tokens, stats.accepted_tokens
    seen.hit, seen.evicted = core.pool.hit, core.pool.evicted
    seen.wrong = run.wrong(decoder)
    return seen
