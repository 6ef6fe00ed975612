"""Kept answers under lock: nothing readable at rest, keys that rotate, and whatever does not fit is a counted miss."""

import time
import uuid
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from cache.codec import PLAIN, SEALED, Codec, read_keys
from cache.redis_link import Link
from cache.store import Selection, Store
from cache.store.redis import RedisStore
from cache.store.sqlite import SqliteStore
from cache.types import Entry
from gateway.parts import build_store, resident
from gateway.settings import CacheSettings, Settings
from tests.clock import FrozenClock
from tests.contract.test_store import entry

OLD, NEW, OTHER = (bytes([number]) * 32 for number in (1, 2, 3))
SECRET_TEXT = "the merger with umbrella corporation"
SECRET_ANSWER = b'{"answer":"signed on friday in secret"}'
SEALED_ENTRY = Codec([NEW, OLD])


def secret(number: int, clock: FrozenClock) -> Entry:
    return entry(number, clock, text=SECRET_TEXT, answer=SECRET_ANSWER)


class Kind:
    """A kind of store over one place; `raw` is every byte it has at rest."""

    def __init__(self, name: str, place: Any, clock: FrozenClock) -> None:
        self.name, self.place, self.clock = name, place, clock
        self.unreadable: list[str] = []

    async def open(self, *keys: bytes) -> Store:
        codec = Codec(keys, self.unreadable.append)
        store: Store
        if self.name == "sqlite":
            store = SqliteStore(self.place, now=self.clock.now, codec=codec)
        else:
            url, prefix = self.place
            now = self.clock.now
            store = RedisStore(Link(url, monotonic=time.monotonic, lookup=10.0), now=now, prefix=prefix, codec=codec)
        await store.start(lambda _: None)
        return store

    async def raw(self) -> bytes:
        if self.name == "sqlite":
            return b"".join(path.read_bytes() for path in self.place.parent.glob("cache.db*"))
        url, prefix = self.place
        async with Redis.from_url(url, protocol=2) as client:
            library: Any = client  # its replies are typed loosely
            look = {
                b"string": library.get,
                b"hash": library.hgetall,
                b"set": library.smembers,
                b"zset": lambda key: library.zrange(key, 0, -1),
                b"stream": library.xrange,
            }
            keys = [key async for key in library.scan_iter(f"{prefix}*")]
            return b"".join([repr(await look[await library.type(key)](key)).encode() for key in keys])


@pytest.fixture(params=["sqlite", "redis"])
def kind(request: pytest.FixtureRequest, clock: FrozenClock, tmp_path: Path) -> Kind:
    place: Any = tmp_path / "cache.db"
    if request.param == "redis":
        place = (request.getfixturevalue("redis_url"), f"test:{uuid.uuid4().hex}:")
    return Kind(request.param, place, clock)


async def test_nothing_that_was_asked_or_answered_is_readable_at_rest(kind: Kind, clock: FrozenClock) -> None:
    """A stolen disk or a dump of a shared Redis must not hold a single prompt."""
    store = await kind.open(NEW)
    await store.put(secret(1, clock))
    assert await store.put_key(
        entry(2, clock, text=SECRET_TEXT, answer=SECRET_ANSWER, answer_id=1), secret(1, clock).exact, 8
    )
    for number in (1, 2):
        found = await store.get(entry(number, clock).exact)
        assert found is not None
        assert (found.text, found.answer) == (SECRET_TEXT, SECRET_ANSWER)
    assert {one.text for one in await store.recent(5)} == {SECRET_TEXT}
    raw = await kind.raw()
    assert len(raw) > 200
    assert SECRET_TEXT.encode() not in raw
    assert b"signed on friday" not in raw
    await store.close()
    raw = await kind.raw()
    assert b"umbrella" not in raw
    assert kind.unreadable == []


async def test_plain_without_a_key_is_readable_at_rest(kind: Kind, clock: FrozenClock) -> None:
    """The test above looks in the right place: without a key the words are there."""
    store = await kind.open()
    await store.put(entry(1, clock, text=SECRET_TEXT, answer=b"{}"))
    assert b"umbrella" in await kind.raw()
    await store.close()


async def test_keys_rotate(kind: Kind, clock: FrozenClock) -> None:
    """A new key is put first: it seals from then on, and the old one opens what it sealed until it is taken out."""
    store = await kind.open(OLD)
    await store.put(secret(1, clock))
    await store.close()
    store = await kind.open(NEW, OLD)
    await store.put(secret(2, clock))
    assert [found is not None for found in await store.get_many([entry(n, clock).exact for n in (1, 2)])] == [True] * 2
    await store.close()
    store = await kind.open(NEW)
    assert await store.get(entry(1, clock).exact) is None
    assert await store.get(entry(2, clock).exact) is not None
    assert kind.unreadable == ["key"]
    await store.close()


@pytest.mark.parametrize("keys", [(OTHER,), ()])
async def test_a_wrong_key_is_a_counted_miss(kind: Kind, clock: FrozenClock, keys: tuple[bytes, ...]) -> None:
    """Whoever mounts the wrong secret, or none, loses the cache and nothing else; taking entries out still works."""
    store = await kind.open(NEW)
    await store.put(secret(1, clock))
    await store.close()
    store = await kind.open(*keys)
    assert await store.get(entry(1, clock).exact) is None
    assert await store.get_many([entry(1, clock).exact]) == [None]
    assert await store.recent(5) == []
    assert set(kind.unreadable) == {"key"}
    await store.drop(1)
    await store.put(entry(7, clock, exact=entry(1, clock).exact))
    assert await store.get(entry(1, clock).exact) is not None
    await store.close()


async def test_what_was_kept_in_plain_is_not_believed_with_a_key(kind: Kind, clock: FrozenClock) -> None:
    """Otherwise whoever can write to the store could put any answer there, without the key."""
    store = await kind.open()
    await store.put(secret(1, clock))
    await store.close()
    store = await kind.open(NEW)
    assert await store.get(entry(1, clock).exact) is None
    if kind.name == "sqlite":
        assert b"umbrella" not in await kind.raw()  # taken out of the file at the first start with a key
        assert sum((await store.counts()).values()) == 0
    else:
        assert set(kind.unreadable) == {"plain"}
    await store.close()


async def test_a_purge_by_words_finds_what_is_sealed(kind: Kind, clock: FrozenClock) -> None:
    """`nearhit cache purge --contains` must not depend on prompts lying open."""
    store = await kind.open(NEW, OLD)
    await store.put(secret(1, clock))
    await store.put(entry(2, clock, text="how do i bake bread"))
    assert await store.purge(Selection(contains="UMBRELLA")) == 1
    assert await store.get(entry(1, clock).exact) is None
    assert await store.get(entry(2, clock).exact) is not None
    await store.close()


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 255))
def test_every_changed_byte_is_noticed(position: int, flip: int) -> None:
    """GCM authenticates the head, the nonce and the tag as well as the text: tampered with is a miss."""
    told: list[str] = []
    codec = Codec([NEW, OLD], told.append)
    kept = entry(1, FrozenClock())
    raw = bytearray(codec.encode(kept))
    raw[position % len(raw)] ^= flip
    assert codec.decode(bytes(raw), kept.exact) is None
    assert told[0] in {"version", "key", "forged", "plain"}


@pytest.mark.parametrize("cut", [0, 1, 5, 9, 20, 21, 37, -1, -16])
def test_fragments_are_no_entries(cut: int) -> None:
    """Truncated values must not crash the cipher."""
    kept = entry(1, FrozenClock())
    assert SEALED_ENTRY.decode(SEALED_ENTRY.encode(kept)[:cut], kept.exact) is None


def test_a_record_cannot_stand_in_anothers_place() -> None:
    """Copied under another digest, a genuine record would answer another question, or another tenant."""
    told: list[str] = []
    codec = Codec([NEW], told.append)
    one, two = entry(1, FrozenClock()), entry(2, FrozenClock())
    assert codec.decode(codec.encode(one), two.exact) is None
    assert told == ["forged"]


def test_two_records_of_one_entry_share_nothing() -> None:
    """A nonce used twice would give the texts away."""
    kept = entry(1, FrozenClock())
    one, two = SEALED_ENTRY.encode(kept), SEALED_ENTRY.encode(kept)
    assert one[:9] == two[:9]
    assert one[9:21] != two[9:21]
    assert one[21:53] != two[21:53]
    assert one[:1] == SEALED
    assert Codec().encode(kept)[:1] == PLAIN


def test_what_was_sealed_comes_back_whole() -> None:
    """But for the vector, which has its own place."""
    kept = entry(3, FrozenClock())
    assert SEALED_ENTRY.decode(SEALED_ENTRY.encode(kept), kept.exact) == msgspec.structs.replace(kept, vector=b"")


def test_a_file_of_keys_is_read_in_its_order(tmp_path: Path) -> None:
    """Hexadecimal or base64, comments and empty lines; the first is the newest."""
    path = tmp_path / "keys"
    path.write_text(f"# 2026-11\n{NEW.hex()}\n\n{b64encode(OLD).decode()}  # 2026-05\n", "utf-8")
    assert read_keys(path) == [NEW, OLD]


Writing = Callable[[Path], object]
BAD: dict[str, tuple[Writing, str]] = {
    "missing": (lambda path: None, "cannot read"),
    "empty": (lambda path: path.write_text("# nothing\n", "utf-8"), "holds no key"),
    "short": (lambda path: path.write_text("00ff", "utf-8"), "line 1"),
    "a password": (lambda path: path.write_text(f"{NEW.hex()}\nhunter2hunter2\n", "utf-8"), "line 2"),
    "binary": (lambda path: path.write_bytes(bytes(range(128, 160))), "line 1"),
    "a folder": (lambda path: path.mkdir(), "cannot read"),
    "huge": (lambda path: path.write_text("0" * 100_000, "utf-8"), "too large"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_file_that_holds_no_keys_is_refused_in_words(tmp_path: Path, case: str) -> None:
    """At the start, naming file and line, and never saying what stands there."""
    path = tmp_path / "keys"
    write, words = BAD[case]
    write(path)
    with pytest.raises(ValueError, match=words) as raised:
        CacheSettings(encryption_key_file=path)
    assert "hunter2" not in str(raised.value)


def test_a_key_of_another_length_is_refused() -> None:
    """AES-256 takes 32 bytes; anything else is a mistake to be told of."""
    with pytest.raises(ValueError, match="16 bytes"):
        Codec([b"x" * 16])


@pytest.mark.parametrize("store", ["sqlite", "redis"])
async def test_the_setting_reaches_the_store(tmp_path: Path, store: str, redis_url: str) -> None:
    """A key that is configured and not used would be worse than none."""
    path = tmp_path / "keys"
    path.write_text(NEW.hex(), "utf-8")
    chosen = CacheSettings.model_validate({"store": store, "encryption_key_file": path})
    made: Any = build_store(Settings(home=tmp_path, redis=redis_url, cache=chosen))
    assert made._codec.is_sealed
    await made.close()


@pytest.mark.parametrize("entries", [1, 100_000, 400_000, 2_000_000])
def test_all_that_may_be_kept_may_be_in_memory(entries: int) -> None:
    """Else large scopes push each other out of memory and are read anew for every other look-up."""
    assert resident(entries) >= entries + entries // 5
    assert resident(entries) >= 400_000
