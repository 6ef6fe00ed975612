"""Redis flushed, restarted, full or forgetful under several workers: misses at worst, never what was taken back."""

import asyncio
import time
from contextlib import suppress

import pytest
from redis.asyncio import Redis

from cache.embedder import HashEncoder
from cache.redis_link import Link
from cache.semantic import SemanticCache
from cache.store import Change, Selection, StoreDown
from cache.store.redis import RedisStore
from cache.types import CacheConfig, Entry, Hit, Kept
from policies.reuse.threshold import Params, Policy
from tests.proofs import wanted
from tests.services import redis_server
from tests.unit.cache.asking import query
from tests.waiting import until

ASKED = "how do i bake bread at home"
SIMILAR = "how do i bake good bread at home"


def entry(number: int, **fields: object) -> Entry:
    values: dict[str, object] = {
        "id": number,
        "scope": b"s" * 32,
        "exact": number.to_bytes(4, "big") * 8,
        "text": f"question {number}",
        "answer": b"x" * 200,
        "prompt_tokens": 1,
        "completion_tokens": 1,
        "cost_nano": 1_000,
        "latency_ms": 1.0,
        "created": time.time(),
        "expires": time.time() + 600.0,
        "team": "acme",
        "project": "app",
        "model": "m",
    }
    return Entry(**(values | fields))  # pyright: ignore[reportArgumentType] - a test's shorthand


def store(url: str, prefix: str = "t:", most: int = 10_000) -> RedisStore:
    # A look-up may take as long as a write: how fast this machine is just now is not what is tested here.
    return RedisStore(Link(url, monotonic=time.monotonic, lookup=10.0), now=time.time, prefix=prefix, max_entries=most)


def worker(url: str) -> SemanticCache:
    return SemanticCache(
        store(url),
        HashEncoder(),
        Policy(Params(similarity=0.9)),
        config=CacheConfig(embed_timeout=5.0),
        now=time.time,
        monotonic=time.monotonic,
    )


async def serves(cache: SemanticCache, text: str, team: str = "acme") -> bool:
    return isinstance(await cache.find(query(text, team)), Hit)


async def started(url: str, count: int) -> list[SemanticCache]:
    caches = [worker(url) for _ in range(count)]
    for cache in caches:
        await cache.start()
        await until(lambda cache=cache: _following(cache))
    return caches


async def _is_cut(found: RedisStore) -> bool:
    await found._read.look()
    return found._era.mark.cut > 0


async def _following(cache: SemanticCache) -> bool:
    found = cache._store
    assert isinstance(found, RedisStore)
    return found._follower._last is not None


async def test_all_workers_come_to_agree() -> None:
    """Adds, an eviction and a purge in one of three workers, seen by the others."""
    with redis_server() as url:
        caches = await started(url, 3)
        for number in range(40):
            await caches[number % 3].keep(query(f"{ASKED} {number}"), Kept(answer=b"{}"))
        for cache in caches:
            await until(lambda cache=cache: serves(cache, f"{ASKED} good 7"))
            await serves(cache, f"{ASKED} 7")
        found = await caches[0].find(query(f"{ASKED} 7"))
        assert isinstance(found, Hit)
        await caches[1].evict(found.entry.id)

        async def refused() -> bool:
            return not any([await serves(cache, f"{ASKED} 7") for cache in caches])

        await until(refused)
        assert await caches[2].purge(team="acme") == 39

        async def empty() -> bool:
            return not any([await serves(cache, f"{ASKED} {number}") for cache in caches for number in (1, 2, 3)])

        await until(empty)
        for cache in caches:
            await cache.close()


async def test_a_flush_is_one_word_for_everybody(redis_url: str) -> None:
    """However much is kept: gone at once for every worker, and cleaned up behind the scenes."""
    one, other = store(redis_url, "flush:"), store(redis_url, "flush:")
    told: list[Change] = []
    await one.start(lambda _: None)
    await other.start(told.append)
    for number in range(1, 700):
        await one.put(entry(number))
    assert await other.get(entry(5).exact) is not None
    assert await one.purge(Selection()) == 699
    assert await other.get_many([entry(number).exact for number in range(1, 700)]) == [None] * 699
    assert told[-1].kind == "reset"
    assert await other.counts() == {}
    await other.put(entry(1))
    assert await one.get(entry(1).exact) is not None
    raw = Redis.from_url(redis_url)

    async def clean() -> bool:
        return len([key async for key in raw.scan_iter(match="flush:*:*")]) < 12

    await until(clean)
    await raw.aclose()
    await one.close()
    await other.close()


async def test_a_purge_by_team_is_effective_before_it_is_done(redis_url: str) -> None:
    """Removing takes long where there is much; nobody may be served meanwhile, and others keep theirs."""
    one, other = store(redis_url, "cut:"), store(redis_url, "cut:")
    for number in range(1, 400):
        await one.put(entry(number, team="acme" if number % 2 else "umbrella"))
    asked = [entry(number).exact for number in range(1, 400)]
    assert None not in await other.get_many(asked)
    purging = asyncio.get_running_loop().create_task(one.purge(Selection(team="acme")))
    await until(lambda: _is_cut(one))
    found = await other.get_many(asked)
    assert {kept.team for kept in found if kept is not None} == {"umbrella"}
    assert await purging == 200
    assert len([kept for kept in await other.get_many(asked) if kept is not None]) == 199
    await one.put(entry(1))
    assert await other.get(entry(1).exact) is not None
    await one.close()
    await other.close()


async def test_flushall_is_noticed_even_under_traffic() -> None:
    """An operator empties Redis by hand: what workers hold in front must go too, within a second."""
    with redis_server() as url:
        one, other = await started(url, 2)
        await one.keep(query(ASKED), Kept(answer=b"{}"))
        assert await serves(other, ASKED)
        raw = Redis.from_url(url)
        await raw.flushall()

        async def gone() -> bool:
            await one.keep(query(f"something else {time.monotonic()}"), Kept(answer=b"{}"))
            return not await serves(other, ASKED) and not await serves(one, ASKED)

        await until(gone)
        await one.keep(query(ASKED), Kept(answer=b"{}"))
        await until(lambda: serves(other, SIMILAR))
        await raw.aclose()
        for cache in (one, other):
            await cache.close()


async def test_a_restart_without_data_is_a_cold_cache() -> None:
    """Redis comes back empty under the same address: both workers go on, and nothing old is found."""
    with redis_server() as url:
        one, other = await started(url, 2)
        await one.keep(query(ASKED), Kept(answer=b"{}"))
        await until(lambda: serves(other, SIMILAR))
    port = int(url.rsplit(":", 1)[1].split("/")[0])
    assert not await serves(one, "something new")
    with redis_server(port):

        async def back() -> bool:
            return await other.keep(query("where is the station"), Kept(answer=b"{}")) is not None

        await until(back)
        await until(lambda: serves(one, "where is the station"))

        async def forgotten() -> bool:
            return not await serves(one, SIMILAR) and not await serves(other, SIMILAR)

        await until(forgotten)
        for cache in (one, other):
            await cache.close()


@pytest.mark.reduced
@pytest.mark.parametrize("rule", ["noeviction", "allkeys-random", "volatile-lru"])
async def test_a_full_redis_lets_go_and_takes_back(rule: str) -> None:
    """Smaller than the bound on entries: writing goes on or is refused, reading never fails, an eviction stays one.

    In an ordinary run a third as many entries of thrice the size fill it.
    """
    most, size = (1_500, 3_000) if wanted() else (500, 9_000)
    with redis_server() as url:
        raw = Redis.from_url(url)
        info = await raw.info("memory")
        await raw.config_set("maxmemory", int(info["used_memory"]) + 2_500_000)
        await raw.config_set("maxmemory-policy", rule)
        one, other = store(url), store(url)
        await one.start(lambda _: None)
        refused = 0
        for number in range(1, most):
            try:
                await one.put(entry(number, answer=b"x" * size))
            except StoreDown:
                refused += 1
                await asyncio.sleep(0.005)  # a refusal on a busy machine may be a time-out: give it a moment
        asked = [entry(n).exact for n in range(1, most)]
        found = [kept for kept in await other.get_many(asked) if kept is not None]
        if not found and rule == "allkeys-random":  # what leads to all was let go: what is written now is there
            with suppress(StoreDown):  # by this `one` may learn that it was
                await one.put(entry(1, answer=b"x"))
            await one.put(entry(1, answer=b"x"))
            found = [kept for kept in await other.get_many(asked) if kept is not None]
        assert found
        assert refused < most - 100
        for kept in found[-20:]:
            try:
                await one.drop(kept.id)
            except StoreDown:
                continue
            assert await other.get(kept.exact) is None
        await one.purge(Selection())  # its count may be 0: what leads to the entries may be what Redis let go
        assert await other.get_many([kept.exact for kept in found]) == [None] * len(found)
        await raw.aclose()
        await one.close()
        await other.close()


@pytest.mark.parametrize("lost", [["i:"], ["meta"], ["a:"], ["i:", "meta", "a:", "used"]])
async def test_what_is_taken_back_stays_gone_though_redis_forgot_how_to_find_it(
    redis_url: str, lost: list[str]
) -> None:
    """Memory pressure takes the coldest keys first, and those are the ones that lead from an id to its answer."""
    prefix = f"lost:{','.join(lost)}:"
    one, other = store(redis_url, prefix), store(redis_url, prefix)
    await one.put(entry(1))
    await one.put_key(entry(2, answer_id=1), entry(1).exact, most=8)
    assert await other.get(entry(1).exact) is not None
    raw = Redis.from_url(redis_url)
    for part in lost:
        async for key in raw.scan_iter(match=f"{prefix}*:{part}*"):
            await raw.delete(key)
    await one.drop(1)
    assert await one.get_many([entry(1).exact, entry(2).exact]) == [None, None]
    assert await other.get_many([entry(1).exact, entry(2).exact]) == [None, None]
    await raw.aclose()
    await one.close()
    await other.close()


@pytest.mark.parametrize("lost", ["i:", ""])
async def test_what_is_taken_back_stays_gone_though_redis_forgot_that_it_was(redis_url: str, lost: str) -> None:
    """The list of what was taken back is a key like any other: a worker that started after Redis had let it go served
    again what had been reported wrong, or was being purged."""
    prefix = f"notes:{lost}"
    one = store(redis_url, prefix)
    await one.put(entry(1))
    raw = Redis.from_url(redis_url)
    if lost:  # what leads from the id to the answer, so that the note is all that there is against it
        async for key in raw.scan_iter(match=f"{prefix}*:{lost}*"):
            await raw.delete(key)
        await one.drop(1)
    else:
        await one._era.cut(Selection(team="acme"))  # of a purge that was killed before it removed anything
    assert await one.get(entry(1).exact) is None
    await raw.delete(f"{prefix}cuts")
    late = store(redis_url, prefix)
    assert await late.get(entry(1).exact) is None
    assert await one.get(entry(1).exact) is None
    await late.put(entry(2))
    assert await late.get(entry(2).exact) is not None
    await one._read.look()
    assert await one.get(entry(2).exact) is not None
    await raw.aclose()
    await one.close()
    await late.close()


async def test_a_lost_generation_never_brings_the_past_back(redis_url: str) -> None:
    """Should memory pressure take even that word, the cache begins anew; flushed entries may still lie around."""
    one, other = store(redis_url, "gen:"), store(redis_url, "gen:")
    await one.put(entry(1))
    assert await other.get(entry(1).exact) is not None
    raw = Redis.from_url(redis_url)
    await raw.delete("gen:generation")
    assert await one.get(entry(1).exact) is None
    assert await other.get(entry(1).exact) is None
    await raw.aclose()
    await one.close()
    await other.close()


async def test_the_worth_most_stay(redis_url: str) -> None:
    """Over the bound, what saves most and is used most is kept, by whichever worker it was used."""
    one, other = store(redis_url, "rank:", most=20), store(redis_url, "rank:", most=20)
    await one.put(entry(1, cost_nano=50_000_000))
    for number in range(2, 21):
        await one.put(entry(number))
    for _ in range(500):
        other.touch(entry(2).exact)
    await other._read.raise_ranks(other._touches.take())
    for number in range(100, 200):
        await one.put(entry(number))
    held = {kept.id for kept in await one.recent(100)}
    assert {1, 2} <= held
    assert len(held) == 20
    await one.close()
    await other.close()


async def test_what_redis_let_go_is_not_counted_for_long(redis_url: str) -> None:
    """Under `allkeys-lru` a cache of half its answers called itself full, and let live ones go for the lost."""
    kept, client = store(redis_url, "lru:"), Redis.from_url(redis_url)
    await kept.start(lambda _: None)
    for number in range(1, 300):
        await kept.put(entry(number))
    for number in range(1, 200):
        assert await client.delete(kept._keys.entry(entry(number).exact)) == 1
    for _ in range(4):  # a part of them at a time
        await kept.counts()
    assert sum((await kept.counts()).values()) == 100
    assert await client.zcard(kept._keys.used) == 100
    await client.aclose()
    await kept.close()


async def test_lost_records_do_not_keep_the_expired_for_ever(redis_url: str) -> None:
    """With its records Redis may lose what an expired answer was: it stayed due, and nothing behind it was swept."""
    kept, client = store(redis_url, "due:"), Redis.from_url(redis_url)
    await kept.start(lambda _: None)
    for number in range(1, 300):
        await kept.put(entry(number))
    await client.delete(kept._keys.meta, *(kept._keys.entry(entry(number).exact) for number in range(1, 300)))
    await client.zadd(kept._keys.expires, {entry(number).exact: 1.0 for number in range(1, 300)})
    await asyncio.wait_for(kept.counts(), 10)
    assert await client.zcard(kept._keys.expires) == 0
    await client.aclose()
    await kept.close()


async def test_a_redis_that_lets_nobody_in_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """A wrong password switched the cache off, and only a header of each answer said so: logs and start-up did not."""
    with redis_server() as url:
        one, raw = store(url), Redis.from_url(url)
        await raw.config_set("requirepass", "a-secret-of-redis")
        await one.start(lambda _: None)
        await until(lambda: "Authentication required" in caplog.text)
        await asyncio.sleep(2.5)  # several more tries
        assert caplog.text.count("Redis does not answer as it should") == 1
        await raw.config_set("requirepass", "")
        await until(lambda: "Redis answers again" in caplog.text)
        assert len(caplog.records) == 2
        assert "a-secret-of-redis" not in caplog.text
        await raw.aclose()
        await one.close()
