"""Entries in Redis, shared by all gateway workers; plain keys, no modules, scripts for leases only, never money.

A look-up is one round trip, which also says whether all or some of what was kept has been taken back. Writes also go
to a change stream, so other workers learn of entries and evictions. Under memory pressure Redis may lose any key: then
something is not found, or was never counted, but nothing taken back is found again.
Does not know tenants: keys are digests, and every value carries its own digest and a checksum.
"""

import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Container, Sequence
from contextlib import suppress
from typing import TypeVar, cast

from msgspec.structs import replace
from redis.exceptions import WatchError

from cache import feed
from cache.background import Background
from cache.codec import Codec
from cache.redis_batch import (
    Batch,
    Done,
    Keys,
    Meta,
    put_state,
    read_entry,
    read_groups,
    read_state,
)
from cache.redis_era import Era
from cache.redis_lease import RedisLeases
from cache.redis_link import Link, StoreFull
from cache.redis_reading import PAGE, Reader, as_bytes, as_count, as_list
from cache.store import ANYTHING, Change, Selection, Stored, StoreDown, VectorRow
from cache.touches import Touches
from cache.types import Entry, Group
from policies import eviction

_Raws = list[bytes | None]
T = TypeVar("T")

_FLUSH_AFTER = 64
_SWEEP_EVERY = 16
_RESET_ABOVE = 1_000
# Entries that go when Redis has no memory left, and changes that stay in the stream then.
_RELIEF = 128
# Twenty thousand changes are read in well under a second.
_REPLAY_BUDGET = 10.0


class RedisStore:
    """Implements `cache.store.Store`, which closes its link. `now`: wall clock for expiry, `codec`: how entries are
    written.
    """

    def __init__(
        self,
        link: Link,
        *,
        now: Callable[[], float],
        max_entries: int = 100_000,
        prefix: str = "nearhit:cache:",
        codec: Codec | None = None,
    ) -> None:
        self._codec = codec or Codec()
        self._now = now
        self._max_entries = max_entries
        self._link = link
        self._slow = self._link.slow
        self._era = Era(self._link, prefix, self._lost)
        self._read = Reader(self._link, self._era, self._codec)
        self.leasing = RedisLeases(self._link, self._era, self._codec)
        self._background = Background()
        self._worker = secrets.token_hex(8)
        self._listen: Callable[[Change], None] = _ignore
        self._follower = feed.Follower(
            self._slow,
            self._keys.feed,
            worker=self._worker,
            listen=lambda change: self._listen(change),
            look=self._read.look,
            monotonic=self._link.monotonic,
        )
        self._touches = Touches(enough=_FLUSH_AFTER, most=16 * _FLUSH_AFTER)
        self._writes = 0

    @property
    def _keys(self) -> Keys:
        return self._era.keys

    async def start(self, listen: Callable[[Change], None]) -> None:
        """Never fails: a Redis that is away now may come back."""
        self._listen = listen
        self._background.spawn(self._follower.run(pause=0.5), "cache-feed")
        self._background.spawn(self._clean(), "cache-clean")

    async def get(self, exact: bytes) -> Entry | None:
        return (await self.get_many([exact]))[0]

    async def get_many(self, exacts: Sequence[bytes]) -> list[Entry | None]:
        return await self._read.entries(self._link.fast, exacts, self._link.lookup)

    async def put(self, entry: Entry) -> None:
        await self._era.begin()
        old = await self._read.metas([entry.exact])
        stamp = self._era.mark.cut

        def build() -> Batch:
            batch = self._batch()
            for exact, meta in old.items():
                batch.remove(exact, meta)
            batch.add(entry, self._now(), stamp)
            return batch

        done = await self._with_room(lambda: self._execute(build()))
        if not self._era.lives(entry, stamp):
            await self._remove([entry.exact])  # purged while it was written
        self._writes += 1
        if self._touches.is_due:
            await self._read.raise_ranks(self._touches.take())
        if self._writes % _SWEEP_EVERY == 0:
            await self._sweep()
        if surplus := eviction.surplus(done.held, self._max_entries, 0, 0):
            await self._remove(await self._read.worth_least(surplus, entry.exact))

    def put_soon(self, entry: Entry) -> bool:  # noqa: ARG002 - the protocol's signature
        """Other processes must get it too, so it has to be sent first."""
        return False

    async def put_key(self, entry: Entry, beside: bytes, most: int) -> bool:
        await self._era.begin()
        old = await self._read.metas([entry.exact])
        old |= await self._used_least(entry, beside, most)
        batch = self._batch()
        done = await self._link.ask(lambda: self._add_key(batch, old, entry, beside, most))
        if done is None:
            return False
        await self._settle(done)
        for change in batch.changes:
            self._listen(change)
        return True

    async def _used_least(self, entry: Entry, beside: bytes, most: int) -> dict[bytes, Meta]:
        """The keys of the answer that go to make room for one more; none where they would not make enough."""
        keys = [key for key in await self._keys_of(entry.root, None) if key != entry.exact]
        surplus = len(keys) - most + 1
        if surplus <= 0:
            return {}
        await self._read.raise_ranks(self._touches.take())
        metas = {key: meta for key, meta in (await self._read.known(keys)).items() if meta.entry_id != entry.root}
        metas.pop(beside, None)
        ranks = await self._read.ranks(list(metas))
        least = sorted(metas, key=lambda key: ranks.get(key, 0.0))[:surplus]
        return {key: metas[key] for key in least} if len(least) == surplus else {}

    async def _add_key(
        self, batch: Batch, old: dict[bytes, Meta], entry: Entry, beside: bytes, most: int
    ) -> Done | None:
        """None also where the answer was touched meanwhile: an eviction must not be outrun."""
        try:
            await batch.watch(self._keys.entry(beside), self._keys.answer(entry.root))
            raw, keys = await batch.look(beside, entry.root)
            held = read_entry(self._codec, beside, raw)
            if held is None or held[0].root != entry.root or len(keys - old.keys() - {entry.exact}) >= most:
                return None
            if not self._era.lives(*held):
                return None
            for exact, meta in old.items():
                batch.remove(exact, meta)
            batch.add(entry, self._now(), held[1])
            return await batch.execute()
        except WatchError:
            return None
        finally:
            await batch.close()

    async def drop(self, entry_id: int) -> Entry | None:
        await self._read.look()
        pointer = self._keys.pointer(entry_id)
        exact = await self._link.ask(lambda: as_bytes(self._slow.get(pointer)))
        meta = None if exact is None else (await self._read.known([exact])).get(exact)
        if exact is None or meta is None or meta.entry_id != entry_id:
            exact, root = None, entry_id
        else:
            root = meta.root or entry_id
        first: Entry | None = None
        listed = exact is not None and await self._read.is_listed(root, exact)
        # Again until none is left: a key may have been added while the first ones went.
        while keys := await self._keys_of(root, exact):
            found = [entry for entry in await self._read.entries(self._slow, keys) if entry is not None]
            first = first or next((entry for entry in found if entry.id == entry_id), found[0] if found else None)
            await self._take_out(keys)
            exact = None
        if not listed or first is None or first.id != entry_id:
            # Redis may have lost what leads to an entry that it still has.
            await self._with_room(lambda: self._era.refuse(*{entry_id, root}))
        return first

    async def drop_key(self, exact: bytes, entry_id: int) -> bool:
        await self._read.look()
        meta = (await self._read.known([exact])).get(exact)
        if meta is None or meta.entry_id != entry_id:
            return False
        await self._take_out([exact])
        return True

    async def _take_out(self, exacts: Sequence[bytes]) -> None:
        """Also when there is no memory left to tell the others; raises StoreFull then."""
        try:
            await self._remove(exacts)
        except StoreFull:
            await self._relieve()
            try:
                await self._remove(exacts)
            except StoreFull:
                await self._remove(exacts, tell=False, whole=False)
                raise

    async def _keys_of(self, root: int, exact: bytes | None) -> list[bytes]:
        """The digests of an answer's keys; `exact` is one of them (entries of older versions are on no list)."""
        held = await self._link.ask(lambda: cast("Awaitable[set[bytes]]", self._slow.smembers(self._keys.answer(root))))
        keys = list(held | ({exact} if exact else set()))
        known = await self._read.known(keys)
        stale = [key for key in held if key not in known or (known[key].root or known[key].entry_id) != root]
        if stale:
            await self._link.ask(lambda: as_count(self._slow.srem(self._keys.answer(root), *stale)))
        return [key for key in keys if key not in stale]

    async def states(self, names: Sequence[bytes]) -> list[Stored | None]:
        keys = [self._keys.state(name) for name in names]
        raws = await self._link.ask(lambda: cast("Awaitable[_Raws]", self._link.fast.mget(keys)), self._link.lookup)
        return [read_state(raw) for raw in raws]

    async def put_state(self, name: bytes, blob: bytes, *, seen: int) -> bool:
        return await self._link.ask(lambda: put_state(self._slow, self._keys.state(name), blob, seen))

    @property
    def shared(self) -> bool:
        return True

    async def vectors(self, scope: bytes, encoder: str) -> list[VectorRow]:
        return [row async for page in self.pages(scope, encoder) for row in page]

    async def pages(
        self,
        scope: bytes,
        encoder: str,
        *,
        known: Container[int] = (),  # noqa: ARG002 - a hash is read with its values
    ) -> AsyncGenerator[list[VectorRow], None]:
        async for page in self._read.vectors(scope, encoder):
            yield page

    def position(self) -> str:
        at = self._follower.position
        return f"{self._era.mark.generation.decode()}|{at}" if at else ""

    async def since(self, position: str) -> list[Change] | None:
        generation, _, at = position.partition("|")
        await self._read.look()
        if not at or generation.encode() != self._era.mark.generation:
            return None
        return await self._link.ask(lambda: self._follower.since(at), _REPLAY_BUDGET)

    async def purge(self, selection: Selection) -> int:
        """Gone for everybody at once, but for `contains`, which looks at every text; then removed page by page."""
        if selection.is_all:
            held = await self._with_room(self._era.flush)
            await self._tell(Change("reset"))
            self._background.spawn(self._clean(), "cache-clean")
            return held
        wanted = [count for group, count in (await self.counts()).items() if selection.takes_group(group)]
        tell = sum(wanted) <= _RESET_ABOVE
        if selection.contains is None:
            await self._with_room(lambda: self._era.cut(selection))
            if not tell:
                await self._tell(Change("reset"))
        purged = 0
        async for page in self._read.members():
            metas = await self._read.metas(page)
            chosen = [exact for exact, meta in metas.items() if selection.takes_group(Group(*meta.group))]
            if selection.contains is not None:
                entries = await self._read.entries(self._slow, chosen)
                chosen = [entry.exact for entry in entries if entry is not None and selection.takes(entry)]
                chosen = await self._read.all_keys(chosen)
            purged += await self._remove(chosen, tell=tell)
        if purged and not tell:
            # One word instead of thousands: the stream's length is bounded.
            await self._tell(Change("reset"))
        return purged

    async def recent(self, limit: int, selection: Selection = ANYTHING) -> list[Entry]:
        """Of the entries that will live longest, the newest first."""
        found: list[Entry] = []
        seen, enough = 0, max(4 * limit, PAGE)
        async for page in self._read.longest_lived():
            chosen = page
            if not replace(selection, contains=None).is_all:
                metas = await self._read.known(page)
                chosen = [exact for exact in page if exact in metas and selection.takes_group(metas[exact].of)]
            entries = await self._read.entries(self._slow, chosen)
            found += [entry for entry in entries if entry is not None and selection.takes(entry)]
            seen += len(page)
            if len(found) >= limit and seen >= enough:
                break
        return sorted(found, key=lambda entry: entry.created, reverse=True)[:limit]

    async def counts(self) -> dict[Group, int]:
        while await self._sweep() == PAGE:
            pass
        raw = await self._link.ask(lambda: cast("Awaitable[dict[bytes, bytes]]", self._slow.hgetall(self._keys.groups)))
        return read_groups(raw)

    def touch(self, exact: bytes) -> None:
        self._touches.note(exact, self._now())

    def in_touch(self) -> bool:
        return self._follower.in_touch()

    def status(self) -> str | None:
        return "unreachable" if self._link.is_down else None

    async def close(self) -> None:
        await self._background.close()
        self._listen = _ignore
        await self._link.close()

    async def _remove(self, exacts: Sequence[bytes], *, tell: bool = True, whole: bool = True) -> int:
        metas = await self._read.known(exacts)
        if metas:
            batch = self._batch(whole=whole)
            for exact, meta in metas.items():
                batch.remove(exact, meta, tell=tell)
            await self._execute(batch)
        return len(metas)

    async def _sweep(self) -> int:
        """Redis expires answers by itself, and where it lacks memory lets some go: this takes away what led there.

        How many had expired, at most a page of them.
        """
        await self._read.look()
        due = await self._link.ask(
            lambda: as_list(self._slow.zrangebyscore(self._keys.expires, 0, self._now(), start=0, num=PAGE))
        )
        if await self._remove(due) < len(due):
            await self._read.forget(due)  # what is known of some is lost: they would be due for ever
        await self._remove(await self._read.lost())
        return len(due)

    def _batch(self, *, whole: bool = True) -> Batch:
        return Batch(self._slow, self._keys, self._worker, self._codec, whole=whole)

    async def _tell(self, change: Change) -> None:
        batch = self._batch()
        batch.tell(change)
        await self._execute(batch)

    async def _execute(self, batch: Batch) -> Done:
        done = await self._link.ask(batch.execute)
        await self._settle(done)
        for change in batch.changes:
            self._listen(change)
        return done

    async def _with_room(self, work: Callable[[], Awaitable[T]]) -> T:
        """Redis may be smaller than the number of entries allowed: then those worth least go, once."""
        try:
            return await work()
        except StoreFull:
            await self._relieve()
            return await work()

    async def _relieve(self) -> None:
        """Make room without writing anything: a full Redis still removes."""
        with suppress(StoreFull):  # of the counts, which come last
            await self._remove(await self._read.worth_least(_RELIEF), tell=False, whole=False)
        await self._link.ask(lambda: as_count(self._slow.xtrim(self._keys.feed, maxlen=_RELIEF, approximate=False)))

    async def _settle(self, done: Done) -> None:
        """Raises StoreDown when everything was flushed while this was written: then it was written for nobody."""
        before = self._era.mark.generation
        if not await self._era.is_present(done.generation, done.cut) and self._era.mark.generation != before:
            self._background.spawn(self._clean(before), "cache-clean")
            raise StoreDown("redis: flushed meanwhile")

    async def _clean(self, generation: bytes | None = None) -> None:
        with suppress(StoreDown):  # whoever starts next goes on
            if generation is not None:
                await self._era.clear(generation)
            await self._era.clean()

    def _lost(self) -> None:
        self._listen(Change("reset"))


def _ignore(_: Change) -> None:
    """Until started, and after closing, nobody listens."""
