"""Entries in this process: for tests, and for gateways that need not remember across a restart.

Bounded by entries and by bytes; the least recently used go first.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence

from cache.store import Change, Selection, VectorRow
from cache.types import Entry, Group

_OVERHEAD = 1_600


class MemoryStore:
    """Implements `cache.store.Store` on dictionaries; every method finishes without waiting."""

    def __init__(self, *, max_entries: int = 100_000, max_bytes: int = 256 << 20) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()
        self._exact_of: dict[int, bytes] = {}
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
        self._entries[entry.exact] = entry
        self._exact_of[entry.id] = entry.exact
        self._members.setdefault((entry.scope, entry.encoder), set()).add(entry.exact)
        self._bytes += _size(entry)
        self._listen(Change("add", entry.scope, entry.encoder, _row(entry)))
        while len(self._entries) > self._max_entries or self._bytes > self._max_bytes:
            self._remove(next(iter(self._entries)))
        return True

    async def drop(self, entry_id: int) -> Entry | None:
        exact = self._exact_of.get(entry_id)
        return None if exact is None else self._remove(exact)

    async def vectors(self, scope: bytes, encoder: str) -> list[VectorRow]:
        members = self._members.get((scope, encoder), set())
        return [_row(entry) for exact in members if (entry := self._entries[exact]).vector]

    async def purge(self, selection: Selection) -> int:
        chosen = [exact for exact, entry in self._entries.items() if selection.takes(entry)]
        for exact in chosen:
            self._remove(exact)
        return len(chosen)

    async def recent(self, limit: int) -> list[Entry]:
        return sorted(self._entries.values(), key=lambda entry: entry.created, reverse=True)[:limit]

    async def counts(self) -> dict[Group, int]:
        counts: dict[Group, int] = {}
        for entry in self._entries.values():
            group = Group(entry.team, entry.project, entry.model)
            counts[group] = counts.get(group, 0) + 1
        return counts

    def touch(self, exact: bytes) -> None:
        if exact in self._entries:
            self._entries.move_to_end(exact)

    def status(self) -> str | None:
        return None

    async def close(self) -> None:
        self._listen = _ignore

    def _remove(self, exact: bytes) -> Entry | None:
        entry = self._entries.pop(exact, None)
        if entry is None:
            return None
        del self._exact_of[entry.id]
        self._bytes -= _size(entry)
        members = self._members[entry.scope, entry.encoder]
        members.discard(exact)
        if not members:
            del self._members[entry.scope, entry.encoder]
        self._listen(Change("drop", entry.scope, entry.encoder, _row(entry)))
        return entry


def _row(entry: Entry) -> VectorRow:
    return VectorRow(entry.id, entry.exact, entry.expires, entry.vector)


def _size(entry: Entry) -> int:
    return _OVERHEAD + len(entry.answer) + 2 * len(entry.text)


def _ignore(_: Change) -> None:
    """Until started, and after closing, nobody listens."""
