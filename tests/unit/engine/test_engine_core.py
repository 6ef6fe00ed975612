"""The core, step by step: what it admits, in which order, and how it ends things."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch

from engine.api import EngineFailed, InvalidRequest, Overloaded
from engine.core import EngineCore, plan_blocks
from engine.frames import Output
from engine.models import tiny
from engine.models.decoder import Decoder
from engine.models.loader import build
from engine.models.packed import packing
from engine.models.spec import read_spec
from engine.scheduler import Limits
from engine.selfcheck import reproducible

PROMPT = [7, 8, 9, 10] * 12


def drain(core: EngineCore) -> dict[Any, list[Output]]:
    found: dict[Any, list[Output]] = {}
    while core.busy:
        for one in core.step():
            found.setdefault(one.key, []).append(one.output)
    core.check()
    return found


def tokens(outputs: list[Output]) -> list[int]:
    return [token for output in outputs for token in output.tokens]


def test_decodes_go_on_while_a_long_prompt_is_read(make_core: Any, submit: Any) -> None:
    """A long prompt in one piece would freeze everybody else's stream."""
    core: EngineCore = make_core(blocks=130, step_tokens=64, chunk=32)
    core.submit("short", submit(PROMPT[:4], max_tokens=60))
    core.step()
    core.submit("long", submit([1 + n % 250 for n in range(1000)], max_tokens=1))
    gap = 0
    while core.busy:
        keys = [one.key for one in core.step()]
        if "long" in keys:
            break
        assert keys == ["short"]
        gap += 1
    assert gap >= 1000 // 32 - 1


def test_higher_priority_goes_first(make_core: Any, submit: Any) -> None:
    """The gateway maps paying tiers to priorities; equals go by arrival."""
    core: EngineCore = make_core(sequences=1)
    for key, priority in (("first", 0), ("second", 0), ("high", 5)):
        core.submit(key, submit(PROMPT, max_tokens=1, priority=priority))
    order = [one.key for _ in range(3) for one in core.step()]
    assert order == ["high", "first", "second"]


def test_preempted_answer_is_unchanged(make_core: Any, submit: Any, oracle: Any) -> None:
    """Giving up blocks and computing again must not show in the text, nor in what is billed."""
    core: EngineCore = make_core(blocks=8, watermark=0)
    prompts = {key: [key + 1] * 30 for key in range(3)}
    for key, prompt in prompts.items():
        core.submit(key, submit(prompt, max_tokens=40))
    found = drain(core)
    assert core._scheduler.preemptions > 0
    for key, prompt in prompts.items():
        assert tokens(found[key]) == oracle(prompt, 40)
        usage = found[key][-1].usage
        assert usage is not None
        assert (usage.prompt, usage.completion, usage.cached) == (30, 40, 0)


def test_sampled_answer_survives_preemption_and_company(make_core: Any, submit: Any) -> None:
    """Noise depends on seed, position and token alone, so crowding changes nothing for random answers either."""
    request = submit(PROMPT, max_tokens=30, temperature=1.0, seed=99)
    roomy: EngineCore = make_core(blocks=64)
    roomy.submit("me", request)
    alone = tokens(drain(roomy)["me"])
    tight: EngineCore = make_core(blocks=10, watermark=0)
    for other in range(3):
        tight.submit(other, submit([other + 1] * 40, max_tokens=40, priority=1))
    tight.submit("me", request)
    assert tokens(drain(tight)["me"]) == alone
    assert tight._scheduler.preemptions > 0


def exactly(outputs: list[Output]) -> list[tuple[int, float]]:
    """Tokens with their log probabilities, every bit of them."""
    found: list[tuple[int, float]] = []
    for output in outputs:
        assert output.choices is not None
        found += [(token, choice.logprob) for token, choice in zip(output.tokens, output.choices, strict=True)]
    return found


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def wide(request: pytest.FixtureRequest) -> Decoder:
    """Heads wide enough that one row computed another way really differs in its last bits.

    Packed, as on every processor that can: plain float32 rows come out alike in fours on some processors only.
    """
    shape = {"hidden": 256, "heads": 8, "head": 32, "feed_forward": 256}
    spec = msgspec.structs.replace(read_spec(tiny.config("qwen3")), **shape)
    return build(spec, tiny.tensors(spec, 8), packing(getattr(torch, request.param), torch.device("cpu")))


def test_an_answer_is_a_function_of_its_request(wide: Decoder, clock: Any, submit: Any) -> None:
    """To the last bit: neither chunks, nor company, nor reused prefixes, nor preemptions may be seen in a result.

    In bfloat16 a difference in the last bit is soon a different word, and a cached answer stands for a fresh one.
    """

    def core(blocks: int = 200, **limits: int) -> EngineCore:
        return EngineCore("m", wide, blocks=blocks, limits=Limits(**limits), queue=99, monotonic=clock)

    request = submit([1 + at * 7 % 250 for at in range(150)], max_tokens=50, temperature=1.0, seed=3, logprobs=0)
    quiet = core()
    quiet.submit("me", request)
    alone = exactly(drain(quiet)["me"])
    quiet.submit("again", request)
    again = drain(quiet)["again"]
    assert again[-1].usage is not None
    assert again[-1].usage.cached == 144
    assert exactly(again) == alone
    for chunk in (16, 40, 64):
        busy = core(chunk=chunk, step_tokens=70)
        for other in range(5):
            busy.submit(other, submit([other + 1] * (9 + other * 11), max_tokens=60))
        busy.step()
        busy.submit("me", request)
        assert exactly(drain(busy)["me"]) == alone
    crowded = core(blocks=20, watermark=0)
    crowded.submit("me", request)
    for _ in range(25):
        crowded.step()
    for other in range(3):
        crowded.submit(other, submit([other + 1] * 100, max_tokens=60, priority=1))
    outputs = drain(crowded)["me"]
    assert crowded._scheduler.preemptions > 0
    assert exactly(outputs) == alone[25:]


def test_a_conversation_goes_on_the_same_with_and_without_a_cache(wide: Decoder, clock: Any, submit: Any) -> None:
    """Generated tokens are computed in another way than a prompt's: their blocks must not stand in for those."""

    def core() -> EngineCore:
        return EngineCore("m", wide, blocks=200, limits=Limits(), queue=9, monotonic=clock)

    prompt = [1 + at * 7 % 250 for at in range(40)]
    used = core()
    used.submit("first", submit(prompt, max_tokens=60))
    followed = submit(prompt + tokens(drain(used)["first"]) + [5, 6, 7], max_tokens=20, logprobs=0)
    fresh = core()
    fresh.submit("second", followed)
    used.submit("second", followed)
    outputs = drain(used)["second"]
    assert exactly(outputs) == exactly(drain(fresh)["second"])
    assert outputs[-1].usage is not None
    assert outputs[-1].usage.cached == 32


def test_end_token_ends_and_is_counted(make_core: Any, submit: Any, oracle: Any) -> None:
    """The end token was computed, so it is billed; nothing comes after it."""
    wanted = oracle(PROMPT, 8)
    end = wanted[4]
    stop = wanted.index(end)
    core: EngineCore = make_core()
    core.submit("r", submit(PROMPT, max_tokens=8, eos=[end]))
    outputs = drain(core)["r"]
    assert outputs[-1].finish == "stop"
    assert tokens(outputs) == wanted[: stop + 1]
    assert outputs[-1].usage is not None
    assert outputs[-1].usage.completion == stop + 1


def test_prefix_reuse_within_a_tenant_only(make_core: Any, submit: Any) -> None:
    """The last prompt token is always computed, even when everything is cached: its logits are needed."""
    core: EngineCore = make_core()
    cached: list[int] = []
    for key, salt in enumerate(("a", "a", "b")):
        core.submit(key, submit(PROMPT, max_tokens=1, salt=salt))
        [output] = drain(core)[key]
        assert output.usage is not None
        cached.append(output.usage.cached)
    assert cached == [0, 32, 0]


def test_deadline_only_drops_what_never_started(make_core: Any, submit: Any, clock: Any) -> None:
    """A deadline is about the queue; an answer that has begun is finished."""
    core: EngineCore = make_core(sequences=1)
    core.submit("running", submit(PROMPT, max_tokens=5, deadline_ms=1000.0))
    core.submit("waiting", submit(PROMPT, max_tokens=5, deadline_ms=1000.0))
    core.step()
    clock.seconds += 2
    found = drain(core)
    assert [output.finish for output in found["waiting"]] == ["deadline"]
    assert found["running"][-1].finish == "length"
    timing = found["waiting"][0].timing
    assert timing is not None
    assert timing.queue_ms == pytest.approx(2000)


def test_bounded_queue_and_honest_retry_after(make_core: Any, submit: Any, clock: Any) -> None:
    """Over the bound a request is refused; the time named grows with what is waiting."""
    core: EngineCore = make_core(queue=2)
    for key in range(2):
        core.submit(key, submit(PROMPT, max_tokens=900))
    with pytest.raises(Overloaded) as refused:
        core.submit("more", submit(PROMPT))
    assert 1 <= refused.value.retry_after <= 60
    core.step()
    core.submit("now", submit(PROMPT))


def test_what_can_never_fit_is_refused_at_once(make_core: Any, submit: Any) -> None:
    """Accepted, it would wait for ever and everybody behind it too."""
    core: EngineCore = make_core(blocks=4)
    assert core.context == 64
    with pytest.raises(InvalidRequest):
        core.submit("r", submit(PROMPT, max_tokens=17))
    core.submit("r", submit(PROMPT, max_tokens=16))
    assert drain(core)["r"][-1].finish == "length"


def test_cancel_in_every_state(make_core: Any, submit: Any) -> None:
    """Queued, half prefilled, decoding, ended: each frees its blocks and tells what was computed."""
    core: EngineCore = make_core(sequences=1, step_tokens=33)
    core.submit("prefill", submit([5] * 100, max_tokens=4))
    core.submit("queued", submit(PROMPT, max_tokens=4))
    core.step()
    for key, prompt in (("queued", 0), ("prefill", 32)):
        output = core.cancel(key, "abort")
        assert output is not None
        assert output.usage is not None
        assert (output.usage.prompt, output.usage.completion) == (prompt, 0)
    core.submit("decoding", submit(PROMPT[:8], max_tokens=9))
    core.step()
    core.step()
    output = core.cancel("decoding", "stop")
    assert output is not None
    assert output.finish == "stop"
    assert output.usage is not None
    assert output.usage.completion == 2
    assert core.cancel("decoding", "abort") is None
    assert not core.busy
    core.check()


def test_logits_that_are_not_finite_end_one_request(make_core: Any, submit: Any, monkeypatch: Any) -> None:
    """A broken row must not become text, and must not take its neighbours along."""
    core: EngineCore = make_core()
    real = core.decoder.forward

    def broken(batch: Any, cache: Any) -> torch.Tensor:
        logits = real(batch, cache).clone()
        logits[0] = float("nan")
        return logits

    core.submit("bad", submit(PROMPT[:4], max_tokens=3))
    core.submit("good", submit(PROMPT[:5], max_tokens=3))
    monkeypatch.setattr(core.decoder, "forward", broken)
    first = {one.key: one.output for one in core.step()}
    monkeypatch.setattr(core.decoder, "forward", real)
    assert first["bad"].finish == "error"
    assert first["good"].finish is None
    assert drain(core)["good"][-1].finish == "length"


def test_blocks_behind_bad_logits_are_not_shared(make_core: Any, submit: Any, monkeypatch: Any) -> None:
    """Keys that led to nonsense once would spread it to everyone who begins alike."""
    core: EngineCore = make_core()
    real = core.decoder.forward
    monkeypatch.setattr(core.decoder, "forward", lambda batch, cache: real(batch, cache) * float("nan"))
    core.submit("bad", submit(PROMPT))
    assert [one.output.finish for one in core.step()] == ["error"]
    monkeypatch.setattr(core.decoder, "forward", real)
    core.submit("same", submit(PROMPT))
    usage = drain(core)["same"][-1].usage
    assert usage is not None
    assert usage.cached == 0


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), MemoryError()])
def test_a_failing_step_ends_its_requests_not_the_engine(
    error: Exception, make_core: Any, submit: Any, monkeypatch: Any
) -> None:
    """Out of memory in one step, torch's or numpy's, is no reason to restart."""
    core: EngineCore = make_core()
    real = core.decoder.forward

    def failing(batch: Any, cache: Any) -> torch.Tensor:
        raise error

    core.submit("r", submit(PROMPT))
    monkeypatch.setattr(core.decoder, "forward", failing)
    assert [one.output.finish for one in core.step()] == ["error"]
    monkeypatch.setattr(core.decoder, "forward", real)
    core.submit("next", submit(PROMPT))
    assert drain(core)["next"][-1].finish == "length"


def test_self_check_says_yes_and_can_say_no(decoder: Decoder, monkeypatch: Any) -> None:
    """Operators read `reproducible` in the engine's features; it must come from a look, not from hope."""
    assert reproducible(decoder)
    real = decoder.forward

    def shaky(batch: Any, cache: Any) -> torch.Tensor:
        return real(batch, cache) + 1e-7 * len(batch.ids)

    monkeypatch.setattr(decoder, "forward", shaky)
    assert not reproducible(decoder)


def test_warm_up_refuses_a_broken_model(make_core: Any, monkeypatch: Any) -> None:
    """A model whose logits are nonsense must not become ready."""
    core: EngineCore = make_core()
    core.warm_up()
    assert not core.busy
    assert core.stats().step_ms == 0
    real = core.decoder.forward
    monkeypatch.setattr(core.decoder, "forward", lambda batch, cache: real(batch, cache) * float("nan"))
    with pytest.raises(EngineFailed):
        make_core().warm_up()


def test_memory_bounds_the_cache(decoder: Decoder) -> None:
    """Keys and values take what they are given, or what all sequences could use, whichever is less."""
    limits = Limits(sequences=2)
    per_block = decoder.spec.layers * 2 * 16 * decoder.spec.kv_heads * decoder.spec.head * 4
    assert plan_blocks(decoder, limits, memory=10 * per_block) == 10
    assert plan_blocks(decoder, limits, memory=2**40) == 2 * decoder.spec.context // 16
    assert plan_blocks(decoder, limits, memory=0) == 1


def test_many_requests_leave_nothing_behind(make_core: Callable[..., EngineCore], submit: Any) -> None:
    """A leak of one block per thousand requests would end a server within days."""
    core = make_core(blocks=16, queue=10_000)
    for key in range(500):
        core.submit(key, submit([1 + key % 200, 2, 3], max_tokens=1 + key % 3))
    assert len(drain(core)) == 500
    assert core.stats().kv_used == 0
