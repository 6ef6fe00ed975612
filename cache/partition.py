"""One scope's vectors in memory: a main index, a small one for what is new, and which of them are dead.

While small, all happens at once on the event loop. Above that the main index is searched and changed in threads only:
new vectors wait in arrays and are folded in, removed ones are filtered out until they are a fifth, and a partition that
has outgrown exact search is rebuilt as clusters beside the one that serves, then swapped. What took a thread to build
takes one to throw away. Measured at a million: `cache.bench.index`.
Does not know stores, scopes or files; its owner says when to `tend`.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from msgspec import Struct

from cache.fresh import Fresh
from cache.gate import Gate
from cache.index import Index, Near
from cache.index import load as load_index
from cache.store import Change, VectorRow
from cache.table import Table
from cache.vectors import Vector, is_sound, unpack_all

log = logging.getLogger("nearhit.cache")

Kind = Literal["flat", "ivf"]
Step = Literal["fold", "compact", "flat", "ivf"]

# A search gives way for so many rows at most while it waits for a change.
_FOLD_SLICE = 64
_COMPACT_SLICE = 4_096
# Neighbours asked for beyond those wanted, because some may be dead; more only where that was not enough.
_SPARE = 32
# Fewer rows than that are added sooner than a thread begins.
_FILL_INLINE = 16
# Above so many waiting vectors they are searched in the thread too.
_WAITING_INLINE = 2_048


class Candidate(NamedTuple):
    """An entry that may be near; `exact` is where the store finds it."""

    entry_id: int
    exact: bytes
    similarity: float


class Sizes(Struct, frozen=True, kw_only=True):
    """When a partition changes its ways. `inline`: below it a search is faster than a hop to a thread and back.

    Clusters from `clusters` vectors on, exact search again below `exact`: apart, so that none goes to and fro.
    `regrow`: clusters are learned anew when there are so many times more vectors than they were learned for.
    """

    inline: int = 12_000
    clusters: int = 50_000
    exact: int = 25_000
    regrow: float = 4.0
    fold: int = 1_024
    dead_share: float = 0.2
    dead_least: int = 128


class Shape(NamedTuple):
    """What decides the next step: rows in the main index, the dead, those waiting, and how many its clusters suit."""

    kind: Kind
    main: int
    dead: int
    fresh: int
    learned: int


def next_step(shape: Shape, sizes: Sizes) -> Step | None:
    """What a partition should do now, the cheapest and most useful first."""
    live = shape.main + shape.fresh - shape.dead
    if shape.kind == "flat" and live >= sizes.clusters:
        return "ivf"
    if shape.kind == "ivf" and live < sizes.exact:
        return "flat"
    if shape.kind == "ivf" and live >= sizes.regrow * shape.learned:
        return "ivf"
    if shape.dead >= max(sizes.dead_least, sizes.dead_share * shape.main):
        return "compact"
    if shape.fresh >= sizes.fold or (shape.fresh and shape.kind == "flat" and shape.main < sizes.inline):
        return "fold"
    return None


class Partition:
    """Searched by many, tended by one task at a time. `exact_of`: every live entry, by id."""

    def __init__(self, make: Callable[[], Index], sizes: Sizes) -> None:
        self._make = make
        self._sizes = sizes
        self._kind: Kind = "flat"
        self._main = make()
        self._learned = 0
        self._layers: list[Fresh] = []
        self._dead = Table()
        self._leaving = Table()
        self._gate = Gate()
        self._tending = False
        self._warned = False
        self.exact_of = Table()
        self.changed = 0

    def __len__(self) -> int:
        return len(self._main) + sum(len(layer) for layer in self._layers)

    @property
    def dimension(self) -> int:
        return self._main.dimension

    @property
    def kind(self) -> Kind:
        return self._kind

    @property
    def is_small(self) -> bool:
        """Whether everything is done at once, on the loop."""
        small = self._kind == "flat" and len(self._main) < self._sizes.inline
        return small and not self._tending and self._gate.is_quiet

    def take(self, change: Change) -> None:
        """What happened to an entry. Twice the same is no harm."""
        if change.kind == "add":
            self.add([change.row])
        elif self.exact_of.pop(change.row.entry_id) is not None:
            self._dead.put(change.row.entry_id, b"")
            self.changed += 1
            if self.is_small and not self._layers and len(self._dead) >= self._sizes.dead_least:
                self._main.remove(list(self._dead))
                self._dead = Table()

    def add(self, rows: Sequence[VectorRow]) -> None:
        """Those not known yet whose vector is sound; on the loop, so a few at a time."""
        ids, exacts, vectors = self._new(rows)
        if not ids:
            return
        revived = [entry_id for entry_id in ids if self._dead.pop(entry_id) is not None]
        if self.is_small and not self._layers:
            self._main.remove(revived)
            self._main.add(ids, vectors)
        else:
            # A revived one is there twice then; that is seen when it is found.
            if not self._layers:
                self._layers.append(Fresh(self.dimension))
            self._layers[0].add(ids, vectors)
        self.exact_of.update(zip(ids, exacts, strict=True))
        self.changed += len(ids)

    async def fill(self, rows: Sequence[VectorRow]) -> None:
        """`add` while nobody searches yet: any number, straight into the main index."""
        if len(rows) <= _FILL_INLINE:
            self.add(rows)
        else:
            await asyncio.to_thread(self._fill, rows)

    def restore(self, kind: Kind, index: Index, exact_of: Table, dead: Table) -> None:
        """Begin with what was saved."""
        self._kind, self._main, self._learned = kind, index, len(index)
        self.exact_of, self._dead, self.changed = exact_of, dead, 0

    async def search(self, vector: Vector, k: int) -> list[Candidate]:
        """The nearest live ones, closest first; none for a vector that is not sound."""
        if not is_sound(vector, self.dimension):
            return []
        main, spare = self._main, min(len(self._dead) + len(self._leaving), _SPARE)
        while True:
            layers, late = self._layers, list[Fresh]()
            if sum(map(len, layers)) > _WAITING_INLINE and not self.is_small:
                layers, late = late, list(layers)
            near = [near for layer in layers for near in layer.search(vector, k + spare)]
            if self.is_small:
                near += main.search(vector, k + spare)
            else:
                parts: list[Index | Fresh] = [main, *late]
                near += await self._gate.look(lambda wanted=k + spare, parts=parts: _search(parts, vector, wanted))
            found = self._live(near, k)
            if len(found) >= k or len(near) < k + spare or k + spare >= len(main):
                return found
            # All that was near is dead: look further.
            spare = 8 * spare + k

    def wants(self) -> Step | None:
        """What `tend` would do first."""
        fresh = sum(len(layer) for layer in self._layers)
        shape = Shape(self._kind, len(self._main), len(self._dead), fresh, self._learned)
        return None if self._tending else next_step(shape, self._sizes)

    async def tend(self) -> None:
        """Do what is due, step by step, while searches and changes go on."""
        while (step := self.wants()) is not None:
            self._tending = True
            try:
                await self._do(step)
            finally:
                self._tending = False

    async def freeze(self, write: Callable[[Kind, Index], None]) -> None:
        """Fold in what is new, then `write` in a thread while nothing changes the main index."""
        if self._tending:
            return
        self._tending = True
        changed = self.changed
        try:
            await self._fold()
            kind, main = self._kind, self._main
            await asyncio.to_thread(lambda: write(kind, main))
            self.changed -= changed
        finally:
            self._tending = False

    async def rebuild(self) -> None:
        """Make the main index anew, of the kind it is."""
        if not self._tending:
            self._tending = True
            try:
                await self._rebuild(self._kind)
            finally:
                self._tending = False

    async def _do(self, step: Step) -> None:
        if step == "fold":
            await self._fold()
        elif step == "compact":
            await self._compact()
        else:
            await self._rebuild(step)

    async def _fold(self) -> None:
        """Bring what is new into the main index, a slice at a time."""
        if not self._layers:
            return
        folding = self._layers[0]
        self._layers.insert(0, Fresh(self.dimension))
        for ids, vectors in folding.slices(_FOLD_SLICE):
            at = [at for at, entry_id in enumerate(ids) if entry_id in self.exact_of]
            if at:
                some, rows = [ids[place] for place in at], vectors[at]
                async with self._gate.alone():
                    await asyncio.to_thread(self._main.add, some, rows)
        self._layers.remove(folding)
        if not any(len(layer) for layer in self._layers):
            self._layers.clear()

    async def _compact(self) -> None:
        """Take the dead out for good. Those that still wait in arrays go when these are folded in."""
        self._leaving, self._dead = self._dead, Table()
        try:
            dead = await asyncio.to_thread(list, self._leaving)
            for start in range(0, len(dead), _COMPACT_SLICE):
                some = dead[start : start + _COMPACT_SLICE]
                async with self._gate.alone():
                    await asyncio.to_thread(self._main.remove, some)
        finally:
            await self._forget_leaving()

    async def _rebuild(self, kind: Kind) -> None:
        """The live rows in an index of `kind`, made beside the one that serves."""
        self._leaving, self._dead = self._dead, Table()
        try:
            built = await asyncio.to_thread(self._build, kind, self._main, self._leaving)
        except BaseException:
            self._dead.update(self._leaving.items())
            raise
        old, self._main = [self._main], built
        self._kind, self._learned = kind, len(built)
        async with self._gate.alone():
            pass  # whoever still looks into the old one
        await asyncio.to_thread(old.clear)
        await self._forget_leaving()
        await self._fold()

    async def _forget_leaving(self) -> None:
        gone, self._leaving = [self._leaving], Table()
        await asyncio.to_thread(gone.clear)

    def _build(self, kind: Kind, main: Index, dead: Table) -> Index:
        """In a thread, while others read `main` too."""
        if kind == "flat":
            built = self._make()
        else:
            built = load_index("ivf").Index(main.dimension)
            built.train(_sample(main), len(main))
        # Whole arrays at once: a thread stopped in the midst of a Python loop keeps the interpreter from all others.
        gone = np.sort(np.fromiter(dead, np.int64, len(dead)))
        for ids, rows in main.blocks():
            kept = slice(None) if not len(gone) else gone[np.searchsorted(gone, ids).clip(max=len(gone) - 1)] != ids
            if len(ids[kept]):
                built.add(ids[kept], rows[kept])
        return built

    def _fill(self, rows: Sequence[VectorRow]) -> None:
        ids, exacts, vectors = self._new(rows)
        if ids:
            self._main.add(ids, vectors)
            for entry_id in ids:
                self._dead.pop(entry_id)
            self.exact_of.update(zip(ids, exacts, strict=True))
            self.changed += len(ids)

    def _new(self, rows: Sequence[VectorRow]) -> tuple[list[int], list[bytes], Vector]:
        """Of `rows` those that may be added: ids, digests, and a matrix with a row for each."""
        fresh = list({row.entry_id: row for row in rows if row.vector and row.entry_id not in self.exact_of}.values())
        places, vectors = unpack_all([row.vector for row in fresh], self.dimension)
        if len(places) < len(fresh) and not self._warned:
            self._warned = True
            log.warning("cache index: left out %d vectors that are not sound", len(fresh) - len(places))
        return [fresh[at].entry_id for at in places], [fresh[at].exact for at in places], vectors

    def _live(self, near: list[Near], k: int) -> list[Candidate]:
        found: dict[int, Candidate] = {}
        for entry_id, similarity in sorted(near, key=lambda one: -one.similarity):
            exact = self.exact_of.get(entry_id)
            if exact is not None and entry_id not in found:
                found[entry_id] = Candidate(entry_id, exact, similarity)
                if len(found) == k:
                    break
        return list(found.values())


def _search(parts: Sequence[Index | Fresh], vector: Vector, k: int) -> list[Near]:
    return [near for part in parts for near in part.search(vector, k)]


def _sample(index: Index) -> Vector:
    """Rows from all parts of it, enough to learn clusters from; copied bit by bit, so that no copy takes long."""
    step = max(1, len(index) // load_index("ivf").sample_for(len(index)))
    parts = [rows[::step].copy() for _, rows in index.blocks()]
    sample = np.empty((sum(len(part) for part in parts), index.dimension), np.float32)
    start = 0
    for part in parts:
        sample[start : start + len(part)] = part
        start += len(part)
    return sample
