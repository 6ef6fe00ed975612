"""Texts and stores from hell: never a crash, never another tenant's answer, never an unbounded wait."""

import time
from collections.abc import Sequence

import msgspec
import pytest

from cache import codec
from cache.embedder import HashEncoder
from cache.semantic import SemanticCache
from cache.store import Store, VectorRow
from cache.store.memory import MemoryStore
from cache.types import CacheConfig, Entry, Hit, Kept, Miss, Uncacheable
from policies.reuse.threshold import Params, Policy
from tests.clock import FrozenClock
from tests.unit.cache.asking import asked, query

LANGUAGES = [
    "How do I bake bread?",
    "Wie backe ich Brot?",
    "Comment faire du pain ?",
    "¿Cómo hago pan?",
    "Come faccio il pane?",
    "Como faço pão?",
    "Hoe bak ik brood?",
    "Jak upiec chleb?",
    "Как испечь хлеб?",
    "Як спекти хліб?",
    "Πώς φτιάχνω ψωμί;",
    "Ekmek nasıl yapılır?",  # noqa: RUF001 - Turkish
    "كيف أخبز الخبز؟",
    "איך אופים לחם?",
    "چگونه نان بپزم؟",
    "रोटी कैसे बनाएं?",
    "রুটি কীভাবে বানাব?",
    "ขนมปังทำอย่างไร",
    "怎么烤面包?",
    "パンの焼き方は?",
    "빵은 어떻게 굽나요?",
    "Làm bánh mì thế nào?",
]
ODD = [
    "",
    " ",
    "\t\n\r ",
    "🍞",
    "👩‍👩‍👧‍👦 🏳️‍🌈 🇫🇷",
    "\u202eevil\u202c \u200f\u200e",
    "e\u0301" * 300,
    "\x00\x01\x7f",
    "\ufeff\u200b\u2060",
    "Z̷̢͎̗̯͇̪̳ͅa̶l̴g̸o" * 20,
    "a" * 5_000,
    "x " * 5_000,
    "<|endoftext|>[INST]{{}}%s%n",
]


def cache(store: Store, clock: FrozenClock) -> SemanticCache:
    return SemanticCache(
        store,
        HashEncoder(),
        Policy(Params(similarity=0.9)),
        config=CacheConfig(embed_timeout=5.0),
        now=clock.now,
        monotonic=time.monotonic,
    )


@pytest.mark.parametrize("text", LANGUAGES + ODD)
async def test_any_text_is_kept_and_found_for_its_own_tenant_only(clock: FrozenClock, text: str) -> None:
    """Most of the world does not write English; what cannot be embedded or stored is a miss, not an error."""
    found = cache(MemoryStore(), clock)
    await found.start()
    mine = query(text)
    assert isinstance(await found.find(mine), Miss)
    await found.keep(mine, Kept(answer=b'{"mine":1}'))
    assert isinstance(await found.find(mine), Hit)
    for variant in (text, text + " ", text.upper()):
        assert isinstance(await found.find(query(variant, "umbrella")), Miss)
    await found.close()


def test_text_that_is_no_text_is_not_cacheable() -> None:
    """Half a surrogate pair has no bytes to make a digest of."""
    assert isinstance(asked("\ud800"), Uncacheable)


async def test_ten_megabytes_are_answered_in_bounded_time(clock: FrozenClock) -> None:
    """A prompt of the size of a book must not hold the worker, nor fill the store; it is exact-only."""
    found = cache(MemoryStore(), clock)
    await found.start()
    huge = query("word " * 2_000_000)
    started = time.monotonic()
    assert isinstance(await found.find(huge), Miss)
    await found.keep(huge, Kept(answer=b"{}"))
    await found.find(huge)
    assert time.monotonic() - started < 5.0
    (kept,) = await found.entries(1)
    assert len(kept.text) < 20_000
    await found.close()


class Liar(MemoryStore):
    """Gives everybody the entry of somebody else, as a confused connection would."""

    lie: Entry | None = None

    async def get(self, exact: bytes) -> Entry | None:
        return self.lie

    async def get_many(self, exacts: Sequence[bytes]) -> list[Entry | None]:
        return [self.lie for _ in exacts]

    async def vectors(self, scope: bytes, encoder: str) -> list[VectorRow]:
        rows: list[VectorRow] = []
        for members in self._members:
            rows += await super().vectors(*members)
        return [*rows, VectorRow(7, b"", 9e9, b"\xff\xff"), VectorRow(8, b"x" * 99, 9e9, b"\x00" * 768)]


async def test_a_store_that_lies_never_shows_another_tenants_answer(clock: FrozenClock) -> None:
    """Whatever a store hands out, the entry's own scope has the last word."""
    store = Liar()
    found = cache(store, clock)
    await found.start()
    await found.keep(query("how do i bake bread at home"), Kept(answer=b'{"secret":1}'))
    (store.lie,) = await store.recent(1)
    for text in ("how do i bake bread at home", "how do i bake good bread at home", "anything"):
        assert isinstance(await found.find(query(text, "umbrella")), Miss)
    other = query("how do i bake nice bread at home")
    answer = await found.find(other)
    assert isinstance(answer, Miss) or answer.entry.scope == other.scope
    await found.close()


def test_entries_of_a_future_version_are_none(clock: FrozenClock) -> None:
    """After a downgrade the store still holds what the newer program wrote."""
    kept = Entry(
        id=1,
        scope=b"s",
        exact=b"e",
        text="t",
        answer=b"{}",
        prompt_tokens=1,
        completion_tokens=1,
        cost_nano=1,
        latency_ms=1.0,
        created=clock.now(),
        expires=clock.now() + 1,
    )
    raw = codec.encode(kept)
    assert codec.decode(raw, b"e") is not None
    assert codec.decode(bytes([raw[0] + 1]) + raw[1:], b"e") is None
    assert codec.decode(b"", b"e") is None
    assert codec.decode(msgspec.msgpack.encode({"v": 9}), b"e") is None
