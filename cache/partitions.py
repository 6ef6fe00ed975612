"""Which indexes are in memory: one per scope and encoder, loaded from the store on first use, kept current by changes.

Physical separation is the tenant wall: a search can only see the partition of its own scope.
Does not decide anything: what it returns are candidates, and the store says which of them are real.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from cache.background import Background
from cache.index import Index
from cache.partition import Candidate, Kind, Partition, Sizes
from cache.snapshots import Saved, Snapshots
from cache.store import Change, Store, StoreDown, VectorRow
from cache.table import Table
from cache.vectors import Vector

__all__ = ["Candidate", "Key", "NotReady", "Partitions", "Saving"]

log = logging.getLogger("nearhit.cache")

Key = tuple[bytes, str]
SIZES = Sizes()
# So many vectors are not freed on the event loop.
_LARGE = 10_000


class NotReady(Exception):
    """The partition is still being loaded; it will be there for a later look-up."""


class Saving(NamedTuple):
    """Where snapshots go, and when: of partitions with `least` vectors, after a share changed, not too often."""

    snapshots: Snapshots
    least: int = 20_000
    share: float = 0.05
    pause: float = 60.0


class _Resident:
    """A partition that is in memory or on its way there. `waiting`: changes that came meanwhile."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.waiting: list[Change] = []
        self.counted = 0
        self.tended: asyncio.Task[None] | None = None
        self.loaded: asyncio.Task[StoreDown | None] | None = None
        self.saved_at: float | None = None


class Partitions:
    """Least-recently-used partitions, bounded by number and by vectors held in all."""

    def __init__(  # noqa: PLR0913 - two bounds, two ways to be set up, all named
        self,
        store: Store,
        *,
        make: Callable[[], Index],
        now: Callable[[], float],
        max_partitions: int,
        max_vectors: int,
        sizes: Sizes | None = None,
        saving: Saving | None = None,
    ) -> None:
        self._store = store
        self._make = make
        self._now = now
        self._max_partitions = max_partitions
        self._max_vectors = max_vectors
        self._sizes = sizes or SIZES
        self._saving = saving
        self._resident: OrderedDict[Key, _Resident] = OrderedDict()
        self._loading: dict[Key, _Resident] = {}
        self._background = Background()
        # Rebuilding takes a core: one partition at a time.
        self._tending = asyncio.Semaphore(1)
        self._held = 0
        self._warned = False

    def __len__(self) -> int:
        return len(self._resident)

    @property
    def held_vectors(self) -> int:
        return self._held

    def kinds(self) -> dict[Key, Kind]:
        """How each partition in memory is searched."""
        return {key: resident.partition.kind for key, resident in self._resident.items()}

    async def search(self, key: Key, vector: Vector, k: int, *, wait: float) -> list[Candidate]:
        """The `k` nearest of the scope. Raises NotReady when loading takes longer than `wait` seconds, or StoreDown."""
        return await (await self.get(key, wait)).search(vector, k)

    def apply(self, change: Change) -> None:
        """A change from the store. Partitions that are not in memory will read it when they are loaded."""
        if change.kind == "reset":
            self.clear()
            return
        key = (change.scope, change.encoder)
        if key in self._loading:
            self._loading[key].waiting.append(change)
        elif (resident := self._resident.get(key)) is not None:
            resident.partition.take(change)
            self._after_change(key, resident)

    def forget(self, key: Key, entry_id: int) -> None:
        """The store does not have this entry any more."""
        self.apply(Change("drop", key[0], key[1], VectorRow(entry_id, b"", 0.0, b"")))

    def clear(self) -> None:
        """Forget everything; what is being loaded is loaded again on its next use."""
        gone = list(self._resident.values())
        for task in [one.tended for one in gone if one.tended is not None]:
            task.cancel()
        self._resident.clear()
        _free(gone)
        self._loading.clear()
        self._held = 0

    async def settle(self) -> None:
        """Wait until no partition wants tending: for tests and measurements."""
        while running := [one.tended for one in self._resident.values() if one.tended and not one.tended.done()]:
            await asyncio.wait(running)

    async def close(self) -> None:
        await self._background.close()
        self.clear()

    async def get(self, key: Key, wait: float) -> Partition:
        """The partition itself. Raises as `search` does."""
        resident = self._resident.get(key)
        if resident is not None:
            self._resident.move_to_end(key)
            return resident.partition
        resident = self._loading.get(key)
        if resident is None:
            resident = self._loading[key] = _Resident(Partition(self._make, self._sizes))
        if resident.loaded is None:
            resident.loaded = self._background.spawn(self._load(key, resident), "cache-load")
        done, _ = await asyncio.wait({resident.loaded}, timeout=wait)
        if not done:
            raise NotReady
        if (trouble := await resident.loaded) is not None:
            raise trouble
        return resident.partition

    async def _load(self, key: Key, resident: _Resident) -> StoreDown | None:
        try:
            await self._read(key, resident)
        except StoreDown as error:
            if self._loading.get(key) is resident:
                del self._loading[key]
            return error
        if self._loading.get(key) is not resident:
            return None  # cleared meanwhile: the rows may be out of date
        del self._loading[key]
        for change in resident.waiting:
            resident.partition.take(change)
        resident.waiting.clear()
        self._resident[key] = resident
        self._after_change(key, resident)
        return None

    async def _read(self, key: Key, resident: _Resident) -> None:
        """A snapshot where there is one, and then from the store what is newer, or all where that cannot be told."""
        partition = resident.partition
        saved = await self._restored(key, partition)
        if saved is not None:
            resident.saved_at = self._now()
            if (missed := await self._store.since(saved.position)) is not None:
                for change in missed:
                    if (change.scope, change.encoder) == key:
                        partition.take(change)
                return
        stale = await asyncio.to_thread(partition.exact_of.copy) if len(partition) else Table()
        async for page in self._store.pages(*key, known=partition.exact_of):
            now = self._now()
            alive = [row for row in page if row.expires > now]
            if stale:
                for row in alive:
                    stale.pop(row.entry_id)
            await partition.fill(alive)
        for entry_id in stale:
            partition.take(Change("drop", key[0], key[1], VectorRow(entry_id, b"", 0.0, b"")))

    async def _restored(self, key: Key, partition: Partition) -> Saved | None:
        if self._saving is None or not self._saving.snapshots.has(key):
            return None
        saved = await asyncio.to_thread(self._saving.snapshots.load, key, partition.dimension)
        if saved is not None:
            partition.restore(saved.kind, saved.index, saved.exact_of, saved.dead)
        return saved

    def _after_change(self, key: Key, resident: _Resident) -> None:
        self._count(resident)
        self._shrink(keep=key)
        if resident.tended is None and (resident.partition.wants() or self._is_due(resident)):
            resident.tended = self._background.spawn(self._tend(key, resident), "cache-tend")

    async def _tend(self, key: Key, resident: _Resident) -> None:
        try:
            async with self._tending:
                await resident.partition.tend()
                if self._is_due(resident):
                    await self._save(key, resident)
        finally:
            resident.tended = None
            if self._resident.get(key) is resident:
                self._count(resident)

    def _is_due(self, resident: _Resident) -> bool:
        """Whether enough has changed, and long enough ago, to be written again."""
        saving, partition = self._saving, resident.partition
        if saving is None or len(partition) < saving.least:
            return False
        if resident.saved_at is None:
            return True
        return partition.changed >= saving.share * len(partition) and self._now() - resident.saved_at >= saving.pause

    async def _save(self, key: Key, resident: _Resident) -> None:
        assert self._saving is not None
        snapshots, exact_of = self._saving.snapshots, resident.partition.exact_of
        # Asked for before: what is changed from here on is told again after a restart.
        position = self._store.position()
        resident.saved_at = self._now()

        def write(kind: Kind, index: Index) -> None:
            try:
                snapshots.save(key, Saved(kind, index, exact_of, Table(), position))
            except OSError as error:
                log.warning("cache snapshot not written: %s", error)

        await resident.partition.freeze(write)

    def _count(self, resident: _Resident) -> None:
        self._held += len(resident.partition) - resident.counted
        resident.counted = len(resident.partition)

    def _shrink(self, keep: Key) -> None:
        while len(self._resident) > self._max_partitions or (
            self._held > self._max_vectors and len(self._resident) > 1
        ):
            oldest = next(iter(self._resident))
            if oldest == keep:
                self._resident.move_to_end(oldest)
                continue
            gone = self._resident.pop(oldest)
            self._held -= gone.counted
            if gone.tended is not None:
                gone.tended.cancel()
            if self._held + gone.counted > self._max_vectors and not self._warned:
                self._warned = True
                log.warning("cache index: %d vectors in memory is the bound; scopes take turns", self._max_vectors)
            _free([gone])
            del gone


def _free(residents: list[_Resident]) -> None:
    """Give back what they hold in a thread: that of a million vectors takes a while. The list is emptied."""
    if sum(resident.counted for resident in residents) >= _LARGE:
        asyncio.get_running_loop().run_in_executor(None, residents.clear)
