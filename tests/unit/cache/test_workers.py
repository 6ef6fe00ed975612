"""Two gateway workers on one Redis: what one keeps or takes back, the other serves or refuses."""

import asyncio
import os
import signal
import time
import uuid
from collections.abc import AsyncGenerator, Callable

import pytest
from redis.asyncio import Redis

from cache.embedder import HashEncoder
from cache.redis_link import Link
from cache.semantic import SemanticCache
from cache.store import Change
from cache.store.redis import RedisStore
from cache.types import CacheConfig, Hit, Kept, Miss
from policies.reuse.threshold import Params, Policy
from tests.clock import FrozenClock
from tests.services import redis_server
from tests.unit.cache.asking import query
from tests.waiting import until

Workers = tuple[SemanticCache, SemanticCache]
ASKED = "how do i bake bread at home"
SIMILAR = "how do i bake good bread at home"


class Listening(RedisStore):
    """Knows when its first words from the change stream have come."""

    async def start(self, listen: Callable[[Change], None]) -> None:
        heard = asyncio.Event()

        def note(change: Change) -> None:
            listen(change)
            heard.set()

        await super().start(note)
        async with asyncio.timeout(60):
            await heard.wait()


def worker(url: str, prefix: str) -> SemanticCache:
    return SemanticCache(
        Listening(Link(url, monotonic=time.monotonic, lookup=10.0), now=time.time, prefix=prefix),
        HashEncoder(),
        Policy(Params(similarity=0.9)),
        config=CacheConfig(),
        now=time.time,
        monotonic=time.monotonic,
    )


@pytest.fixture
async def workers(redis_url: str) -> AsyncGenerator[Workers]:
    prefix = f"test:{uuid.uuid4().hex}:"
    pair = worker(redis_url, prefix), worker(redis_url, prefix)
    for one in pair:
        await one.start()
    yield pair
    for one in pair:
        await one.close()


async def hits(cache: SemanticCache, text: str) -> bool:
    return isinstance(await cache.find(query(text)), Hit)


async def test_one_keeps_the_other_serves(workers: Workers) -> None:
    """Also into a partition that the other has had in memory for long."""
    one, other = workers
    assert not await hits(other, SIMILAR)
    await one.keep(query(ASKED), Kept(answer=b"{}"))
    assert await hits(other, ASKED)
    await until(lambda: hits(other, SIMILAR))


async def test_one_takes_back_the_other_refuses(workers: Workers) -> None:
    """The meaning tier refuses at once (the store decides), the other's front within moments."""
    one, other = workers
    entry_id = await one.keep(query(ASKED), Kept(answer=b"{}"))
    assert entry_id is not None
    assert await hits(other, SIMILAR)
    assert await other.evict(entry_id) is not None
    assert not await hits(one, SIMILAR)
    assert not await hits(other, ASKED)

    async def gone() -> bool:
        return not await hits(one, ASKED)

    await until(gone)


async def test_a_replaced_answer_reaches_the_other(workers: Workers) -> None:
    """A refreshed answer must replace what the other holds in front."""
    one, other = workers
    await one.keep(query(ASKED), Kept(answer=b"old"))
    assert await hits(other, ASKED)
    await one.keep(query(ASKED), Kept(answer=b"new"))

    async def renewed() -> bool:
        found = await other.find(query(ASKED))
        return isinstance(found, Hit) and found.entry.answer == b"new"

    await until(renewed)


async def test_a_purge_reaches_the_other(workers: Workers) -> None:
    """Purged means purged, in every worker's memory."""
    one, other = workers
    for number in range(20):
        await one.keep(query(f"{ASKED} number {number}"), Kept(answer=b"{}"))
    assert await hits(other, f"{ASKED} number 3")
    assert await one.purge(contains="bread") == 20

    async def gone() -> bool:
        return not await hits(other, f"{ASKED} number 3") and not await hits(other, f"{ASKED} the number 4")

    await until(gone)


async def test_workers_that_write_at_once_agree(workers: Workers) -> None:
    """Both answer the same question at the same moment: one entry remains, and the count is right."""
    one, other = workers
    await asyncio.gather(*(cache.keep(query(ASKED), Kept(answer=b"{}")) for cache in (one, other) for _ in range(20)))
    (row,) = await one.stats()
    assert row.entries == 1
    assert len(await other.entries(10)) == 1


async def test_redis_away_and_back() -> None:
    """An outage is misses, never errors; afterwards the cache works again by itself and has missed nothing."""
    with redis_server() as url:
        one, other = worker(url, "t:"), worker(url, "t:")
        await one.start()
        await other.start()
        await one.keep(query(ASKED), Kept(answer=b"{}"))
        assert await hits(other, SIMILAR)
        raw = Redis.from_url(url)
        pid = int((await raw.info("server"))["process_id"])
        await raw.aclose()
        os.kill(pid, signal.SIGSTOP)
        try:
            assert await hits(one, ASKED)
            for _ in range(3):
                found = await one.find(query("something new"))
                assert isinstance(found, Miss)
                assert found.reason == "store-down"
            assert await one.keep(query("something new"), Kept(answer=b"{}")) is None
            assert one.status() == {"store": "unreachable"}
        finally:
            os.kill(pid, signal.SIGCONT)
        await until(lambda: hits(one, SIMILAR))
        await one.keep(query("where do i find good flour for bread"), Kept(answer=b"{}"))
        await until(lambda: hits(other, "where do i find very good flour for bread"))
        await one.close()
        await other.close()


async def test_who_is_cut_off_serves_nothing_from_memory_for_long(redis_url: str) -> None:
    """One host without a way to Redis went on serving what was purged everywhere else, until it expired."""
    clock = FrozenClock()
    link = Link(redis_url, monotonic=clock.monotonic, lookup=10.0)
    store = RedisStore(link, now=time.time, prefix=f"cut:{uuid.uuid4().hex}:")
    cut = SemanticCache(store, None, Policy(Params()), config=CacheConfig(), now=time.time, monotonic=time.monotonic)
    await cut.start()
    await until(lambda: store.in_touch())
    await cut.keep(query(ASKED), Kept(answer=b"{}"))
    assert await hits(cut, ASKED)
    way, link.fast = link.fast, Redis.from_url("redis://127.0.0.1:1")
    assert await hits(cut, ASKED)  # a short silence costs nothing
    await store._background.close()
    clock.advance(11.0)
    found = await cut.find(query(ASKED))
    assert isinstance(found, Miss)
    assert found.reason == "store-down"
    link.fast = way
    clock.advance(2.0)
    assert await hits(cut, ASKED)  # Redis itself was asked
    await cut.close()
