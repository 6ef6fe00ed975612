"""Identical calls in flight: one upstream call, every waiter answered."""

import asyncio
from pathlib import Path

from tests.live import live, settings

UPSTREAM = {"ttft_ms": 150, "tokens": 12}


async def test_500_identical_requests_make_one_upstream_call(tmp_path: Path) -> None:
    """A herd must cost one answer: the proof the product promises, with both forms mixed."""
    async with live(settings(tmp_path, upstream=UPSTREAM)) as gateway:
        told = await asyncio.gather(*(gateway.chat(stream=bool(n % 2)) for n in range(500)))
        assert {t.status for t in told} == {200}
        assert len(await gateway.entries()) == 1
        rows = await gateway.rows()
        assert len(rows) == 500
        assert sum(row["cost_nano"] > 0 for row in rows) == 1
        assert {row["cache"] for row in rows} <= {"miss", "shared", "hit-exact"}
        ids = {t.json["id"] if n % 2 == 0 else t.events[0]["id"] for n, t in enumerate(told)}
        assert len(ids) == 500


async def test_followers_are_answered_when_the_leader_has_gone(tmp_path: Path) -> None:
    """Whoever came first may leave; the call is not theirs alone any more."""
    async with live(settings(tmp_path, upstream=UPSTREAM)) as gateway:
        leader = asyncio.get_running_loop().create_task(gateway.chat())
        await asyncio.sleep(0.05)
        follower = asyncio.get_running_loop().create_task(gateway.chat())
        await asyncio.sleep(0.05)
        leader.cancel()
        told = await follower
        assert told.status == 200
        assert told.headers["x-nearhit-cache"] == "shared"
        assert len(await gateway.entries()) == 1
        (overhead,) = [row["overhead_ms"] for row in await gateway.rows() if row["cache"] == "shared"]
        assert overhead is None  # all of its wait would count as the gateway's own time


async def test_different_teams_never_share_a_flight(tmp_path: Path) -> None:
    """Coalescing is reuse, so the tenant boundary holds for it too."""
    async with live(settings(tmp_path, upstream=UPSTREAM)) as gateway:
        other = await gateway.new_key("rival")
        one, two = await asyncio.gather(gateway.chat(), gateway.chat(key=other))
        assert {one.headers["x-nearhit-cache"], two.headers["x-nearhit-cache"]} == {"miss"}
        assert len(await gateway.entries()) == 2


async def test_no_store_switches_sharing_off(tmp_path: Path) -> None:
    """A client that forbids reuse must not be handed another client's answer."""
    async with live(settings(tmp_path, upstream=UPSTREAM)) as gateway:
        told = await asyncio.gather(*(gateway.chat(headers={"cache-control": "no-store"}) for _ in range(3)))
        assert {t.headers["x-nearhit-cache"] for t in told} == {"bypass"}
        assert len(await gateway.entries()) == 3


async def test_everyone_hears_of_a_failure(tmp_path: Path) -> None:
    """A failed upstream call must end every waiter, not hang the followers."""
    async with live(settings(tmp_path, upstream={"ttft_ms": 50, "fail_rate": 1.0})) as gateway:
        told = await asyncio.gather(*(gateway.chat() for _ in range(5)))
        assert all(t.status >= 429 for t in told)
        assert len(await gateway.rows()) == 5
