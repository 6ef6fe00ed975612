"""The scheduler alone: whom it lets in, and when it does not."""

from engine.api import SamplingParams
from engine.blocks import BLOCK, BlockPool
from engine.scheduler import Limits, Scheduler
from engine.sequence import Sequence


def sequence(arrival: int, tokens: int, priority: int = 0) -> Sequence:
    return Sequence(
        key=arrival,
        tokens=[arrival * 100 + at for at in range(tokens)],
        prompt=tokens,
        sampling=SamplingParams(max_tokens=100),
        seed=0,
        eos=frozenset(),
        salt="",
        priority=priority,
        arrival=arrival,
        submitted=0.0,
    )


def turn(scheduler: Scheduler) -> list[Sequence]:
    """One step in which every sequence that has caught up gets one token more."""
    plan = scheduler.plan(0.0)
    for work in plan:
        drawn = work.end == len(work.sequence.tokens)
        work.sequence.tokens += [1] * drawn
        scheduler.settle(work, int(drawn))
    scheduler.check()
    return [work.sequence for work in plan]


def test_nobody_is_let_in_while_others_run_short() -> None:
    """Blocks freed by a preemption belong to those that needed them; admitting at once would preempt again at once."""
    pool = BlockPool(4)
    scheduler = Scheduler(pool, Limits(watermark=0))
    first, second, third = sequence(0, 2 * BLOCK - 1), sequence(1, 2 * BLOCK - 1), sequence(2, 3)
    for one in (first, second):
        scheduler.add(one)
    assert turn(scheduler) == [first, second]
    scheduler.add(third)
    assert turn(scheduler) == [first, second]
    assert turn(scheduler) == [first]  # both need a third block: `second` gives its own up
    assert scheduler.waiting == [second, third]
    assert scheduler.preemptions == 1
    second.deadline = third.deadline = 5.0
    assert scheduler.expired(9.0) == [third]  # `second` has begun: it will be finished


def test_a_watermark_keeps_room_to_grow() -> None:
    """Letting a newcomer take the last block would cost the next decode a preemption."""
    pool = BlockPool(3)
    scheduler = Scheduler(pool, Limits(watermark=1))
    first, second = sequence(0, 2 * BLOCK - 2), sequence(1, 3)
    scheduler.add(first)
    scheduler.add(second)
    assert turn(scheduler) == [first]
    assert scheduler.waiting == [second]


def test_a_step_keeps_its_limits() -> None:
    """Tokens per step and sequences at once bound the time and the memory of a step."""
    scheduler = Scheduler(BlockPool(100), Limits(step_tokens=40, sequences=3, chunk=20))
    for arrival in range(6):
        scheduler.add(sequence(arrival, 50))
    for _ in range(30):
        plan = scheduler.plan(0.0)
        assert sum(work.tokens for work in plan) <= 40
        assert len(scheduler.running) <= 3
        for work in plan:
            drawn = work.end == len(work.sequence.tokens)
            work.sequence.tokens += [1] * drawn
            scheduler.settle(work, int(drawn))
