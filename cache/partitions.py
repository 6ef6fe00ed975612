"""Which indexes are in memory: one per scope and encoder, loaded from the store on first use, kept current by changes.

Physical separation is the tenant wall: a search can only see the partition of its own scope.
Does not decide anything: what it returns are candidates, and the store says which of them are real.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from cache.background import Background
from cache.index import Index
from cache.store import Change, Store, StoreDown, VectorRow
from cache.vectors import Vector, unpack

# Below this many vectors a search takes less time than a hop to a thread and back.
INLINE_BELOW = 20_000
# Removed vectors stay in the index, unseen, until there are so many; then they go together.
_COMPACT_AT = 128

Key = tuple[bytes, str]


class Candidate(NamedTuple):
    """An entry that may be near; `exact` is where the store finds it."""

    entry_id: int
    exact: bytes
    similarity: float


class NotReady(Exception):
    """The partition is still being loaded; it will be there for a later look-up."""


class _Partition:
    """One scope's index. `waiting` holds changes that came while it was being loaded or searched elsewhere."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.exact_of: dict[int, bytes] = {}
        self.dead: set[int] = set()
        self.waiting: list[Change] = []
        self.busy = asyncio.Lock()
        self.counted = 0

    def take(self, change: Change) -> None:
        if self.busy.locked():
            self.waiting.append(change)
        elif change.kind == "add":
            self.add([change.row])
        else:
            self.drop(change.row.entry_id)

    def catch_up(self) -> None:
        waiting, self.waiting = self.waiting, []
        for change in waiting:
            self.take(change)

    def add(self, rows: list[VectorRow]) -> None:
        fresh = {row.entry_id: row for row in rows if row.entry_id not in self.exact_of and row.vector}
        if not fresh:
            return
        revived = self.dead & fresh.keys()
        if revived:
            self.index.remove(list(revived))
            self.dead -= revived
        self.index.add(list(fresh), np.stack([unpack(row.vector) for row in fresh.values()]))
        self.exact_of.update((row.entry_id, row.exact) for row in fresh.values())

    def drop(self, entry_id: int) -> None:
        if self.exact_of.pop(entry_id, None) is not None:
            self.dead.add(entry_id)

    def search(self, vector: Vector, k: int) -> list[Candidate]:
        if len(self.dead) >= _COMPACT_AT:
            self.index.remove(list(self.dead))
            self.dead.clear()
        found = self.index.search(vector, k + len(self.dead))
        live = ((near, self.exact_of.get(near.entry_id)) for near in found)
        return [Candidate(near.entry_id, exact, near.similarity) for near, exact in live if exact is not None][:k]


class Partitions:
    """Least-recently-used partitions, bounded by number and by vectors held in all."""

    def __init__(
        self,
        store: Store,
        *,
        make: Callable[[], Index],
        now: Callable[[], float],
        max_partitions: int,
        max_vectors: int,
    ) -> None:
        self._store = store
        self._make = make
        self._now = now
        self._max_partitions = max_partitions
        self._max_vectors = max_vectors
        self._resident: OrderedDict[Key, _Partition] = OrderedDict()
        self._loading: dict[Key, tuple[asyncio.Task[StoreDown | None], _Partition]] = {}
        self._background = Background()
        self._held = 0

    def __len__(self) -> int:
        return len(self._resident)

    @property
    def held_vectors(self) -> int:
        return self._held

    async def search(self, key: Key, vector: Vector, k: int, *, wait: float) -> list[Candidate]:
        """The `k` nearest of the scope. Raises NotReady when loading takes longer than `wait` seconds, or StoreDown."""
        partition = await self._get(key, wait)
        if len(partition.index) < INLINE_BELOW and not partition.busy.locked():
            return partition.search(vector, k)
        # Shielded: were the caller's time to run out, the thread would go on reading an index that others may change.
        return await asyncio.shield(self._background.spawn(self._search_apart(partition, vector, k), "cache-search"))

    def apply(self, change: Change) -> None:
        """A change from the store. Partitions that are not in memory will read it when they are loaded."""
        if change.kind == "reset":
            self.clear()
            return
        key = (change.scope, change.encoder)
        if key in self._loading:
            self._loading[key][1].waiting.append(change)
        elif (partition := self._resident.get(key)) is not None:
            partition.take(change)
            self._count(partition)
            self._shrink(keep=key)

    def forget(self, key: Key, entry_id: int) -> None:
        """The store does not have this entry any more."""
        self.apply(Change("drop", key[0], key[1], VectorRow(entry_id, b"", 0.0, b"")))

    def clear(self) -> None:
        """Forget everything; what is being loaded is loaded again on its next use."""
        self._resident.clear()
        self._loading.clear()
        self._held = 0

    async def close(self) -> None:
        await self._background.close()
        self.clear()

    async def _get(self, key: Key, wait: float) -> _Partition:
        partition = self._resident.get(key)
        if partition is not None:
            self._resident.move_to_end(key)
            return partition
        if key not in self._loading:
            partition = _Partition(self._make())
            self._loading[key] = (self._background.spawn(self._load(key, partition), "cache-load"), partition)
        task, partition = self._loading[key]
        done, _ = await asyncio.wait({task}, timeout=wait)
        if not done:
            raise NotReady
        if (trouble := await task) is not None:
            raise trouble
        return partition

    async def _search_apart(self, partition: _Partition, vector: Vector, k: int) -> list[Candidate]:
        async with partition.busy:
            found = await asyncio.to_thread(partition.search, vector, k)
        partition.catch_up()
        return found

    async def _load(self, key: Key, partition: _Partition) -> StoreDown | None:
        try:
            rows = await self._store.vectors(*key)
        except StoreDown as error:
            self._loading.pop(key, None)
            return error
        now = self._now()
        alive = [row for row in rows if row.expires > now]
        if len(alive) < INLINE_BELOW:
            partition.add(alive)
        else:
            await asyncio.to_thread(partition.add, alive)
        if key not in self._loading or self._loading[key][1] is not partition:
            return None  # cleared meanwhile: the rows may be out of date
        del self._loading[key]
        partition.catch_up()
        self._resident[key] = partition
        self._count(partition)
        self._shrink(keep=key)
        return None

    def _count(self, partition: _Partition) -> None:
        self._held += len(partition.index) - partition.counted
        partition.counted = len(partition.index)

    def _shrink(self, keep: Key) -> None:
        while len(self._resident) > self._max_partitions or (
            self._held > self._max_vectors and len(self._resident) > 1
        ):
            oldest = next(iter(self._resident))
            if oldest == keep:
                self._resident.move_to_end(oldest)
                continue
            self._held -= self._resident.pop(oldest).counted
