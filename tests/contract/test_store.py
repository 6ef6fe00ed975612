"""One suite for every store in `cache/store/`: memory, SQLite, and a real redis-server."""

import asyncio
import os
import signal
import sqlite3
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import numpy as np
import pytest
from redis.asyncio import Redis

from cache.redis_link import Link
from cache.store import Change, Selection, Store, Stored, StoreDown, known, load
from cache.store.memory import MemoryStore
from cache.store.redis import RedisStore
from cache.store.sqlite import SqliteStore
from cache.types import Entry, Group
from cache.vectors import pack, unpack
from tests.clock import FrozenClock
from tests.services import redis_server
from tests.waiting import until

SCOPE = b"s" * 32


def linked(url: str) -> Link:
    """A look-up may take as long as a write: how fast this machine is just now is not what is tested here."""
    return Link(url, monotonic=time.monotonic, lookup=10.0)


def entry(number: int, clock: FrozenClock, **fields: object) -> Entry:
    vector = np.zeros(8, np.float32)
    vector[number % 8] = 1.0
    values: dict[str, object] = {
        "id": number,
        "scope": SCOPE,
        "exact": number.to_bytes(4, "big") * 8,
        "text": f"question {number}",
        "answer": b'{"choices":[]}' * number,
        "prompt_tokens": 3,
        "completion_tokens": 5,
        "cost_nano": 7,
        "latency_ms": 9.0,
        "created": clock.now() + number,
        "expires": clock.now() + 3_600.0,
        "origin": "request-1",
        "team": "acme",
        "project": "app",
        "model": "chat",
        "vector": pack(vector),
        "encoder": "hash-8",
    }
    return Entry(**(values | fields))  # pyright: ignore[reportArgumentType] - a test's shorthand


class Opened:
    """A started store, what it told, and how to open another on the same data."""

    def __init__(self, store: Store, again: Callable[[], Store] | None) -> None:
        self.store = store
        self.again = again
        self.told: list[Change] = []


@pytest.fixture(params=known())
async def opened(request: pytest.FixtureRequest, clock: FrozenClock, tmp_path: Path) -> AsyncGenerator[Opened]:
    make: Callable[[], Store]
    if request.param == "memory":
        opened = Opened(MemoryStore(max_entries=50, now=clock.now), None)
    elif request.param == "sqlite":
        make = lambda: SqliteStore(tmp_path / "cache.db", now=clock.now, max_entries=50)  # noqa: E731 - one of two
        opened = Opened(make(), make)
    else:
        url, prefix = request.getfixturevalue("redis_url"), f"test:{uuid.uuid4().hex}:"
        make = lambda: RedisStore(  # noqa: E731 - one of two
            linked(url), now=clock.now, max_entries=50, prefix=prefix
        )
        opened = Opened(make(), make)
    await opened.store.start(opened.told.append)
    yield opened
    await opened.store.close()


def test_stores_are_found_by_name() -> None:
    """A store is a file in the folder; a typo must name the known ones."""
    assert known() == ["memory", "redis", "sqlite"]
    assert load("memory").MemoryStore is MemoryStore
    with pytest.raises(LookupError, match="memory, redis, sqlite"):
        load("opnai")


async def test_what_is_put_is_got(opened: Opened, clock: FrozenClock) -> None:
    """Every field must survive the trip, or money and provenance of a hit would be wrong."""
    kept = entry(1, clock)
    await opened.store.put(kept)
    found = await opened.store.get(kept.exact)
    assert found is not None
    assert {name: getattr(found, name) for name in kept.__struct_fields__ if name != "vector"} == {
        name: getattr(kept, name) for name in kept.__struct_fields__ if name != "vector"
    }


async def test_get_many_keeps_order_and_gaps(opened: Opened, clock: FrozenClock) -> None:
    """Candidates are matched with entries by position."""
    for number in (1, 2):
        await opened.store.put(entry(number, clock))
    asked = [entry(number, clock).exact for number in (2, 9, 1)]
    assert [found.id if found else None for found in await opened.store.get_many(asked)] == [2, None, 1]
    assert await opened.store.get_many([]) == []


async def test_an_unknown_digest_is_none(opened: Opened) -> None:
    """A miss is no error."""
    assert await opened.store.get(b"x" * 32) is None
    assert await opened.store.drop(424242) is None


async def test_putting_the_same_digest_replaces(opened: Opened, clock: FrozenClock) -> None:
    """Two entries for one request would make evicting one of them useless."""
    first = entry(1, clock)
    second = entry(2, clock, exact=first.exact)
    await opened.store.put(first)
    await opened.store.put(second)
    found = await opened.store.get(first.exact)
    assert found is not None
    assert found.id == 2
    assert await opened.store.drop(1) is None
    assert [row.entry_id for row in await opened.store.vectors(SCOPE, "hash-8")] == [2]
    assert await opened.store.counts() == {Group("acme", "app", "chat"): 1}


async def test_drop_is_final(opened: Opened, clock: FrozenClock) -> None:
    """After an eviction returned, no look-up and no rebuilt index may bring the entry back."""
    kept = entry(1, clock)
    await opened.store.put(kept)
    dropped = await opened.store.drop(1)
    assert dropped is not None
    assert dropped.answer == kept.answer
    assert await opened.store.get(kept.exact) is None
    assert await opened.store.vectors(SCOPE, "hash-8") == []
    assert await opened.store.counts() == {}


async def test_vectors_of_one_scope_and_encoder_only(opened: Opened, clock: FrozenClock) -> None:
    """The partition wall starts here: what a scope's index is built from."""
    await opened.store.put(entry(1, clock))
    await opened.store.put(entry(2, clock, scope=b"t" * 32))
    await opened.store.put(entry(3, clock, encoder="other"))
    await opened.store.put(entry(4, clock, vector=b"", encoder=""))
    (row,) = await opened.store.vectors(SCOPE, "hash-8")
    assert (row.entry_id, row.exact, row.expires) == (1, entry(1, clock).exact, entry(1, clock).expires)
    assert unpack(row.vector)[1] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("selection", "left"),
    [
        (Selection(), []),
        (Selection(team="acme"), [3]),
        (Selection(team="acme", project="app"), [2, 3]),
        (Selection(model="large"), [1, 2]),
        (Selection(contains="Größe 100%"), [1, 3]),
        (Selection(team="acme", model="large"), [1, 2, 3]),
    ],
)
async def test_purge_takes_what_matches_all(
    opened: Opened, clock: FrozenClock, selection: Selection, left: list[int]
) -> None:
    """A purge that takes too little leaks, one that takes too much costs money."""
    await opened.store.put(entry(1, clock))
    await opened.store.put(entry(2, clock, project="web", text="Die GRÖSSE 100% von x"))
    await opened.store.put(entry(3, clock, team="umbrella", model="large"))
    assert await opened.store.purge(selection) == 3 - len(left)
    assert sorted(found.id for found in await opened.store.recent(9)) == left
    assert sum((await opened.store.counts()).values()) == len(left)


@pytest.mark.parametrize("wanted", ["Größe 100%", "other words"])
async def test_a_purge_by_words_takes_an_answer_with_all_its_keys(
    opened: Opened, clock: FrozenClock, wanted: str
) -> None:
    """Who purged all that mentions a person left the answers about them to whoever had asked in other words."""
    first = entry(1, clock, text="Die GRÖSSE 100% von x")
    await opened.store.put(first)
    await opened.store.put(entry(2, clock))
    key = entry(3, clock, text="in other words", answer=first.answer, answer_id=1)
    assert await opened.store.put_key(key, first.exact, 32)
    assert await opened.store.purge(Selection(contains=wanted)) == 2
    assert [found.id for found in await opened.store.recent(9)] == [2]
    assert await opened.store.get_many([first.exact, key.exact]) == [None, None]
    assert sum((await opened.store.counts()).values()) == 1


async def test_recent_is_newest_first(opened: Opened, clock: FrozenClock) -> None:
    """Pages show the newest entries."""
    for number in (2, 1, 3):
        await opened.store.put(entry(number, clock))
    assert (await opened.store.recent(2))[0].id == 3
    assert [found.id for found in await opened.store.recent(9)] == [3, 2, 1]


async def test_what_is_looked_for_is_found_behind_any_number_of_others(opened: Opened, clock: FrozenClock) -> None:
    """An operator of a quiet team saw an empty cache, because a busy one had kept the newest ten thousand answers."""
    await opened.store.put(entry(1, clock))
    await opened.store.put(entry(2, clock, text="Die GRÖSSE 100% von x"))
    for number in range(10, 45):
        await opened.store.put(entry(number, clock, team="busy"))
    assert [found.id for found in await opened.store.recent(2, Selection(team="acme"))] == [2, 1]
    assert [found.id for found in await opened.store.recent(2, Selection(contains="größe 100%"))] == [2]
    assert [found.id for found in await opened.store.recent(2, Selection(team="busy", model="chat"))] == [44, 43]
    assert await opened.store.recent(2, Selection(team="acme", contains="question 40")) == []


async def test_what_has_expired_is_not_counted(opened: Opened, clock: FrozenClock) -> None:
    """Pages said that answers were kept which nobody could be served any more, until enough new ones had come."""
    for number in range(1, 11):
        await opened.store.put(entry(number, clock, expires=clock.now() + 5))
    await opened.store.put(entry(11, clock))
    clock.advance(10)
    assert await opened.store.counts() == {Group("acme", "app", "chat"): 1}
    assert [found.id for found in await opened.store.recent(3)] == [11]


async def test_a_full_store_lets_the_least_worthy_go(opened: Opened, clock: FrozenClock) -> None:
    """Without a bound the cache grows until the machine stops; among equals the entry in use must stay."""
    for number in range(1, 51):
        clock.advance(10)
        await opened.store.put(entry(number, clock, answer=b"{}", text="", created=clock.now()))
    clock.advance(10)
    for _ in range(65):
        opened.store.touch(entry(1, clock).exact)
    for number in range(2, 70):  # redis-py's batches of touches are written when there are some
        opened.store.touch(entry(100 + number, clock).exact)
    for number in range(51, 61):
        clock.advance(10)
        await opened.store.put(entry(number, clock, answer=b"{}", text="", created=clock.now()))
    held = {found.id for found in await opened.store.recent(100)}
    assert len(held) == 50
    assert 1 in held
    assert held.isdisjoint(range(2, 12))


async def test_listeners_hear_of_every_change(opened: Opened, clock: FrozenClock) -> None:
    """Indexes and the front live by these words alone."""
    await until(lambda: opened.told == [] or opened.told[0].kind == "reset")
    await opened.store.put(entry(1, clock))
    await opened.store.put(entry(2, clock, exact=entry(1, clock).exact))
    await opened.store.drop(2)
    told = [(change.kind, change.row.entry_id) for change in opened.told if change.kind != "reset"]
    assert told == [("add", 1), ("drop", 1), ("add", 2), ("drop", 2)]
    assert {(change.scope, change.encoder) for change in opened.told if change.kind != "reset"} == {(SCOPE, "hash-8")}


@pytest.mark.parametrize("opened", ["sqlite", "redis"], indirect=True)
async def test_entries_survive_a_restart(opened: Opened, clock: FrozenClock) -> None:
    """A restart must not pay for every answer again."""
    assert opened.again is not None
    await opened.store.put(entry(1, clock))
    await opened.store.close()
    opened.store = opened.again()
    await opened.store.start(opened.told.append)
    found = await opened.store.get(entry(1, clock).exact)
    assert found is not None
    assert found.id == 1
    assert [row.entry_id for row in await opened.store.vectors(SCOPE, "hash-8")] == [1]


@pytest.mark.parametrize("opened", ["sqlite", "redis"], indirect=True)
async def test_expired_rows_are_swept(opened: Opened, clock: FrozenClock) -> None:
    """Dead entries must not hold places, counts or vectors for ever."""
    await opened.store.put(entry(1, clock, expires=clock.now() + 5))
    clock.advance(10)
    for number in range(100, 164):
        await opened.store.put(entry(number, clock, exact=entry(2, clock).exact))
    assert sum((await opened.store.counts()).values()) == 1
    assert [row.entry_id for row in await opened.store.vectors(SCOPE, "hash-8")] == [163]


# SQLite alone


async def test_sqlite_sets_a_damaged_file_aside(tmp_path: Path, clock: FrozenClock) -> None:
    """A damaged cache may be lost; it must neither stop the gateway nor serve rubbish."""
    path = tmp_path / "cache.db"
    path.write_bytes(b"this is not a database, whatever its name says" * 100)
    store = SqliteStore(path, now=clock.now)
    await store.start(lambda _: None)
    await store.put(entry(1, clock))
    assert await store.get(entry(1, clock).exact) is not None
    await store.close()
    assert (tmp_path / "cache.db.unreadable").exists()
    assert path.stat().st_mode & 0o077 == 0


async def test_sqlite_that_could_not_be_opened_is_once_it_can(
    tmp_path: Path, clock: FrozenClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk that was full at the start must not leave a gateway without a cache until the next one, and silently."""
    path = tmp_path / "cache.db"
    path.mkdir()
    store = SqliteStore(path, now=clock.now)
    with pytest.raises(StoreDown):
        await store.start(lambda _: None)
    with pytest.raises(StoreDown):
        await store.put(entry(1, clock))
    assert caplog.text.count("Until this is mended answers are made anew and not kept") == 1
    assert store.status() is not None
    path.rmdir()
    assert await store.states([b"any"]) == [None]
    assert "works again" not in caplog.text
    await store.put(entry(1, clock))
    assert await store.get(entry(1, clock).exact) is not None
    assert store.status() is None
    assert "cache.db works again" in caplog.text
    await store.close()
    with pytest.raises(StoreDown):
        await store.put(entry(1, clock))


async def test_sqlite_of_another_schema_begins_anew(tmp_path: Path, clock: FrozenClock) -> None:
    """An older or newer program's file must not be misread."""
    path = tmp_path / "cache.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE entry (id INTEGER)")
        database.execute("PRAGMA user_version = 99")
    database.close()
    store = SqliteStore(path, now=clock.now)
    await store.start(lambda _: None)
    await store.put(entry(1, clock))
    assert await store.get(entry(1, clock).exact) is not None
    await store.close()


async def test_sqlite_says_that_it_begins_anew(
    tmp_path: Path, clock: FrozenClock, caplog: pytest.LogCaptureFixture
) -> None:
    """All that was kept and learned is gone: an operator must not have to guess it from the hit rate."""
    path = tmp_path / "cache.db"
    path.write_bytes(b"this is not a database, whatever its name says" * 100)
    store = SqliteStore(path, now=clock.now)
    await store.start(lambda _: None)
    assert "file is not a database): set aside as cache.db.unreadable, the cache begins anew" in caplog.text
    for number in range(1, 200):
        await store.put(entry(number, clock))
    await store.close()
    store = SqliteStore(path, now=clock.now)
    await store.start(lambda _: None)
    caplog.clear()
    with path.open("r+b") as file:
        file.seek(8_192)
        file.write(b"\xa5" * (path.stat().st_size - 8_192))
    with pytest.raises(StoreDown):
        await store.purge(Selection())
    await store.close()
    assert "malformed): set aside as cache.db.unreadable, the cache begins anew" in caplog.text


async def test_sqlite_damaged_in_use_becomes_empty(tmp_path: Path, clock: FrozenClock) -> None:
    """Disks go bad while running: that look-up is a miss, listeners forget, and the store goes on."""
    path = tmp_path / "cache.db"
    told: list[Change] = []
    store = SqliteStore(path, now=clock.now)
    await store.start(told.append)
    for number in range(1, 200):
        await store.put(entry(number, clock))
    await store.close()
    store = SqliteStore(path, now=clock.now)
    await store.start(told.append)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(8_192)
        file.write(b"\xa5" * (size - 8_192))
    with pytest.raises(StoreDown):
        await store.purge(Selection())
    assert told[-1].kind == "reset"
    await store.put(entry(1, clock))
    assert await store.get(entry(1, clock).exact) is not None
    await store.close()


async def test_sqlite_treats_a_damaged_entry_as_none(tmp_path: Path, clock: FrozenClock) -> None:
    """A flipped bit inside an answer must never reach a client."""
    path = tmp_path / "cache.db"
    store = SqliteStore(path, now=clock.now)
    await store.start(lambda _: None)
    await store.put(entry(1, clock))
    with sqlite3.connect(path) as other:
        (body,) = other.execute("SELECT body FROM entry").fetchone()
        other.execute("UPDATE entry SET body = ?", (body[:-3] + bytes([body[-3] ^ 1]) + body[-2:],))
    other.close()
    assert await store.get(entry(1, clock).exact) is None
    await store.close()


async def test_sqlite_closed_is_down(tmp_path: Path, clock: FrozenClock) -> None:
    """Whoever is late gets the one error every caller handles."""
    store = SqliteStore(tmp_path / "cache.db", now=clock.now)
    await store.start(lambda _: None)
    await store.put(entry(1, clock))
    await store.close()
    with pytest.raises(StoreDown):
        await store.get(entry(1, clock).exact)
    assert store.status() is not None


async def test_sqlite_is_bounded_by_bytes_too(tmp_path: Path, clock: FrozenClock) -> None:
    """A hundred thousand answers of a megabyte would fill the disk long before the count is reached."""
    store = SqliteStore(tmp_path / "cache.db", now=clock.now, max_bytes=20_000)
    await store.start(lambda _: None)
    for number in range(1, 11):
        clock.advance(1)
        await store.put(entry(number, clock, answer=b"x" * 5_000))
    assert [found.id for found in await store.recent(99)] == [10, 9, 8]
    await store.close()


# Redis alone


class Pair:
    """Two workers on one Redis, and what each was told."""

    def __init__(self, url: str, clock: FrozenClock) -> None:
        prefix = f"test:{uuid.uuid4().hex}:"
        self.stores = [RedisStore(linked(url), now=clock.now, prefix=prefix, max_entries=5_000) for _ in "ab"]
        self.told: list[list[Change]] = [[], []]

    async def __aenter__(self) -> "Pair":
        for store, told in zip(self.stores, self.told, strict=True):
            await store.start(told.append)
        await until(lambda: all(told and told[0].kind == "reset" for told in self.told))
        return self

    async def __aexit__(self, *_: object) -> None:
        for store in self.stores:
            await store.close()


async def test_redis_tells_other_workers(redis_url: str, clock: FrozenClock) -> None:
    """An answer one worker kept or evicted must reach the other's index within moments."""
    async with Pair(redis_url, clock) as pair:
        kept = entry(1, clock)
        await pair.stores[0].put(kept)
        await until(lambda: len(pair.told[1]) == 2)
        change = pair.told[1][-1]
        assert (change.kind, change.scope, change.encoder) == ("add", SCOPE, "hash-8")
        assert (change.row.entry_id, change.row.exact, change.row.vector) == (1, kept.exact, kept.vector)
        await pair.stores[1].drop(1)
        await until(lambda: len(pair.told[0]) == 3)
        assert (pair.told[0][-1].kind, pair.told[0][-1].row.entry_id) == ("drop", 1)
        assert await pair.stores[0].get(kept.exact) is None


async def test_redis_says_reset_when_the_stream_is_gone(redis_url: str, clock: FrozenClock) -> None:
    """After FLUSHALL, or a trimmed stream, what a worker remembers may be wrong in every part."""
    async with Pair(redis_url, clock) as pair:
        await pair.stores[0].put(entry(1, clock))
        await until(lambda: len(pair.told[1]) == 2)
        other = Redis.from_url(redis_url)
        await other.delete(pair.stores[0]._keys.feed)
        await other.aclose()
        await until(lambda: pair.told[1][-1].kind == "reset")
        await pair.stores[0].put(entry(2, clock))
        await until(lambda: pair.told[1][-1].row.entry_id == 2)


async def test_redis_purges_thousands_with_one_word(redis_url: str, clock: FrozenClock) -> None:
    """Thousands of events would push each other out of the bounded stream."""
    async with Pair(redis_url, clock) as pair:
        for number in range(1, 1_102):
            await pair.stores[0].put(entry(number, clock))
        assert await pair.stores[0].purge(Selection()) == 1_101
        await until(lambda: pair.told[1][-1].kind == "reset")
        assert await pair.stores[1].counts() == {}
        assert await pair.stores[1].vectors(SCOPE, "hash-8") == []


async def test_redis_treats_damage_and_swapped_values_as_none(redis_url: str, clock: FrozenClock) -> None:
    """A desynchronised connection or a flipped bit could hand over another tenant's answer."""
    async with Pair(redis_url, clock) as pair:
        store = pair.stores[0]
        one, two = entry(1, clock), entry(2, clock)
        await store.put(one)
        await store.put(two)
        other = Redis.from_url(redis_url)
        raw = await other.get(store._keys.entry(one.exact))
        assert isinstance(raw, bytes)
        await other.set(store._keys.entry(two.exact), raw)
        await other.set(store._keys.entry(one.exact), raw[:-1])
        await other.aclose()
        assert await store.get_many([one.exact, two.exact]) == [None, None]


async def test_redis_that_refuses_costs_next_to_nothing(clock: FrozenClock) -> None:
    """Hidden retries of a client once made every request wait for seconds while Redis was away."""
    ticks = FrozenClock()
    with redis_server() as url:
        store = RedisStore(Link(url, monotonic=ticks.monotonic, lookup=10.0), now=clock.now)
        await store.start(lambda _: None)
        await store.put(entry(1, clock))
    for _ in range(3):
        with pytest.raises(StoreDown):
            await store.get(entry(1, clock).exact)
    assert store.status() == "unreachable"
    port = int(url.rsplit(":", 1)[1].split("/")[0])
    with redis_server(port):
        with pytest.raises(StoreDown, match="circuit open"):
            await store.get(entry(1, clock).exact)
        ticks.advance(1.1)
        assert await store.get(entry(1, clock).exact) is None
        assert store.status() is None
        await store.put(entry(1, clock))
        assert await store.get(entry(1, clock).exact) is not None
    await store.close()


async def test_redis_that_hangs_is_left_alone(clock: FrozenClock) -> None:
    """A stopped Redis accepts and never answers; only our own budget ends the wait."""
    ticks = FrozenClock()
    with redis_server() as url:
        store = RedisStore(Link(url, monotonic=ticks.monotonic, lookup=0.5), now=clock.now)
        await store.start(lambda _: None)
        await store.put(entry(1, clock))
        other = Redis.from_url(url)
        pid = int((await other.info("server"))["process_id"])
        await other.aclose()
        os.kill(pid, signal.SIGSTOP)
        try:
            for _ in range(2):
                with pytest.raises(StoreDown, match="timeout"):
                    await store.get(entry(1, clock).exact)
            with pytest.raises(StoreDown, match="circuit open"):
                await store.get(entry(1, clock).exact)
        finally:
            os.kill(pid, signal.SIGCONT)
        ticks.advance(1.1)
        found = await store.get(entry(1, clock).exact)
        assert found is not None
        await store.close()


async def test_redis_cancelled_lookups_never_mix_answers(redis_url: str, clock: FrozenClock) -> None:
    """A cancelled command once left its reply for the next caller: another user's data."""
    async with Pair(redis_url, clock) as pair:
        store = pair.stores[0]
        for number in range(1, 21):
            await store.put(entry(number, clock))

        async def look(number: int, patience: float) -> None:
            try:
                async with asyncio.timeout(patience):
                    found = await store.get(entry(number, clock).exact)
            except (TimeoutError, StoreDown):
                return
            assert found is not None
            assert found.id == number

        for turn in range(10):
            await asyncio.gather(*(look(number, 0.0001 * (turn + number)) for number in range(1, 21)))


async def test_a_key_is_kept_beside_its_answer_and_goes_with_it(opened: Opened, clock: FrozenClock) -> None:
    """An approved paraphrase is found like any entry; taking the answer back by any of its keys takes them all."""
    await opened.store.put(entry(1, clock))
    for number in (2, 3):
        assert await opened.store.put_key(entry(number, clock, answer_id=1), entry(1, clock).exact, most=8)
    assert {row.entry_id for row in await opened.store.vectors(SCOPE, "hash-8")} == {1, 2, 3}
    assert {change.row.entry_id for change in opened.told if change.kind == "add"} == {1, 2, 3}
    gone = await opened.store.drop(2)
    assert gone is not None
    assert gone.id == 2
    assert await opened.store.get_many([entry(number, clock).exact for number in (1, 2, 3)]) == [None, None, None]
    assert await opened.store.vectors(SCOPE, "hash-8") == []
    assert {change.row.entry_id for change in opened.told if change.kind == "drop"} == {1, 2, 3}


async def test_a_key_needs_its_answer(opened: Opened, clock: FrozenClock) -> None:
    """A judge is slow: what was taken back meanwhile must not come back as a paraphrase."""
    await opened.store.put(entry(1, clock))
    await opened.store.drop(1)
    assert not await opened.store.put_key(entry(2, clock, answer_id=1), entry(1, clock).exact, most=8)
    await opened.store.put(entry(1, clock, id=7))
    assert not await opened.store.put_key(entry(2, clock, answer_id=1), entry(1, clock).exact, most=8)
    assert await opened.store.get(entry(2, clock).exact) is None


async def test_an_answer_has_so_many_keys_at_most(opened: Opened, clock: FrozenClock) -> None:
    """One popular answer must not fill the store with its wordings; the same wording again takes no second place."""
    store, root = opened.store, entry(1, clock)
    await store.put(root)
    assert await store.put_key(entry(2, clock, answer_id=1), root.exact, most=2)
    assert await store.put_key(entry(4, clock, exact=entry(2, clock).exact, answer_id=1), root.exact, 2)
    assert {row.entry_id for row in await store.vectors(SCOPE, "hash-8")} == {1, 4}
    assert not await store.put_key(entry(3, clock, answer_id=1), root.exact, most=1)
    assert {row.entry_id for row in await store.vectors(SCOPE, "hash-8")} == {1, 4}


async def test_the_wording_used_least_lately_gives_way_to_a_new_one(opened: Opened, clock: FrozenClock) -> None:
    """A popular answer's first wordings must not shut out those people use now; its own key stays whatever happens."""
    store, root = opened.store, entry(1, clock)
    await store.put(root)
    for number in (2, 3, 4):
        assert await store.put_key(entry(number, clock, answer_id=1), root.exact, most=4)
    clock.advance(600.0)
    for number in (2, 4):
        store.touch(entry(number, clock).exact)
    assert await store.put_key(entry(5, clock, answer_id=1), root.exact, most=4)
    assert {row.entry_id for row in await store.vectors(SCOPE, "hash-8")} == {1, 2, 4, 5}
    assert {change.row.entry_id for change in opened.told if change.kind == "drop"} == {3}
    assert sum((await store.counts()).values()) == 4
    # What the new wording was found beside was used just now.
    assert await store.put_key(entry(6, clock, answer_id=1), entry(2, clock).exact, most=3)
    assert {row.entry_id for row in await store.vectors(SCOPE, "hash-8")} == {1, 2, 6}


async def test_one_key_goes_alone(opened: Opened, clock: FrozenClock) -> None:
    """A wording that turned out to mean something else must not take the answer from all others."""
    store = opened.store
    await store.put(entry(1, clock))
    for number in (2, 3):
        assert await store.put_key(entry(number, clock, answer_id=1), entry(1, clock).exact, most=8)
    assert not await store.drop_key(entry(2, clock).exact, 3)  # replaced meanwhile
    assert await store.drop_key(entry(2, clock).exact, 2)
    assert not await store.drop_key(entry(2, clock).exact, 2)
    assert await store.get(entry(2, clock).exact) is None
    assert {row.entry_id for row in await store.vectors(SCOPE, "hash-8")} == {1, 3}
    assert {change.row.entry_id for change in opened.told if change.kind == "drop"} == {2}
    assert await store.drop(3) is not None
    assert sum((await store.counts()).values()) == 0


async def test_a_key_takes_the_place_of_the_entry_it_was(opened: Opened, clock: FrozenClock) -> None:
    """The fresh answer is kept at once and becomes a key when the judge has spoken: never two for one request."""
    await opened.store.put(entry(1, clock))
    await opened.store.put(entry(2, clock))
    assert await opened.store.put_key(
        entry(3, clock, exact=entry(2, clock).exact, answer_id=1), entry(1, clock).exact, 8
    )
    found = await opened.store.get(entry(2, clock).exact)
    assert found is not None
    assert (found.id, found.root) == (3, 1)
    assert sum((await opened.store.counts()).values()) == 2
    assert (await opened.store.drop(1)) is not None
    assert sum((await opened.store.counts()).values()) == 0


async def test_an_answer_outlives_its_first_key(opened: Opened, clock: FrozenClock) -> None:
    """The first wording may have been replaced; the answer's id still takes the others out."""
    await opened.store.put(entry(1, clock))
    await opened.store.put_key(entry(2, clock, answer_id=1), entry(1, clock).exact, most=8)
    await opened.store.put(entry(5, clock, exact=entry(1, clock).exact))
    assert await opened.store.drop(1) is not None
    assert await opened.store.get(entry(2, clock).exact) is None
    assert await opened.store.get(entry(1, clock).exact) is not None


async def test_a_state_is_written_only_over_what_was_seen(opened: Opened) -> None:
    """Two workers learn at once: the slower one must notice, read again and add its own."""
    assert await opened.store.states([b"x", b"y"]) == [None, None]
    assert await opened.store.put_state(b"x", b"one", seen=0)
    assert not await opened.store.put_state(b"x", b"two", seen=0)
    assert await opened.store.put_state(b"x", b"two", seen=1)
    assert not await opened.store.put_state(b"x", b"three", seen=1)
    assert not await opened.store.put_state(b"y", b"never", seen=3)
    assert await opened.store.states([b"y", b"x"]) == [None, Stored(2, b"two")]


async def test_a_state_survives_a_restart(opened: Opened, clock: FrozenClock) -> None:
    """What was learned is worth more than any entry."""
    if opened.again is None:
        pytest.skip("memory is not meant to remember")
    await opened.store.put_state(b"x", b"one", seen=0)
    await opened.store.put(entry(1, clock))
    await opened.store.put_key(entry(2, clock, answer_id=1), entry(1, clock).exact, most=8)
    await opened.store.close()
    opened.store = opened.again()
    await opened.store.start(opened.told.append)
    assert await opened.store.states([b"x"]) == [Stored(1, b"one")]
    assert await opened.store.drop(1) is not None
    assert await opened.store.get(entry(2, clock).exact) is None
