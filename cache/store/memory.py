"""Entries in this process: for tests, and for gateways that need not remember across a restart.

Bounded by entries and by bytes; the expired go first, then those worth least.
"""

import asyncio
import heapq
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Container, Sequence

from cache.store import ANYTHING, Change, Selection, Stored, VectorRow
from cache.types import Entry, Group
from policies import eviction

_OVERHEAD = 1_600
_MOST_STATES = 10_000
# Between so many entries the event loop gets its turn.
_PAGE = 1_000


class MemoryStore:
    """Implements `cache.store.Store` on dictionaries.

    `now`: wall clock, for use times and expiry; without one an entry's own time of making is the latest known.
    """

    leasing = None  # no other process has this memory

    def __init__(
        self, *, max_entries: int = 100_000, max_bytes: int = 256 << 20, now: Callable[[], float] | None = None
    ) -> None:
        self._clock = now
        self._latest = 0.0
        self._ranks = _Ranks()
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: dict[bytes, Entry] = {}
        self._exact_of: dict[int, bytes] = {}
        self._keys_of: dict[int, set[bytes]] = {}
        self._states: OrderedDict[bytes, Stored] = OrderedDict()
        self._members: dict[tuple[bytes, str], set[bytes]] = {}
        self._bytes = 0
        self._listen: Callable[[Change], None] = _ignore

    async def start(self, listen: Callable[[Change], None]) -> None:
        self._listen = listen

    async def get(self, exact: bytes) -> Entry | None:
        return self._entries.get(exact)

    async def get_many(self, exacts: Sequence[bytes]) -> list[Entry | None]:
        return [self._entries.get(exact) for exact in exacts]

    async def put(self, entry: Entry) -> None:
        self.put_soon(entry)

    def put_soon(self, entry: Entry) -> bool:
        self._remove(entry.exact)
        self._latest = max(self._latest, entry.created)
        self._entries[entry.exact] = entry
        self._ranks.add(entry, self._now())
        self._exact_of[entry.id] = entry.exact
        self._keys_of.setdefault(entry.root, set()).add(entry.exact)
        self._members.setdefault((entry.scope, entry.encoder), set()).add(entry.exact)
        self._bytes += _size(entry)
        self._listen(Change("add", entry.scope, entry.encoder, _row(entry)))
        self._make_room(entry.exact)
        return True

    async def put_key(self, entry: Entry, beside: bytes, most: int) -> bool:
        held = self._entries.get(beside)
        if held is None or held.root != entry.root:
            return False
        keys = self._keys_of[entry.root] - {entry.exact}
        surplus = max(0, len(keys) - most + 1)
        may_go = [key for key in keys if key != beside and self._entries[key].id != entry.root]
        if len(may_go) < surplus:
            return False
        for key in sorted(may_go, key=self._ranks.of)[:surplus]:
            self._remove(key)
        return self.put_soon(entry)

    async def drop_key(self, exact: bytes, entry_id: int) -> bool:
        held = self._entries.get(exact)
        return held is not None and held.id == entry_id and self._remove(exact) is not None

    async def drop(self, entry_id: int) -> Entry | None:
        exact = self._exact_of.get(entry_id)
        root = entry_id if exact is None else self._entries[exact].root
        dropped = [self._remove(key) for key in list(self._keys_of.get(root, ()))]
        return next((entry for entry in dropped if entry and entry.id == entry_id), dropped[0] if dropped else None)

    async def states(self, names: Sequence[bytes]) -> list[Stored | None]:
        return [self._states.get(name) for name in names]

    async def put_state(self, name: bytes, blob: bytes, *, seen: int) -> bool:
        held = self._states.get(name)
        if (held.version if held else 0) != seen:
            return False
        self._states[name] = Stored(seen + 1, blob)
        self._states.move_to_end(name)
        if len(self._states) > _MOST_STATES:
            self._states.popitem(last=False)
        return True

    @property
    def shared(self) -> bool:
        return False

    async def vectors(self, scope: bytes, encoder: str) -> list[VectorRow]:
        members = self._members.get((scope, encoder), set())
        return [_row(entry) for exact in members if (entry := self._entries[exact]).vector]

    async def pages(
        self,
        scope: bytes,
        encoder: str,
        *,
        known: Container[int] = (),  # noqa: ARG002 - what is here already costs nothing to give
    ) -> AsyncGenerator[list[VectorRow], None]:
        rows = await self.vectors(scope, encoder)
        for start in range(0, len(rows), _PAGE):
            yield rows[start : start + _PAGE]
            await asyncio.sleep(0)

    def position(self) -> str:
        return ""

    async def since(self, position: str) -> list[Change] | None:  # noqa: ARG002 - no stream to look into
        return None

    async def purge(self, selection: Selection) -> int:
        if selection.is_all:
            return self._flush()
        purged, exacts = 0, list(self._entries)
        for start in range(0, len(exacts), _PAGE):
            for exact in exacts[start : start + _PAGE]:
                entry = self._entries.get(exact)
                if entry is not None and selection.takes(entry):
                    purged += sum(self._remove(key) is not None for key in list(self._keys_of[entry.root]))
            await asyncio.sleep(0)
        return purged

    def _flush(self) -> int:
        held = len(self._entries)
        self._entries, self._exact_of, self._keys_of, self._members = {}, {}, {}, {}
        self._ranks = _Ranks()
        self._bytes = 0
        self._listen(Change("reset"))
        return held

    async def recent(self, limit: int, selection: Selection = ANYTHING) -> list[Entry]:
        found = (entry for entry in self._entries.values() if entry.expires > self._now() and selection.takes(entry))
        return sorted(found, key=lambda entry: entry.created, reverse=True)[:limit]

    async def counts(self) -> dict[Group, int]:
        counts: dict[Group, int] = {}
        for entry in self._entries.values():
            if entry.expires > self._now():
                group = Group(entry.team, entry.project, entry.model)
                counts[group] = counts.get(group, 0) + 1
        return counts

    def touch(self, exact: bytes) -> None:
        entry = self._entries.get(exact)
        if entry is not None:
            self._ranks.used(entry, self._now())

    def in_touch(self) -> bool:
        return True  # there are no others

    def status(self) -> str | None:
        return None

    async def close(self) -> None:
        self._listen = _ignore

    def _now(self) -> float:
        return self._latest if self._clock is None else self._clock()

    def _make_room(self, newest: bytes) -> None:
        """Let go what is worth least, never the one just written."""
        while len(self._entries) > 1 and (len(self._entries) > self._max_entries or self._bytes > self._max_bytes):
            self._remove(self._ranks.least(newest, self._now()))

    def _remove(self, exact: bytes) -> Entry | None:
        entry = self._entries.pop(exact, None)
        if entry is None:
            return None
        del self._exact_of[entry.id]
        self._ranks.remove(entry)
        keys = self._keys_of[entry.root]
        keys.discard(exact)
        if not keys:
            del self._keys_of[entry.root]
        self._bytes -= _size(entry)
        members = self._members[entry.scope, entry.encoder]
        members.discard(exact)
        if not members:
            del self._members[entry.scope, entry.encoder]
        self._listen(Change("drop", entry.scope, entry.encoder, _row(entry)))
        return entry


class _Ranks:
    """Entries by rank. A use raises a rank, so what the heap says of an entry is at most what it is now: look again."""

    def __init__(self) -> None:
        self._rank_of: dict[bytes, float] = {}
        self._expires_of: dict[bytes, float] = {}
        self._heap: list[tuple[float, bytes]] = []
        self._expiries: list[tuple[float, bytes]] = []

    def add(self, entry: Entry, now: float) -> None:
        self._rank_of[entry.exact] = rank = eviction.first(_worth(entry), now)
        self._expires_of[entry.exact] = entry.expires
        heapq.heappush(self._heap, (rank, entry.exact))
        heapq.heappush(self._expiries, (entry.expires, entry.exact))
        if len(self._heap) > 2 * len(self._rank_of) + _PAGE:
            # What was removed is still in both.
            self._heap = sorted((rank, exact) for exact, rank in self._rank_of.items())
        if len(self._expiries) > 2 * len(self._rank_of) + _PAGE:
            self._expiries = sorted((expires, exact) for exact, expires in self._expires_of.items())

    def of(self, exact: bytes) -> float:
        return self._rank_of[exact]

    def used(self, entry: Entry, now: float) -> None:
        self._rank_of[entry.exact] = eviction.again(self._rank_of[entry.exact], _worth(entry), now)

    def remove(self, entry: Entry) -> None:
        del self._rank_of[entry.exact]
        del self._expires_of[entry.exact]

    def least(self, but: bytes, now: float) -> bytes:
        """What should go first: something expired, else the lowest rank. There is another one than `but`."""
        while self._expiries and self._expiries[0][0] <= now:
            _, exact = heapq.heappop(self._expiries)
            if exact != but and self._expires_of.get(exact, now + 1.0) <= now:
                return exact
        kept: tuple[float, bytes] | None = None
        while True:
            rank, exact = heapq.heappop(self._heap)
            current = self._rank_of.get(exact)
            if current is None:
                continue
            if current > rank:
                heapq.heappush(self._heap, (current, exact))
            elif exact == but:
                kept = (rank, exact)
            else:
                if kept is not None:
                    heapq.heappush(self._heap, kept)
                return exact


def _worth(entry: Entry) -> float:
    return eviction.worth(entry.cost_nano, entry.latency_ms, _size(entry))


def _row(entry: Entry) -> VectorRow:
    return VectorRow(entry.id, entry.exact, entry.expires, entry.vector)


def _size(entry: Entry) -> int:
    return _OVERHEAD + len(entry.answer) + 2 * len(entry.text)


def _ignore(_: Change) -> None:
    """Until started, and after closing, nobody listens."""
