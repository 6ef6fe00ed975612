"""Near-identical requests at the same time: one upstream call where the policy would serve one from the other."""

import asyncio
from pathlib import Path
from typing import Any

from tests.flow.test_audits import ASKED, SIMILAR, opened, say
from tests.live import Live
from tests.waiting import until


def slow(gateway: Live, ms: float) -> Any:
    up: Any = gateway.services.providers["up"]
    up._config = up._config.__class__(ttft_ms=ms)
    return up


async def test_the_second_wording_waits_for_the_first_ones_answer(tmp_path: Path) -> None:
    """A question that many ask at once in their own words should be bought once."""
    async with opened(tmp_path, audit_share=None) as gateway:
        up = slow(gateway, 300)
        first = asyncio.get_running_loop().create_task(say(gateway, ASKED))
        await asyncio.sleep(0.1)
        second = await say(gateway, SIMILAR)
        assert (await first).headers["x-nearhit-cache"] == "miss"
        assert second.headers["x-nearhit-cache"] == "hit-semantic"
        assert up.calls == 1


async def test_who_waits_for_anothers_answer_is_counted_once(tmp_path: Path) -> None:
    """Two look-ups for one request would halve the hit rate people see, and stretch the budget per request."""
    async with opened(tmp_path, audit_share=None) as gateway:
        slow(gateway, 300)
        first = asyncio.get_running_loop().create_task(say(gateway, ASKED))
        await asyncio.sleep(0.1)
        second = await say(gateway, SIMILAR)
        await first
        assert second.headers["x-nearhit-cache"] == "hit-semantic"
        cache = gateway.services.cache
        assert cache is not None
        (row,) = await cache.stats()
        assert (row.lookups, row.hits_exact, row.hits_semantic, row.misses) == (2, 0, 1, {"far": 1})
        assert row.trust is not None
        assert row.trust.hits == 1


async def test_the_wait_is_bounded(tmp_path: Path) -> None:
    """A slow leader must not hold up those behind it for longer than the operator allows."""
    async with opened(tmp_path, audit_share=None, herd_wait="100ms") as gateway:
        up = slow(gateway, 1_000)
        first = asyncio.get_running_loop().create_task(say(gateway, ASKED))
        await asyncio.sleep(0.1)
        second = await say(gateway, SIMILAR)
        assert second.headers["x-nearhit-cache"] == "miss"
        await first
        assert up.calls == 2


async def test_who_wants_nothing_kept_waits_for_nobody(tmp_path: Path) -> None:
    """With `max-age=0`, as HTTP libraries send it, the other one's answer would not do: two seconds for nothing."""
    async with opened(tmp_path, audit_share=None) as gateway:
        up = slow(gateway, 1_500)
        fresh = {"cache-control": "max-age=0"}
        asked = [asyncio.get_running_loop().create_task(say(gateway, ASKED))]
        await until(lambda: up.calls == 1)
        asked.append(asyncio.get_running_loop().create_task(say(gateway, SIMILAR, headers=fresh)))
        await until(lambda: up.calls == 2)
        assert not asked[0].done()
        assert [(await one).headers["x-nearhit-cache"] for one in asked] == ["miss", "miss"]


async def test_what_a_guard_forbids_is_not_waited_for(tmp_path: Path) -> None:
    """A near question with another number has another answer: waiting for it would be time lost."""
    async with opened(tmp_path, audit_share=None) as gateway:
        up = slow(gateway, 300)
        asked = [say(gateway, f"how do i bake {number} loaves of bread at home today") for number in (2, 3)]
        told = await asyncio.gather(*asked)
        assert [one.headers["x-nearhit-cache"] for one in told] == ["miss", "miss"]
        assert up.calls == 2
