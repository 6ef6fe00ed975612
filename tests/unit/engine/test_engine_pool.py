"""Several engines as one: where requests go, and what happens to them when one is full or gone."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
import pytest

from engine.api import (
    Delta,
    Engine,
    EngineFailed,
    EngineLost,
    EngineStats,
    GenerateRequest,
    InvalidRequest,
    Overloaded,
    SamplingParams,
)
from engine.pool import EnginePool
from engine.sim import SimEngine

LONG = "The same long system prompt, which every request of this team begins with. " * 20


class Watched(SimEngine):
    """Remembers what it was asked; its stats can be set."""

    asked: list[str]
    shown: EngineStats | None = None

    def stats(self) -> EngineStats:
        return self.shown or super().stats()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        self.asked = [*getattr(self, "asked", []), request.id]
        async with aclosing(super().generate(request)) as deltas:
            async for delta in deltas:
                yield delta


def ask(id: str, text: str = "short", salt: str = "", max_tokens: int = 4) -> GenerateRequest:
    return GenerateRequest(id=id, sampling=SamplingParams(max_tokens=max_tokens), text=text, salt=salt)


async def answer(engine: Engine, request: GenerateRequest) -> list[Delta]:
    return [delta async for delta in engine.generate(request)]


async def pool_of(*engines: SimEngine) -> EnginePool:
    pool = EnginePool(engines)
    await pool.start()
    return pool


async def test_a_prompt_goes_where_its_beginning_is() -> None:
    """Sent anywhere else, the shared prompt is computed once per replica."""
    one, two = Watched(ttft_ms=30), Watched(ttft_ms=30)
    pool = await pool_of(one, two)
    busy = asyncio.gather(answer(pool, ask("a", "x" * 4000)), answer(pool, ask("b", LONG)))
    await busy
    assert (one.asked, two.asked) == (["a"], ["b"])
    await asyncio.gather(answer(pool, ask("c", "x" * 4000 + "more")), answer(pool, ask("d", LONG + "more")))
    assert (one.asked, two.asked) == (["a", "c"], ["b", "d"])
    await answer(pool, ask("other tenant", LONG, salt="t"))
    assert one.asked[-1] == "other tenant"
    await pool.stop()


async def test_full_or_failed_replicas_pass_a_request_on() -> None:
    """A replica that restarts must cost its neighbours' clients nothing."""
    full = Watched(fail=Overloaded("full", retry_after=7))
    gone = Watched(fail=EngineFailed("gone"))
    well = Watched()
    pool = await pool_of(full, gone, well)
    assert (await answer(pool, ask("r")))[-1].finish_reason
    assert well.asked == ["r"]
    assert pool.usage_of("r") is not None
    none = await pool_of(Watched(fail=Overloaded("full", retry_after=9)), full, gone)
    with pytest.raises(Overloaded) as caught:
        await answer(none, ask("r"))
    assert caught.value.retry_after == 7


async def test_what_has_begun_is_never_begun_again() -> None:
    """A second replica would repeat what the client has already read."""
    breaks = Watched(fail=EngineFailed("died"), fail_after=2)
    well = Watched()
    pool = await pool_of(breaks, well)
    with pytest.raises(EngineFailed):
        await answer(pool, ask("r", max_tokens=9))
    assert not hasattr(well, "asked")


async def test_what_may_have_ended_a_process_is_passed_on_once_and_in_turn() -> None:
    """One prompt that ends a process ended every replica, one after another, and all that had moved along with it."""
    ends = [Watched(fail=EngineLost("ended")) for _ in range(3)]
    pool = await pool_of(*ends)
    with pytest.raises(EngineLost) as caught:
        await answer(pool, ask("poison"))
    assert caught.value.twice
    assert sum(len(getattr(one, "asked", [])) for one in ends) == 2
    with pytest.raises(EngineLost) as caught:
        await answer(pool, msgspec.structs.replace(ask("poison"), suspected=True))
    assert not caught.value.twice
    assert sum(len(getattr(one, "asked", [])) for one in ends) == 3
    ended, well = Watched(fail=EngineLost("ended")), Watched(ttft_ms=50)
    pool = await pool_of(ended, well)
    moved = [asyncio.ensure_future(answer(pool, ask(f"moved {at}"))) for at in range(3)]  # noqa: TID251  (a test's own)
    seen = 0
    while not all(one.done() for one in moved):
        seen = max(seen, well.stats().running)
        await asyncio.sleep(0.005)
    assert [(await one)[-1].finish_reason for one in moved] == ["length"] * 3
    assert well.asked == ["moved 0", "moved 1", "moved 2"]
    assert seen == 1
    await pool.stop()


async def test_a_bad_request_is_refused_once() -> None:
    """Asking every replica would multiply the cost of nonsense."""
    one, two = Watched(), Watched()
    pool = await pool_of(one, two)
    with pytest.raises(InvalidRequest):
        await answer(pool, ask("r", max_tokens=0))
    assert one.asked == ["r"]
    assert not hasattr(two, "asked")


async def test_sleepers_are_left_alone_while_others_are_free_and_their_cache_is_forgotten() -> None:
    """Scaling down means nothing if every request wakes the next replica."""
    one, two = Watched(ttft_ms=1), Watched(ttft_ms=1)
    pool = await pool_of(one, two)
    await answer(pool, ask("a", LONG))
    one.shown = EngineStats(ready=True, sleeping=1, wake_ms=50)
    await answer(pool, ask("b", LONG))
    assert two.asked == ["b"]
    assert pool.stats().sleeping == 0
    one.shown = EngineStats(ready=False, loading="restarting")
    await answer(pool, ask("c"))
    assert two.asked == ["b", "c"]
    two.shown = EngineStats(ready=False, loading="restarting")
    assert pool.stats().loading == "restarting"
    with pytest.raises(EngineFailed):
        await answer(pool, ask("d"))


async def test_abort_and_usage_reach_the_replica_that_answers() -> None:
    """A client's cancel that goes astray leaves a request running for nobody."""
    one, two = Watched(tpot_ms=5, text="word " * 400), Watched(tpot_ms=5, text="word " * 400)
    pool = await pool_of(one, two)

    async def cut(id: str) -> Delta:
        seen: list[Delta] = []
        async with aclosing(pool.generate(ask(id, max_tokens=300))) as deltas:
            async for delta in deltas:
                seen.append(delta)
                pool.abort(id)
        return seen[-1]

    ends = await asyncio.gather(cut("a"), cut("b"))
    assert [end.finish_reason for end in ends] == ["abort", "abort"]
    assert {len(one.asked), len(two.asked)} == {1}
    for id, end in zip("ab", ends, strict=True):
        assert pool.usage_of(id) == end.usage
    assert await pool.count_tokens(ask("x")) > 0
    pool.abort("unknown")
    assert pool.usage_of("unknown") is None


async def test_leaving_early_gives_back_the_load() -> None:
    """Counts that only grow would in the end send everybody to the wrong replica."""
    pool = await pool_of(SimEngine(ttft_ms=1), SimEngine(ttft_ms=1))
    for at in range(20):
        async with aclosing(pool.generate(ask(f"r{at}", LONG))) as deltas:
            if at % 2:
                await anext(deltas)
    for replica in pool._replicas:
        assert (replica.prefilling, replica.running) == (0, 0)
    assert msgspec.structs.asdict(pool.stats())["running"] == 0
