"""Random traffic on a core with far too few blocks: every answer must equal the oracle's and no block may be lost."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from engine.core import EngineCore
from engine.frames import Submit

SCENARIOS = range(30)


class Traffic:
    """One scenario: prompts that share prefixes (two letters only, so that a broken hash chain would be found out)."""

    def __init__(self, seed: int, submit: Callable[..., Submit]) -> None:
        self.rng = rng = random.Random(seed)
        letters = rng.choice([2, 200])
        bases = [[rng.randrange(1, 1 + letters) for _ in range(rng.randint(17, 60))] for _ in range(3)]
        self.todo: dict[int, Submit] = {}
        for key in range(rng.randint(4, 14)):
            tail = [rng.randrange(1, 1 + letters) for _ in range(rng.randint(1, 12))]
            self.todo[key] = submit(
                rng.choice(bases)[: rng.randint(1, 60)] + tail,
                max_tokens=rng.randint(1, 30),
                priority=rng.randint(0, 2),
                salt=rng.choice("ab"),
            )
        self.limits = {
            "step_tokens": rng.choice([24, 40, 200]),
            "sequences": rng.choice([2, 5, 8]),
            "chunk": rng.choice([16, 23, 64]),
            "watermark": rng.choice([0, 1, 3]),
        }
        self.blocks = rng.choice([8, 12, 30])


@pytest.mark.parametrize("seed", SCENARIOS)
def test_any_traffic_gives_the_oracles_answers(seed: int, make_core: Any, submit: Any, oracle: Any) -> None:
    """Chunking, sharing, preemption and aborts are bookkeeping: none of them may change a single token."""
    traffic = Traffic(seed, submit)
    core: EngineCore = make_core(traffic.blocks, **traffic.limits)
    answers: dict[int, list[int]] = {}
    aborted: set[int] = set()
    waiting = dict(traffic.todo)
    turns = 0
    while waiting or core.busy:
        turns += 1
        assert turns < 5000, "livelock"
        while waiting and traffic.rng.random() < 0.4:
            key, request = waiting.popitem()
            core.submit(key, request)
            answers[key] = []
        if answers and traffic.rng.random() < 0.02:
            key = traffic.rng.choice(list(answers))
            output = core.cancel(key, "abort")
            if output is not None:
                aborted.add(key)
                assert output.usage is not None
                assert output.usage.completion == len(answers[key])
        for one in core.step():
            assert isinstance(one.key, int)
            answers[one.key] += one.output.tokens
            if one.output.finish is not None:
                assert one.output.usage is not None
                assert one.output.usage.prompt == len(traffic.todo[one.key].tokens)
                assert one.output.usage.completion == traffic.todo[one.key].sampling.max_tokens
        core.check()
    assert core.stats().kv_used == 0
    for key, request in traffic.todo.items():
        wanted = oracle(request.tokens, request.sampling.max_tokens)
        got = answers[key]
        assert got == (wanted[: len(got)] if key in aborted else wanted)


def test_the_fuzz_meets_what_it_is_for(make_core: Any, submit: Any) -> None:
    """A fuzz that never preempts, shares or evicts proves nothing about them."""
    totals = {"preemptions": 0, "hit": 0, "evicted": 0}
    for seed in SCENARIOS:
        traffic = Traffic(seed, submit)
        core: EngineCore = make_core(traffic.blocks, **traffic.limits)
        for key, request in traffic.todo.items():
            core.submit(key, request)
        while core.busy:
            core.step()
        totals["preemptions"] += core._scheduler.preemptions
        totals["hit"] += core._pool.hit
        totals["evicted"] += core._pool.evicted
    assert min(totals.values()) > 10, totals
