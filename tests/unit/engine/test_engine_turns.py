"""Whose turn it is, how much of a step a prompt gets, who may wait: the parts that decide it, and the core obeying."""

from typing import Any

import pytest
import torch

from engine.admission import Admission
from engine.api import InvalidRequest, Overloaded
from engine.attention import KVCache, pack
from engine.blocks import BLOCK, BlockPool, blocks_for
from engine.core import EngineCore
from engine.fairness import Fairness
from engine.models.decoder import Decoder
from engine.pacing import LONGEST, STRETCH, Pace
from engine.scheduler import Limits, Scheduler, Work
from engine.sequence import Sequence
from tests.unit.engine.test_engine_scheduler import sequence


def test_a_prompts_share_follows_from_measured_seconds() -> None:
    """Steps of 10 ms, prompt tokens of 0.1 ms: to double a step, a hundred tokens; in whole blocks 96."""
    pace = Pace()
    assert pace.chunk(512) == 512  # nothing is known yet
    pace.observe(8, 0, 0.010)
    pace.observe(8, 64, 0.010 + 64 * 0.0001)
    assert pace.chunk(512) == int((STRETCH - 1) * 100) // BLOCK * BLOCK
    assert pace.chunk(64) == 64
    assert pace.part() == 1
    pace.observe(8, 64, 0.010 + 64 * 0.01)  # a long context: tokens are a hundred times dearer
    assert pace.chunk(512) == BLOCK
    assert pace.part() == pytest.approx((STRETCH - 1) * 0.010 / (BLOCK * 0.01))
    pace.observe(8, 0, 0.0)  # a clock too coarse says nothing


def test_the_gap_of_running_streams_is_bounded() -> None:
    """A model of a machine whose prompt tokens grow dearer with the context: no step beyond three decoding ones."""
    pace, worst, read = Pace(), 0.0, 0
    for _ in range(5):
        pace.observe(16, 0, 0.005)
    while read < 8192:
        chunk = pace.chunk(512)
        seconds = 0.005 + chunk * (0.00005 + read * 2e-8)
        worst = max(worst, seconds if read else 0.0)  # the very first chunk is the one that measures
        pace.observe(16, chunk, seconds)
        read += chunk
    assert worst <= 3 * 0.005


def test_a_block_that_takes_too_long_is_read_in_parts(make_core: Any, submit: Any, oracle: Any, clock: Any) -> None:
    """Far into a long prompt one block takes longer than ten steps that decode: each of those still gets its turn.

    The clock counts layers: 1 ms each of a step that decodes, 4 ms each of one block.
    """
    core = make_core(chunk=16)
    layers = core.decoder.parts
    advance = core.decoder.advance

    def told(passage: Any, cache: Any, count: int) -> None:
        clock.seconds += count * (0.004 if len(passage.batch.ids) >= BLOCK else 0.001)
        advance(passage, cache, count)

    core.decoder.advance = told
    try:
        core.submit("decodes", submit([5, 6, 7], max_tokens=60))
        core.step()
        for _ in range(4):
            core.step()
        core.submit("long", submit(list(range(1, 50)), max_tokens=2))
        said: dict[str, list[int]] = {"decodes": [], "long": []}
        gaps: list[float] = []
        while core.busy:
            before = clock.seconds
            for one in core.step():
                said[one.key] += one.output.tokens
            gaps.append(clock.seconds - before)
    finally:
        del core.decoder.advance
    assert said["long"] == oracle(list(range(1, 50)), 2)
    first = layers * 0.005  # nothing had been measured when it came: it is read beside the step at once
    assert max(gaps) <= max(first, 3 * layers * 0.001)
    assert sum(gap > layers * 0.001 for gap in gaps) > 3 * layers / 2, "three more blocks in parts"


def test_who_leaves_while_a_block_is_read_in_parts_frees_all_with_that_step(
    make_core: Any, submit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its layers that are left would be computed for nobody, its blocks be held for as many steps."""
    core = make_core(chunk=16)
    monkeypatch.setattr(core._pace, "part", lambda: 0.1)
    core.submit("decodes", submit([5, 6, 7], max_tokens=9))
    core.step()
    before = core.pool.available
    core.submit("long", submit(list(range(1, 50))))
    flight = core.launch()
    assert core._read is not None
    output = core.cancel("long", "abort")
    assert output is not None
    assert output.usage.prompt == 0
    assert core.pool.available < before
    core.collect(flight)
    assert core.pool.available == before
    core.step()
    assert core._read is None
    core.check()


def test_a_step_of_prompts_alone_is_bounded() -> None:
    """Half a thousand tokens at 10 ms each would be a step of five seconds: an engine that looks dead is killed."""
    pace = Pace()
    assert pace.alone(512) == 512  # nothing is known yet
    pace.observe(0, 64, 0.64)
    assert pace.alone(512) == int(LONGEST * 100) // BLOCK * BLOCK
    pace.observe(0, 16, 160.0)
    assert pace.alone(512) == BLOCK
    pace.forget()  # that was the warm-up
    assert pace.alone(512) == 512
    scheduler = Scheduler(BlockPool(100), Limits())
    for key in range(3):
        scheduler.add(sequence(key, 200))
    assert sum(work.tokens for work in scheduler.plan(0.0, 16, 48)) == 48


def test_the_least_served_tenant_goes_first() -> None:
    """One who asks for a thousand answers must not keep another from one; a pause is no credit."""
    turn = Fairness()
    turn.join("busy")
    turn.charge("busy", prompt=100, output=50)
    turn.join("new")
    assert turn.served("new") == turn.served("busy") == 200  # begins where the others are
    turn.charge("busy", prompt=1, output=0)
    assert turn.served("new") < turn.served("busy")
    turn.leave("new")
    turn.charge("busy", prompt=1000, output=0)
    turn.join("new")
    assert turn.served("new") == turn.served("busy")
    for at in range(6000):
        turn.join(f"t{at}")
        turn.leave(f"t{at}")
    assert len(turn._served) < 5000


def test_tenants_share_evenly(make_core: Any, submit: Any) -> None:
    """Ninety requests of one tenant came first; the other's ten are not the last to be served."""
    core: EngineCore = make_core(sequences=4)
    for key in range(90):
        core.submit(("flood", key), submit([key + 1] * 5, max_tokens=2, salt="flood"))
    for key in range(10):
        core.submit(("few", key), submit([key + 1] * 5, max_tokens=2, salt="few"))
    order: list[Any] = []
    while core.busy:
        order += [one.key for one in core.step() if one.output.finish is not None]
    assert max(at for at, key in enumerate(order) if key[0] == "few") < 30


def test_a_higher_priority_takes_the_place_of_a_lower(make_core: Any, submit: Any, oracle: Any) -> None:
    """Interactive requests do not wait for a batch to end; the batch loses nothing but time."""
    core: EngineCore = make_core(sequences=2)
    for key in range(2):
        core.submit(key, submit([key + 1] * 20, max_tokens=30, priority=-1))
    said: dict[Any, list[int]] = {}
    for _ in range(5):
        for one in core.step():
            said.setdefault(one.key, []).extend(one.output.tokens)
    core.submit("now", submit([9] * 20, max_tokens=3))
    assert len(core._scheduler.running) == 2
    while core.busy:
        for one in core.step():
            said.setdefault(one.key, []).extend(one.output.tokens)
    assert core.stats().preemptions == 1
    assert [*said][2:] == ["now"]
    assert [said[key] for key in range(2)] == [oracle([key + 1] * 20, 30) for key in range(2)]


def test_what_begins_alike_is_computed_once(make_core: Any, submit: Any) -> None:
    """The choices of one request come at the same moment: the first reads the prompt, the others share its blocks."""
    core: EngineCore = make_core(blocks=64)
    prompt = [1 + at % 250 for at in range(100)]
    for key in range(5):
        core.submit(key, submit(prompt, max_tokens=4, temperature=1.0, seed=key))
    held = 0
    cached: list[int] = []
    while core.busy:
        ended = [one.output.usage for one in core.step() if one.output.finish is not None]
        cached += [usage.cached for usage in ended if usage is not None]
        held = max(held, core.pool.count - core.pool.available)
        core.check()
    assert sorted(cached) == [0, 96, 96, 96, 96]
    assert held <= 6 + 5 * 1
    other: EngineCore = make_core(blocks=64)
    for key, salt in enumerate("ab"):  # tenants never share
        other.submit(key, submit(prompt, max_tokens=1, salt=salt))
    usages = [one.output.usage for _ in range(20) for one in other.step()]
    assert [usage.cached for usage in usages if usage is not None] == [0, 0]


def test_guesses_never_cost_another_its_blocks() -> None:
    """A guess is worth less than anybody's keys and values."""
    pool = BlockPool(4)
    scheduler = Scheduler(pool, Limits(watermark=0))
    first, second = sequence(0, 2 * BLOCK - 1), sequence(1, 2 * BLOCK - 1)
    for one in (first, second):
        scheduler.add(one)
    for work in scheduler.plan(0.0):
        work.sequence.tokens.append(1)
        scheduler.settle(work, 1)
    first.drafts = second.drafts = [1] * 8
    plan = scheduler.plan(0.0)
    assert [work.drafts for work in plan] == [(), ()]
    assert scheduler.preemptions == 0


def test_one_tenant_cannot_fill_the_queue_for_all() -> None:
    """A flood is refused while there is still room for others; the answer says when to come back."""
    admission = Admission(64, 60.0, Pace())
    waiting: list[Sequence] = []
    for arrival in range(57):
        admission.check("", waiting, [])
        waiting.append(sequence(arrival, 10))
    with pytest.raises(Overloaded) as refused:
        admission.check("", waiting, [])
    assert 1 <= refused.value.retry_after <= 60
    admission.check("another", waiting, [])


def test_a_queue_is_bounded_in_seconds_too() -> None:
    """Ten prompts of a hundred thousand tokens are a longer queue than a hundred short ones."""
    pace = Pace()
    pace.observe(0, 100, 0.1)
    admission = Admission(64, 60.0, pace)
    long = sequence(0, 70_000)
    admission.check("other", [], [long])
    with pytest.raises(Overloaded):
        admission.check("other", [long], [])


def test_a_request_that_can_never_fit_is_refused(make_core: Any, submit: Any) -> None:
    """It would wait for ever, and everybody behind it too."""
    core: EngineCore = make_core(blocks=4)
    with pytest.raises(InvalidRequest) as refused:
        core.submit("big", submit([5] * 60, max_tokens=5))
    assert refused.value.code == "context_length_exceeded"
    assert not core.busy


def test_a_cancelled_step_gives_its_blocks_back_when_it_is_done(make_core: Any, submit: Any) -> None:
    """A device may still write to them: they must not be handed out before."""
    core: EngineCore = make_core(blocks=16)
    for at, key in enumerate(("gone", "stays")):
        core.submit(key, submit([5 + at] * 40, max_tokens=9))
    core.step()
    before = core.pool.available
    flight = core.launch()
    output = core.cancel("gone", "abort")
    assert output is not None
    assert output.usage is not None
    assert output.usage.completion == 1
    assert core.pool.available <= before
    assert [one.key for one in core.collect(flight)] == ["stays"]
    assert core.pool.available > before
    core.check()


def test_prompt_scores_are_those_of_the_model(decoder: Decoder, make_core: Any, submit: Any) -> None:
    """Evaluation harnesses compare them between engines; chunks, preemption and a warm cache must not show."""
    prompt = [1 + at * 7 % 250 for at in range(90)]
    spec, blocks = decoder.spec, blocks_for(len(prompt))
    whole = sequence(0, 0)
    whole.tokens, whole.prompt, whole.blocks = prompt, len(prompt), list(range(1, blocks + 1))
    whole.sampling = submit([1], prompt_logprobs=0).sampling
    logits = decoder.forward(pack([Work(whole, len(prompt))]), KVCache(spec.layers, blocks, spec.kv_heads, spec.head))[
        : len(prompt) - 1
    ]
    rows = torch.arange(len(prompt) - 1)
    expected = logits.log_softmax(-1)[rows, torch.tensor(prompt[1:])].tolist()
    core: EngineCore = make_core(blocks=20, chunk=32, step_tokens=70)
    core.submit("warm", submit(prompt, max_tokens=1))
    while core.busy:
        core.step()
    core.submit("busy", submit([3] * 8, max_tokens=200))
    core.step()
    core.submit("me", submit(prompt, max_tokens=0, prompt_logprobs=2))
    scores: list[float] = []
    while "me" in core._live:
        for one in core.step():
            if one.key == "me":
                scores += [choice.logprob for choice in one.output.scores or []]
                assert one.output.tokens == []
    assert scores == pytest.approx(expected, abs=1e-5)
