"""The cache as its caller sees it: hits, misses and their reasons, and that trouble is a miss."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from cache.embedder import Encoded, EncoderDown, HashEncoder
from cache.partition import Sizes
from cache.scope import Identity, scope_query
from cache.semantic import SemanticCache
from cache.store import StoreDown
from cache.store.memory import MemoryStore
from cache.types import CacheConfig, Entry, Hit, Kept, Miss, Query
from cache.vectors import to_bytes
from policies.reuse import Budget, Explore, Neighbour, Verdict
from policies.reuse.threshold import Params, Policy
from tests.clock import FrozenClock

ASKED = "how do i bake bread at home"
SIMILAR = "how do i bake good bread at home"


def query(text: str = ASKED, *, team: str = "acme", **fields: Any) -> Query:
    body: dict[str, object] = {"model": "m", "messages": [{"role": "user", "content": text}], **fields}
    found = scope_query(
        body,
        "chat",
        identity=Identity(team=team, project="app"),
        secret=b"0123456789abcdef",
        model="m",
        max_temperature=1.0,
        encoder="hash",
    )
    assert isinstance(found, Query)
    return found


class Rig:
    """A cache whose parts a test can break."""

    def __init__(self, clock: FrozenClock, **config: Any) -> None:
        self.clock = clock
        self.store: Any = MemoryStore()
        self.encoder: Any = HashEncoder()
        self.policy: Any = Policy(Params(similarity=0.9))
        self.config = CacheConfig(**config)

    def open(self) -> SemanticCache:
        return SemanticCache(
            self.store,
            self.encoder,
            self.policy,
            config=self.config,
            now=self.clock.now,
            monotonic=self.clock.monotonic,
        )


@pytest.fixture
async def cache(clock: FrozenClock) -> AsyncGenerator[SemanticCache]:
    opened = Rig(clock).open()
    await opened.start()
    yield opened
    await opened.close()


def reason(found: Hit | Miss) -> str:
    assert isinstance(found, Miss)
    return found.reason


async def test_exact_then_semantic(cache: SemanticCache) -> None:
    """The whole point: the same request, then another wording of it."""
    first = await cache.find(query())
    assert isinstance(first, Miss)
    assert first.reason == "far"
    entry_id = await cache.keep(query(), Kept(answer=b'{"a":1}', cost_nano=7, origin="r1"), vector=first.vector)
    exact = await cache.find(query())
    assert isinstance(exact, Hit)
    assert (exact.tier, exact.similarity, exact.entry.id, exact.entry.answer) == ("exact", 1.0, entry_id, b'{"a":1}')
    near = await cache.find(query(SIMILAR))
    assert isinstance(near, Hit)
    assert (near.tier, near.entry.id) == ("semantic", entry_id)
    assert 0.9 <= near.similarity < 1.0
    assert near.looked[0].entry_id == entry_id


async def test_another_tenant_finds_nothing(cache: SemanticCache) -> None:
    """The same words of another team are another question."""
    await cache.keep(query(), Kept(answer=b"{}"))
    assert reason(await cache.find(query(team="umbrella"))) == "far"


async def test_a_request_for_exact_only(cache: SemanticCache) -> None:
    """A client may ask for the exact tier alone."""
    await cache.keep(query(), Kept(answer=b"{}"))
    assert reason(await cache.find(query(SIMILAR), tier="exact")) == "not-kept"
    assert isinstance(await cache.find(query(), tier="exact"), Hit)


async def test_a_barred_query_matches_exactly_only(cache: SemanticCache) -> None:
    """Tools, pictures, time-sensitive wording: the reason is told, the exact tier works."""
    tools: dict[str, Any] = {"tools": [{"type": "function", "function": {"name": "f"}}]}
    await cache.keep(query(**tools), Kept(answer=b"{}"))
    assert isinstance(await cache.find(query(**tools)), Hit)
    assert reason(await cache.find(query(SIMILAR, **tools))) == "tools"


async def test_kept_only_as_long_as_allowed(cache: SemanticCache, clock: FrozenClock) -> None:
    """The shortest of configuration, header and wording rules; then both tiers forget."""
    await cache.keep(query(), Kept(answer=b"{}"), ttl=10)
    clock.advance(9.9)
    assert isinstance(await cache.find(query()), Hit)
    clock.advance(0.2)
    assert reason(await cache.find(query())) == "expired"
    assert reason(await cache.find(query(SIMILAR))) == "far"
    assert await cache.keep(query(), Kept(answer=b"{}"), ttl=0) is None
    soon = query("who is winning right now")
    await cache.keep(soon, Kept(answer=b"{}"))
    clock.advance(301)
    assert reason(await cache.find(soon)) == "expired"


async def test_max_age_makes_it_stricter(cache: SemanticCache, clock: FrozenClock) -> None:
    """`Cache-Control: max-age=60` refuses what is older, in both tiers, and drops nothing."""
    await cache.keep(query(), Kept(answer=b"{}"))
    clock.advance(61)
    assert reason(await cache.find(query(), max_age=60)) == "expired"
    assert reason(await cache.find(query(SIMILAR), max_age=60)) == "far"
    assert isinstance(await cache.find(query(), max_age=62), Hit)
    assert isinstance(await cache.find(query(SIMILAR), max_age=62), Hit)


async def test_a_stricter_error_rate_reaches_the_policy(clock: FrozenClock) -> None:
    """A client may lower either budget, never raise it."""
    seen: list[Budget] = []

    class Watching(Policy):
        def judge(self, text: str, neighbours: Sequence[Neighbour], budget: Budget) -> Verdict:
            seen.append(budget)
            return super().judge(text, neighbours, budget)

    rig = Rig(clock, max_error_rate=0.01, max_wrong_hit_rate=0.04)
    rig.policy = Watching(Params(similarity=0.9))
    cache = rig.open()
    await cache.start()
    await cache.keep(query(), Kept(answer=b"{}"))
    await cache.find(query(SIMILAR))
    for asked in ((0.001, 0.5), (0.5, 0.02)):
        await cache.find(query(SIMILAR), allowed=Budget(max_error_rate=asked[0], max_wrong_hit_rate=asked[1]))
    told = [(budget.max_error_rate, budget.max_wrong_hit_rate) for budget in seen]
    assert told == [(0.01, 0.04), (0.001, 0.04), (0.01, 0.02)]
    await cache.close()


async def test_evict_takes_effect_at_once(cache: SemanticCache) -> None:
    """Somebody said the answer is wrong: nobody may get it again, from any tier."""
    entry_id = await cache.keep(query(), Kept(answer=b"{}"))
    assert entry_id is not None
    await cache.find(query(SIMILAR))
    evicted = await cache.evict(entry_id)
    assert evicted is not None
    assert evicted.text == ASKED
    assert reason(await cache.find(query())) == "far"
    assert reason(await cache.find(query(SIMILAR))) == "far"
    assert await cache.evict(entry_id) is None


class Late(MemoryStore):
    """Does what it is asked at once and says so when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.late, self.done = asyncio.Event(), asyncio.Event()
        self.late.set()

    async def get(self, exact: bytes) -> Entry | None:
        return await self._told(await super().get(exact))

    async def put(self, entry: Entry) -> None:
        await self._told(await super().put(entry))

    async def _told(self, found: Entry | None) -> Entry | None:
        self.done.set()
        await self.late.wait()
        return found


@pytest.mark.parametrize("begun", ["find", "keep"])
@pytest.mark.parametrize("back", ["evict", "purge all", "purge team"])
async def test_what_is_taken_back_while_the_store_still_answers_does_not_stay(
    clock: FrozenClock, begun: str, back: str
) -> None:
    """A reply of Redis that lies in the socket while an answer is reported wrong would have it served for its whole
    life by this process, out of its memory."""
    rig = Rig(clock)
    rig.store = Late()
    cache = rig.open()
    await cache.start()
    if begun == "find":
        await cache.keep(query(), Kept(answer=b"wrong"))
        cache._front.clear()
    rig.store.late.clear()
    rig.store.done.clear()
    vector = to_bytes((await rig.encoder.encode([ASKED])).vectors[0])
    work = cache.find(query()) if begun == "find" else cache.keep(query(), Kept(answer=b"wrong"), vector=vector)
    async with asyncio.TaskGroup() as group:
        group.create_task(work)
        await rig.store.done.wait()
        (entry,) = await cache.entries(1)
        if back == "evict":
            assert await cache.evict(entry.id) is not None
        else:
            assert await cache.purge(team=None if back == "purge all" else "acme") == 1
        rig.store.late.set()
    assert isinstance(await cache.find(query()), Miss)
    await cache.close()


async def test_purge_by_what_is_given(cache: SemanticCache) -> None:
    """Purging one team's entries leaves the others alone."""
    await cache.keep(query(), Kept(answer=b"{}"))
    await cache.keep(query(team="umbrella"), Kept(answer=b"{}"))
    assert await cache.purge(team="acme", contains="BREAD") == 1
    assert reason(await cache.find(query())) == "far"
    assert isinstance(await cache.find(query(team="umbrella")), Hit)
    assert await cache.purge() == 1


async def test_a_new_answer_replaces_the_old(cache: SemanticCache) -> None:
    """A refreshed answer must be what the next caller gets, from both tiers."""
    await cache.keep(query(), Kept(answer=b"old"))
    await cache.find(query(SIMILAR))
    await cache.keep(query(), Kept(answer=b"new"))
    for text in (ASKED, SIMILAR):
        found = await cache.find(query(text))
        assert isinstance(found, Hit)
        assert found.entry.answer == b"new"
    assert len(await cache.entries(10)) == 1


async def test_counts_tell_what_happened(cache: SemanticCache) -> None:
    """Hit rates on the page come from here."""
    await cache.find(query())
    await cache.keep(query(), Kept(answer=b"{}"))
    await cache.find(query())
    await cache.find(query(SIMILAR))
    await cache.find(query("something else entirely"))
    (row,) = await cache.stats()
    assert (row.team, row.project, row.model) == ("acme", "app", "m")
    assert (row.entries, row.lookups, row.kept, row.hits_exact, row.hits_semantic) == (1, 4, 1, 1, 1)
    assert row.misses == {"far": 2}


@pytest.mark.parametrize(
    ("mode", "exact", "similar"),
    [("off", "off", "off"), ("exact", "hit", "not-kept"), ("shadow", "hit", "shadow"), ("semantic", "hit", "hit")],
)
async def test_modes(clock: FrozenClock, mode: Any, exact: str, similar: str) -> None:
    """Each mode serves what it says and nothing more; shadow notes what it would have done."""
    cache = Rig(clock, mode=mode).open()
    await cache.start()
    await cache.keep(query(), Kept(answer=b"{}"))
    for text, expected in ((ASKED, exact), (SIMILAR, similar)):
        found = await cache.find(query(text))
        assert ("hit" if isinstance(found, Hit) else found.reason) == expected
        if expected == "shadow":
            assert len(found.looked) == 1
    await cache.close()


async def test_an_answer_that_is_too_large_is_not_kept(clock: FrozenClock) -> None:
    """One giant answer must not push out a thousand others."""
    cache = Rig(clock, max_answer=10).open()
    await cache.start()
    assert await cache.keep(query(), Kept(answer=b"x" * 11)) is None
    assert await cache.keep(query(), Kept(answer=b"x" * 10)) is not None
    await cache.close()


async def test_exploring_is_a_miss_with_a_question(clock: FrozenClock) -> None:
    """A policy that wants to learn names the entry whose answer the fresh one is compared with."""

    class Curious(Policy):
        def judge(self, text: str, neighbours: Sequence[Neighbour], budget: Budget) -> Verdict:
            return Explore(entry_id=neighbours[0].entry_id)

    rig = Rig(clock)
    rig.policy = Curious(Params(similarity=0.5))
    cache = rig.open()
    await cache.start()
    entry_id = await cache.keep(query(), Kept(answer=b"{}"))
    found = await cache.find(query(SIMILAR))
    assert isinstance(found, Miss)
    assert (found.reason, found.explore) == ("explore", entry_id)
    await cache.close()


class BrokenStore(MemoryStore):
    """A store that is away when told so."""

    down = False

    def _check(self) -> None:
        if self.down:
            raise StoreDown("away")

    async def get(self, exact: bytes) -> Entry | None:
        self._check()
        return await super().get(exact)

    async def put(self, entry: Entry) -> None:
        self._check()
        await super().put(entry)

    async def drop(self, entry_id: int) -> Entry | None:
        self._check()
        return await super().drop(entry_id)

    async def counts(self) -> Any:
        self._check()
        return await super().counts()

    async def vectors(self, scope: bytes, encoder: str) -> Any:
        self._check()
        return await super().vectors(scope, encoder)


async def test_a_store_that_is_away_is_a_miss(clock: FrozenClock) -> None:
    """Requests must flow; what this process holds in front still serves."""
    rig = Rig(clock)
    rig.store = BrokenStore()
    cache = rig.open()
    await cache.start()
    await cache.keep(query(), Kept(answer=b"{}"))
    rig.store.down = True
    assert isinstance(await cache.find(query()), Hit)
    assert reason(await cache.find(query(SIMILAR))) == "store-down"
    assert await cache.keep(query(SIMILAR), Kept(answer=b"{}")) is None
    (row,) = await cache.stats()
    assert row.entries is None
    await cache.close()


async def test_evicting_while_the_store_is_away_holds_here_and_is_made_up_for(clock: FrozenClock) -> None:
    """The caller learns that other processes do not know yet; this one refuses the entry from now on."""
    rig = Rig(clock)
    rig.store = BrokenStore()
    cache = rig.open()
    await cache.start()
    entry_id = await cache.keep(query(), Kept(answer=b"{}"))
    assert entry_id is not None
    rig.store.down = True
    with pytest.raises(StoreDown):
        await cache.evict(entry_id)
    rig.store.down = False
    assert reason(await cache.find(query())) == "far"
    assert reason(await cache.find(query(SIMILAR))) == "far"
    await cache.keep(query("another thing"), Kept(answer=b"{}"))
    assert await rig.store.get(query().exact) is None
    await cache.close()


async def test_a_wording_that_is_taken_back_while_the_store_is_away_takes_its_answer_along(clock: FrozenClock) -> None:
    """The report was on another wording of it: the answer itself went on being served out of this process's memory."""
    rig = Rig(clock)
    rig.store = BrokenStore()
    cache = rig.open()
    await cache.start()
    await cache.keep(query(), Kept(answer=b"{}"))
    (first,) = await cache.entries(1)
    other = replace(first, id=first.id + 1, exact=query(SIMILAR).exact, answer_id=first.id, doubt=0.0)
    assert await rig.store.put_key(other, first.exact, 8)
    for text in (ASKED, SIMILAR):
        assert isinstance(await cache.find(query(text)), Hit)
    rig.store.down = True
    with pytest.raises(StoreDown):
        await cache.evict(other.id)
    for text in (ASKED, SIMILAR):
        assert isinstance(await cache.find(query(text)), Miss)
    rig.store.down = False
    await cache.keep(query("another thing"), Kept(answer=b"{}"))
    assert await rig.store.get_many([first.exact, other.exact]) == [None, None]
    await cache.close()


async def test_an_entry_that_lies_about_its_scope_is_refused(clock: FrozenClock) -> None:
    """Defence in depth: even a store that hands over another tenant's entry under our digest leaks nothing."""

    class Mixed(MemoryStore):
        async def get(self, exact: bytes) -> Entry | None:
            found = await super().get(exact)
            return None if found is None else replace(found, scope=b"x" * 32)

        async def get_many(self, exacts: Sequence[bytes]) -> list[Entry | None]:
            return [
                None if found is None else replace(found, scope=b"x" * 32) for found in await super().get_many(exacts)
            ]

    rig = Rig(clock, front_entries=0)
    rig.store = Mixed()
    cache = rig.open()
    await cache.start()
    await cache.keep(query(), Kept(answer=b"{}"))
    assert reason(await cache.find(query())) == "far"
    assert reason(await cache.find(query(SIMILAR))) == "far"
    await cache.close()


class Moody(HashEncoder):
    """An encoder that is slow, away or broken when told so."""

    mood: str | None = None
    calls = 0

    async def encode(self, texts: Sequence[str]) -> Encoded:
        self.calls += 1
        if self.mood == "slow":
            await asyncio.sleep(5)
        if self.mood == "down":
            raise EncoderDown("encoder-down")
        return await super().encode(texts)

    def status(self) -> str | None:
        return "loading" if self.mood == "loading" else None


@pytest.mark.parametrize(
    ("mood", "expected"),
    [("slow", "embed-timeout"), ("down", "encoder-down"), ("loading", "encoder-loading")],
)
async def test_an_encoder_in_trouble_is_a_miss(clock: FrozenClock, mood: str, expected: str) -> None:
    """Waiting for a vector must never cost more than the model saves; exact hits go on."""
    rig = Rig(clock, embed_timeout=0.02, keep_timeout=0.02)
    rig.encoder = Moody()
    cache = rig.open()
    await cache.start()
    await cache.keep(query(), Kept(answer=b"{}"))
    rig.encoder.mood = mood
    assert isinstance(await cache.find(query()), Hit)
    assert reason(await cache.find(query(SIMILAR))) == expected
    assert await cache.keep(query(SIMILAR), Kept(answer=b"exact only")) is not None
    rig.encoder.mood = None
    kept = await cache.find(query(SIMILAR))
    assert isinstance(kept, Hit)
    assert kept.tier == "exact"
    await cache.close()


async def kept_but_not_embedded(
    clock: FrozenClock,
) -> tuple[SemanticCache, asyncio.Task[int | None], Hit, asyncio.Event]:
    """An answer that is served already while the encoder still holds its question; the event lets it go on."""

    class Held(HashEncoder):
        async def encode(self, texts: Sequence[str]) -> Encoded:
            await go_on.wait()
            return await super().encode(texts)

    go_on, rig = asyncio.Event(), Rig(clock)
    rig.encoder = Held()
    cache = rig.open()
    await cache.start()
    keeping = asyncio.get_running_loop().create_task(cache.keep(query(), Kept(answer=b"{}")))
    await asyncio.sleep(0)
    early = await cache.find(query(), tier="exact")
    assert isinstance(early, Hit)
    return cache, keeping, early, go_on


async def test_an_answer_is_there_for_the_same_request_before_it_is_embedded(clock: FrozenClock) -> None:
    """Where the look-up's embedding came too late, whoever asked the same in the next moment paid for it again."""
    cache, keeping, early, go_on = await kept_but_not_embedded(clock)
    go_on.set()
    assert await keeping == early.entry.id
    alike = await cache.find(query(SIMILAR))
    assert isinstance(alike, Hit)
    assert (alike.tier, alike.entry.id) == ("semantic", early.entry.id)
    await cache.close()


async def test_what_is_taken_back_before_it_is_embedded_is_not_kept(clock: FrozenClock) -> None:
    """It was served already: a person may call it wrong, and nobody may be served it after that."""
    cache, keeping, early, go_on = await kept_but_not_embedded(clock)
    await cache.evict(early.entry.id)
    go_on.set()
    assert await keeping is None
    assert isinstance(await cache.find(query(), tier="exact"), Miss)
    await cache.close()


async def test_of_two_answers_kept_at_once_for_one_request_the_later_is_kept_and_named(clock: FrozenClock) -> None:
    """A question that stands twice in a file to warm with was "could not be kept"; so was what a full front let go."""
    cache, keeping, early, go_on = await kept_but_not_embedded(clock)
    later = asyncio.get_running_loop().create_task(cache.keep(query(), Kept(answer=b'{"later":1}')))
    await asyncio.sleep(0)
    go_on.set()
    kept = await later
    assert kept is not None
    assert kept != early.entry.id
    assert await keeping == kept
    (entry,) = await cache.entries(5)
    assert (entry.id, entry.answer) == (kept, b'{"later":1}')
    await cache.close()


async def test_what_a_full_front_lets_go_while_it_is_embedded_is_kept(clock: FrozenClock) -> None:
    """It was taken for taken back: paid for, and asked for again by the next one."""
    cache, keeping, early, go_on = await kept_but_not_embedded(clock)
    cache._front.drop(early.entry.exact)  # as for want of room
    go_on.set()
    assert await keeping == early.entry.id
    assert isinstance(await cache.find(query(), tier="exact"), Hit)
    await cache.close()


async def test_keeping_after_a_miss_embeds_once(clock: FrozenClock) -> None:
    """A forward pass costs milliseconds; the look-up's vector is used again."""
    rig = Rig(clock)
    rig.encoder = Moody()
    cache = rig.open()
    await cache.start()
    missed = await cache.find(query())
    assert isinstance(missed, Miss)
    await cache.keep(query(), Kept(answer=b"{}"), vector=missed.vector)
    assert rig.encoder.calls == 1
    assert missed.vector == to_bytes((await rig.encoder.embed([ASKED]))[0])
    await cache.close()


async def test_text_beyond_the_window_is_exact_only(clock: FrozenClock) -> None:
    """Texts that differ only where the encoder stopped reading have the same vector."""
    rig = Rig(clock)
    rig.encoder = HashEncoder(window=6)
    cache = rig.open()
    await cache.start()
    missed = await cache.find(query())
    assert isinstance(missed, Miss)
    assert (missed.reason, missed.vector) == ("text-too-long", None)
    await cache.keep(query(), Kept(answer=b"{}"))
    assert isinstance(await cache.find(query()), Hit)
    (entry,) = await cache.entries(1)
    assert entry.vector == b""
    await cache.close()


async def test_without_an_encoder_the_exact_tier_works(clock: FrozenClock) -> None:
    """An exact-only gateway starts no encoder process."""
    rig = Rig(clock)
    rig.encoder = None
    cache = rig.open()
    await cache.start()
    await cache.keep(query(), Kept(answer=b"{}"))
    assert isinstance(await cache.find(query()), Hit)
    assert reason(await cache.find(query(SIMILAR))) == "not-kept"
    assert cache.status() == {}
    await cache.close()


async def test_indexes_come_back_from_the_store(clock: FrozenClock) -> None:
    """After a restart the first look-up of a scope rebuilds its index."""
    rig = Rig(clock)
    cache = rig.open()
    await cache.start()
    await cache.keep(query(), Kept(answer=b"{}"))
    await cache.keep(query("old question of last year"), Kept(answer=b"{}"), ttl=5)
    clock.advance(6)
    again = rig.open()
    await again.start()
    found = await again.find(query(SIMILAR))
    assert isinstance(found, Hit)
    assert found.tier == "semantic"
    assert again._partitions.held_vectors == 1
    await again.close()


async def test_few_partitions_stay_in_memory(clock: FrozenClock) -> None:
    """A thousand conversations are a thousand scopes; only the last used stay, and all remain findable."""
    cache = Rig(clock, partitions=3, resident_vectors=100).open()
    await cache.start()
    for number in range(10):
        await cache.keep(query(team=f"team-{number}"), Kept(answer=b"{}"))
        assert isinstance(await cache.find(query(SIMILAR, team=f"team-{number}")), Hit)
    assert len(cache._partitions) == 3
    assert isinstance(await cache.find(query(SIMILAR, team="team-0")), Hit)
    assert cache._partitions.held_vectors == 3
    await cache.close()


async def test_many_vectors_make_room(clock: FrozenClock) -> None:
    """Bounded by vectors too: ten busy scopes weigh more than a thousand idle ones."""
    cache = Rig(clock, partitions=100, resident_vectors=12).open()
    await cache.start()
    for team in ("one", "two", "three"):
        await cache.find(query(team=team))
        for number in range(6):
            await cache.keep(query(f"{ASKED} number {number} {team}", team=team), Kept(answer=b"{}"))
    assert cache._partitions.held_vectors <= 12
    await cache.close()


async def test_lookups_at_the_same_time_load_once(clock: FrozenClock) -> None:
    """A burst on a cold scope must not read the same vectors a hundred times."""
    loads = 0

    class Counting(MemoryStore):
        async def vectors(self, scope: bytes, encoder: str) -> Any:
            nonlocal loads
            loads += 1
            await asyncio.sleep(0.005)
            return await super().vectors(scope, encoder)

    rig = Rig(clock)
    rig.store = Counting()
    cache = rig.open()
    await cache.start()
    await cache.keep(query(), Kept(answer=b"{}"))
    found = await asyncio.gather(*(cache.find(query(SIMILAR)) for _ in range(50)))
    assert all(isinstance(one, Hit) for one in found)
    assert loads == 1
    await cache.close()


async def test_a_slow_partition_is_a_miss_and_there_next_time(clock: FrozenClock) -> None:
    """Nobody waits for a large scope; what is kept while it loads is not lost."""
    gate = asyncio.Event()

    class Slow(MemoryStore):
        async def vectors(self, scope: bytes, encoder: str) -> Any:
            rows = await super().vectors(scope, encoder)
            await gate.wait()
            return rows

    rig = Rig(clock)
    rig.store = Slow()
    cache = rig.open()
    await cache.start()
    await cache.keep(query(), Kept(answer=b"{}"))
    assert reason(await cache.find(query(SIMILAR))) == "index-loading"
    other = await cache.keep(query("where is the train to town"), Kept(answer=b"{}"))
    dropped = await cache.keep(query("what is a good name for a dog"), Kept(answer=b"{}"))
    assert dropped is not None
    await cache.evict(dropped)
    gate.set()
    await asyncio.sleep(0.01)
    assert isinstance(await cache.find(query(SIMILAR)), Hit)
    late = await cache.find(query("where is the train to town please"))
    assert isinstance(late, Hit)
    assert late.entry.id == other
    assert reason(await cache.find(query("what is a good name for a big dog"))) == "far"
    await cache.close()


async def test_large_partitions_are_searched_aside(clock: FrozenClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search of milliseconds would hold up every stream of the worker; additions meanwhile are not lost."""
    monkeypatch.setattr("cache.partitions.SIZES", Sizes(inline=0))
    cache = Rig(clock, embed_timeout=5.0).open()
    await cache.start()
    for number in range(30):
        await cache.keep(query(f"{number} {ASKED}"), Kept(answer=b"{}"))

    async def busy(number: int) -> None:
        entry_id = await cache.keep(query(f"question {number} about topic {number}"), Kept(answer=b"{}"))
        assert isinstance(
            await cache.find(query(f"question {number} about topic {number} now then {number}")), Hit | Miss
        )
        if number % 3 == 0 and entry_id is not None:
            await cache.evict(entry_id)

    await asyncio.gather(*(busy(number) for number in range(60)))
    kept = {entry.text for entry in await cache.entries(1_000)}
    assert len(kept) == 30 + 40
    for number in range(60):
        text = f"question {number} about topic {number}"
        found = await cache.find(query(f"{text} {number}"))
        assert (isinstance(found, Hit) and found.entry.text == text) == (number % 3 != 0), number
    await cache.close()


async def test_removed_vectors_leave_the_index_in_time(clock: FrozenClock) -> None:
    """Tombstones must neither hide live neighbours nor pile up."""
    cache = Rig(clock).open()
    await cache.start()
    keeper = await cache.keep(query(), Kept(answer=b"{}"))
    for number in range(400):
        entry_id = await cache.keep(query(f"{ASKED} {number}"), Kept(answer=b"{}"))
        assert entry_id is not None
        await cache.find(query(SIMILAR))
        await cache.evict(entry_id)
    found = await cache.find(query(SIMILAR))
    assert isinstance(found, Hit)
    assert found.entry.id == keeper
    assert cache._partitions.held_vectors < 200
    await cache.close()


async def test_an_exact_hit_is_fast() -> None:
    """Measured, not asserted by time: the front answers without the store, the encoder or an await that yields."""
    cache = SemanticCache(
        MemoryStore(), HashEncoder(), Policy(), config=CacheConfig(), now=time.time, monotonic=time.monotonic
    )
    await cache.start()
    asked = query()
    await cache.keep(asked, Kept(answer=b"{}"))
    coroutine = cache.find(asked)
    with pytest.raises(StopIteration) as ended:
        coroutine.send(None)
    assert isinstance(ended.value.value, Hit)
    await cache.close()


async def test_vectors_of_another_encoder_are_never_compared(clock: FrozenClock) -> None:
    """After a change of model or precision the old index must not be searched with new vectors."""
    rig = Rig(clock)
    cache = rig.open()
    await cache.start()
    await cache.keep(query(), Kept(answer=b"{}"))
    rig.encoder = HashEncoder()
    rig.encoder.name = "hash-of-tomorrow"
    other = rig.open()
    await other.start()
    assert reason(await other.find(query(SIMILAR))) == "far"
    assert np.allclose(await rig.encoder.embed([ASKED]), await HashEncoder().embed([ASKED]))
    await other.close()
