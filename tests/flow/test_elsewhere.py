"""Identical requests at several workers: one upstream call among all, and nobody worse off if it comes to nothing."""

import asyncio
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from policies.budget import Budget
from tests.flow.two_gateways import behave, cache_of, gateways, upstream
from tests.live import Live, Told
from tests.services import redis_server
from tests.waiting import until

SLOW = {"ttft_ms": 400, "tokens": 12}


def later(gateway: Live, **body: Any) -> "asyncio.Task[Told]":
    return asyncio.get_running_loop().create_task(gateway.chat(**body))


async def begun(gateway: Live, **body: Any) -> "asyncio.Task[Told]":
    """Asked, and so far that this gateway makes the answer or waits for it."""
    leases = cache_of(gateway).leases
    before, asked = len(leases), later(gateway, **body)
    await until(lambda: len(leases) > before)
    return asked


async def test_workers_together_make_one_upstream_call(tmp_path: Path, redis_url: str) -> None:
    """The promise of one worker must be the promise of all of them: both forms mixed, at three gateways."""
    async with gateways(tmp_path, redis_url, SLOW, SLOW, SLOW) as found:
        told = await asyncio.gather(*(found[n % 3].chat(stream=n % 2 == 0) for n in range(90)))
        assert {one.status for one in told} == {200}
        assert found.calls == 1
        rows = await found.rows()
        assert sum(row["cost_nano"] > 0 for row in rows) == 1
        assert {row["cache"] for row in rows} == {"miss", "shared", "hit-exact"}
        (cost,) = {row["cost_nano"] for row in rows if row["cost_nano"]}
        assert {row["saved_nano"] for row in rows if not row["cost_nano"]} == {cost}
        assert set(found.waits()) == {"kept"}


async def test_who_waited_is_told_a_hit_and_where_its_time_went(tmp_path: Path, redis_url: str) -> None:
    """It is an exact hit like any other; the wait is nobody's overhead."""
    async with gateways(tmp_path, redis_url, {"ttft_ms": 1_000}, {}) as found:
        first = await begun(found[0])
        second = await found[1].chat()
        assert (await first).headers["x-nearhit-cache"] == "miss"
        assert second.headers["x-nearhit-cache"] == "hit-exact"
        assert second.headers["cache-status"].startswith("nearhit; hit; ttl=")
        assert second.headers["x-nearhit-cost-usd"] == "0"
        assert second.headers["x-nearhit-saved-usd"] == (await first).headers["x-nearhit-cost-usd"]
        spent = dict(part.strip().split(";dur=") for part in second.headers["server-timing"].split(","))
        assert float(spent["wait"]) > 500
        assert float(spent["cache"]) < 500
        assert float(spent["overhead"]) < 500


async def test_teams_never_wait_for_each_other(tmp_path: Path, redis_url: str) -> None:
    """A wait would tell one tenant what another asks just now, and an answer would be worse."""
    async with gateways(tmp_path, redis_url, SLOW, SLOW) as found:
        other = await found[1].new_key("rival")
        told = await asyncio.gather(found[0].chat(), found[1].chat(key=other))
        assert [one.headers["x-nearhit-cache"] for one in told] == ["miss", "miss"]
        assert found.calls == 2
        assert not found.waits()


async def test_who_forbids_reuse_neither_waits_nor_is_waited_for(tmp_path: Path, redis_url: str) -> None:
    """Not what may be kept for nobody, what must be fresh, what must be there already, what is only asked as if."""
    async with gateways(tmp_path, redis_url, SLOW, SLOW) as found:
        for headers in (
            {"cache-control": "no-store"},
            {"cache-control": "only-if-cached"},
            {"x-nearhit-cache": "off"},
            {"x-nearhit-dry-run": "1"},
        ):
            behave(found[0], ttft_ms=300)
            one = asyncio.get_running_loop().create_task(found[0].chat(headers=headers))
            await asyncio.sleep(0.1)
            assert not len(cache_of(found[0]).leases), headers
            await one
        first = await begun(found[0])
        assert (await found[1].chat(headers={"cache-control": "only-if-cached"})).status == 504
        for headers in ({"cache-control": "no-store"}, {"cache-control": "no-cache"}, {"x-nearhit-cache": "off"}):
            assert (await found[1].chat(headers=headers)).status == 200
        await first
        assert not found.waits()


async def test_a_refresh_ends_everybodys_wait(tmp_path: Path, redis_url: str) -> None:
    """An answer that is kept is the answer, whoever made it."""
    async with gateways(tmp_path, redis_url, {"ttft_ms": 5_000}, {}) as found:
        first = await begun(found[0])
        second = await begun(found[1])
        await found[1].chat(headers={"cache-control": "no-cache"})
        assert (await second).headers["x-nearhit-cache"] == "hit-exact"
        first.cancel()


async def test_it_can_be_switched_off(tmp_path: Path, redis_url: str) -> None:
    """0 seconds is how it was before: each worker makes a call of its own."""
    async with gateways(tmp_path, redis_url, SLOW, SLOW, wait_for_others=0) as found:
        await asyncio.gather(*(found[n % 2].chat() for n in range(6)))
        assert found.calls == 2
        assert not found.waits()


async def test_the_wait_is_bounded(tmp_path: Path, redis_url: str) -> None:
    """By the operator, and by half of what the request's own time allows: then it is answered here."""
    async with gateways(tmp_path, redis_url, {"ttft_ms": 3_000}, {}, wait_for_others="300ms") as found:
        first = await begun(found[0])
        told = await found[1].chat()
        assert told.headers["x-nearhit-cache"] == "miss"
        assert found.waits() == {"late": 1}
        assert (await first).status == 200
    async with gateways(tmp_path / "deadline", redis_url, {"ttft_ms": 3_000}, {}) as found:
        first = await begun(found[0])
        told = await found[1].chat(headers={"x-nearhit-timeout": "600ms"})
        assert told.status == 200
        assert found.waits() == {"late": 1}
        first.cancel()


async def test_a_cheaper_model_is_not_waited_for_anew(tmp_path: Path, redis_url: str) -> None:
    """What the operator allows is allowed a request, whichever model it ends with."""
    models = {"smart": {"route": ["up/a"]}, "small": {"route": ["up/b"]}}
    slow, more = {"ttft_ms": 5_000}, {"models": models}
    async with gateways(tmp_path, redis_url, slow, {}, wait_for_others="400ms", more=more) as found:
        for gateway in found:
            for name, price in (("up/a", "1.00"), ("up/b", "0.001")):
                terms: dict[str, Any] = {"input_usd": price, "output_usd": price, "actor": "test"}
                terms["effective_from"] = 0.0
                await gateway.services.prices.set(name, **terms)
        budget = Budget(scope="team:acme", limit_nano=50_000, degrade_to="small", degrade_at=1.0)
        await found[1].services.ledger.set_budget(budget, "test")
        firsts = [await begun(found[0], model=name, max_tokens=100) for name in models]
        told = await found[1].chat(model="smart", max_tokens=100)
        assert told.json["model"] == "small"
        assert found.waits() == {"late": 1}
        for first in firsts:
            first.cancel()


async def test_a_stream_waits_a_moment_beyond_the_first_token(tmp_path: Path, redis_url: str) -> None:
    """A client that reads along would see nothing before the whole is kept; one that wants the whole waits on."""
    story = {"ttft_ms": 100, "tpot_ms": 100, "tokens": 20}
    async with gateways(tmp_path, redis_url, story, {}, {}) as found:
        first = await begun(found[0], stream=True)
        whole = later(found[2])
        told = await found[1].chat(stream=True)
        assert told.headers["x-nearhit-cache"] == "miss"
        assert not first.done()
        # It was kept long before the first one's was whole, and is as good for those who still wait.
        assert (await whole).headers["x-nearhit-cache"] == "hit-exact"
        assert found.waits() == {"begun": 1, "kept": 1}
        assert (await first).status == 200


async def test_a_short_stream_is_waited_for(tmp_path: Path, redis_url: str) -> None:
    """What is whole within the moment is replayed."""
    async with gateways(tmp_path, redis_url, {"ttft_ms": 300, "tpot_ms": 5, "tokens": 10}, {}) as found:
        first = await begun(found[0], stream=True)
        told = await found[1].chat(stream=True)
        assert told.headers["x-nearhit-cache"] == "hit-exact"
        assert told.events[-1] == "[DONE]"
        await first
        assert found.calls == 1


async def test_when_the_first_fails_one_of_the_others_goes_on(tmp_path: Path, redis_url: str) -> None:
    """A failure elsewhere is no failure here, and no reason for all to call at once."""
    failing = {"ttft_ms": 300, "fail_rate": 1.0, "seed": 3}
    async with gateways(tmp_path, redis_url, failing, SLOW, SLOW, SLOW) as found:
        first = await begun(found[0])
        told = await asyncio.gather(*(found[1 + n % 3].chat() for n in range(12)))
        assert (await first).status >= 429
        assert {one.status for one in told} == {200}
        assert sorted(upstream(gateway).calls for gateway in found[1:]) == [0, 0, 1]
        waits = found.waits()
        assert waits["took-over"] == 4
        assert waits["kept"] == 8


async def test_an_answer_that_is_not_kept_is_waited_for_once(tmp_path: Path, redis_url: str) -> None:
    """One after the other would wait for what the next one will not keep either."""
    async with gateways(tmp_path, redis_url, SLOW, SLOW, SLOW) as found:
        cut: dict[str, Any] = {"max_tokens": 3}  # it ends for want of room
        first = await begun(found[0], **cut)
        told = await asyncio.gather(*(found[1 + n % 2].chat(**cut) for n in range(8)))
        assert {one.status for one in told} == {200}
        assert (await first).json["choices"][0]["finish_reason"] == "length"
        assert found.calls == 3
        assert found.waits() == {"not-kept": 8}
        again = await asyncio.gather(*(gateway.chat(**cut) for gateway in found))
        assert [one.headers["x-nearhit-cache"] for one in again] == ["miss"] * 3
        assert found.waits() == {"not-kept": 8}, "whoever comes after need not learn it anew"


async def test_an_answer_without_a_life_is_waited_for_once(tmp_path: Path, redis_url: str) -> None:
    """It is whole and could be kept but for its time: waiting for the next one is in vain all the same."""
    async with gateways(tmp_path, redis_url, {"ttft_ms": 600}, {"ttft_ms": 600}, {"ttft_ms": 600}) as found:
        brief = {"x-nearhit-cache-ttl": "0"}
        first = await begun(found[0], headers=brief)
        told = await asyncio.gather(*(gateway.chat(headers=brief) for gateway in found[1:]))
        assert {one.status for one in (await first, *told)} == {200}
        assert found.waits() == {"not-kept": 2}


async def test_who_takes_nothing_that_was_kept_waits_for_nothing(tmp_path: Path, redis_url: str) -> None:
    """`max-age=0` is what a reload says: at the end of a wait everything would be too old for it."""
    async with gateways(tmp_path, redis_url, {"ttft_ms": 2_000}, {}) as found:
        first = await begun(found[0])
        told = await found[1].chat(headers={"cache-control": "max-age=0"})
        assert told.headers["x-nearhit-cache"] == "miss"
        assert not found.waits()
        first.cancel()


async def test_a_client_that_leaves_frees_the_others(tmp_path: Path, redis_url: str) -> None:
    """The first one's leaving ends its call, and somebody else's turn comes at once; leaving a wait leaves nothing."""
    async with gateways(tmp_path, redis_url, {"ttft_ms": 60_000}, {}) as found:
        first = await begun(found[0])
        waiting = later(found[1])
        await until(lambda: len(cache_of(found[1]).leases) == 1)
        waiting.cancel()
        await until(lambda: len(cache_of(found[1]).leases) == 0)
        second = later(found[1])
        await until(lambda: len(cache_of(found[1]).leases) == 1)
        first.cancel()
        assert (await second).status == 200
        assert upstream(found[1]).calls == 1
        assert found.waits() == {"left": 1, "took-over": 1}
        await until(lambda: not any(len(cache_of(gateway).leases) for gateway in found))


async def test_redis_that_goes_away_ends_the_wait(tmp_path: Path) -> None:
    """The answer is then made here, within moments, and nothing fails."""
    with redis_server() as url:
        opened = gateways(tmp_path, url, {"ttft_ms": 60_000}, {}, {})
        found = await opened.__aenter__()
        first = await begun(found[0])
        waiting = [later(gateway) for gateway in found[1:]]
        await until(lambda: all(len(cache_of(gateway).leases) == 1 for gateway in found[1:]))
    told = await asyncio.wait_for(asyncio.gather(*waiting), 10)
    assert {one.status for one in told} == {200}
    assert found.waits() == {"store-down": 2}
    first.cancel()
    await opened.__aexit__(None, None, None)


async def test_nothing_stays_behind(tmp_path: Path, redis_url: str) -> None:
    """After hits, misses, failures and waits no lease is left, here or in Redis."""
    async with Redis.from_url(redis_url) as raw:
        await raw.flushdb()  # what tests before this one left would be waited for until it runs out, a minute
    async with gateways(tmp_path, redis_url, {"ttft_ms": 50, "fail_rate": 0.5, "seed": 5}, {"ttft_ms": 50}) as found:
        asked = [{"role": "user", "content": f"number {n}"} for n in range(8)]
        await asyncio.gather(
            *(found[n % 2].chat(messages=[message]) for n in range(40) for message in (asked[n % 8],)),
        )
        await until(lambda: not any(len(cache_of(gateway).leases) for gateway in found))
        async with Redis.from_url(redis_url) as raw:

            async def free() -> bool:
                return not [key async for key in raw.scan_iter(match="nearhit:cache:*:l:*")]

            await until(free)
