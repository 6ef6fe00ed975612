"""How long answers live when the setting changes, or the clock."""

import pytest

from cache.embedder import HashEncoder
from cache.semantic import SemanticCache
from cache.store.memory import MemoryStore
from cache.types import CacheConfig, Hit, Kept, Miss
from policies.reuse.threshold import Params, Policy
from tests.clock import FrozenClock
from tests.unit.cache.asking import query

ASKED = "how do i bake bread at home"
SIMILAR = "how do i bake good bread at home"


def cache_of(store: MemoryStore, clock: FrozenClock, ttl: float) -> SemanticCache:
    return SemanticCache(
        store,
        HashEncoder(),
        Policy(Params(similarity=0.9)),
        config=CacheConfig(ttl=ttl),
        now=clock.now,
        monotonic=clock.monotonic,
    )


@pytest.mark.parametrize("asked", [ASKED, SIMILAR])
async def test_a_shorter_ttl_holds_for_what_is_kept(clock: FrozenClock, asked: str) -> None:
    """Who sets an hour because answers change goes by it at once: they were served for the day they were kept under."""
    store = MemoryStore(now=clock.now)
    await cache_of(store, clock, 86_400).keep(query(ASKED), Kept(answer=b"{}"))
    clock.advance(3_000)
    now = cache_of(store, clock, 3_600)
    found = await now.find(query(asked))
    assert isinstance(found, Hit)
    assert found.entry.expires == pytest.approx(clock.now() + 600)
    clock.advance(601)
    assert isinstance(await now.find(query(asked)), Miss)
    assert await now.entries(9) == []
    assert isinstance(await cache_of(store, clock, 86_400).find(query(asked)), Hit)


@pytest.mark.parametrize("asked", [ASKED, SIMILAR])
async def test_what_a_clock_far_ahead_dated_does_not_outlive_its_time(clock: FrozenClock, asked: str) -> None:
    """A host that woke up in another year kept answers that were served until that year had come and gone."""
    store = MemoryStore(now=clock.now)
    clock.jump(400 * 86_400)
    one = cache_of(store, clock, 86_400)
    await one.start()
    await one.keep(query(ASKED), Kept(answer=b"{}"))
    assert isinstance(await one.find(query(asked)), Hit)
    clock.jump(-400 * 86_400)
    assert isinstance(await one.find(query(asked)), Miss)
    await one.keep(query(ASKED), Kept(answer=b"{}"))
    clock.jump(-120)  # hosts differ by so much
    assert isinstance(await one.find(query(asked)), Hit)
