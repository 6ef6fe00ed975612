"""The exact tier in this process: the answers used last, found by digest without leaving the event loop.

Bounded by entries and bytes. Knows nothing of time or tenants: whoever reads an entry checks both.
What was taken back while a store was still answering for it must not come in after that: ids are never given twice, so
those that went last are remembered, and `era` counts how often all went.
"""

from collections import OrderedDict

from cache.types import Entry

# What an entry costs in memory besides its text and answer: objects, digests, dictionary slots.
_OVERHEAD = 800
# Ids that went last: more than any store drops while one answer of it is on its way.
_MOST_GONE = 4_096


class Front:
    """Least-recently-used entries by exact digest."""

    def __init__(self, *, max_entries: int, max_bytes: int) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()
        self._exact_of: dict[int, bytes] = {}
        self._bytes = 0
        self._gone: dict[int, None] = {}
        self.era = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def held_bytes(self) -> int:
        return self._bytes

    def get(self, exact: bytes) -> Entry | None:
        entry = self._entries.get(exact)
        if entry is not None:
            self._entries.move_to_end(exact)
        return entry

    def has(self, entry_id: int) -> bool:
        return entry_id in self._exact_of

    def became(self, entry: Entry, era: int) -> int | None:
        """What has come of an entry that was put: its id, also where it made room for others; that of the one in its
        place; None where it was taken back."""
        if era != self.era or entry.id in self._gone:
            return None
        held = self._entries.get(entry.exact)
        return entry.id if held is None else held.id

    def root_of(self, entry_id: int) -> int:
        """What all keys of its answer share, where that is known here; else the id itself."""
        entry = self._entries.get(self._exact_of.get(entry_id, b""))
        return entry_id if entry is None else entry.root

    def put(self, entry: Entry, era: int | None = None) -> bool:
        """Keep `entry`, letting the least recently used go; False for one that alone exceeds the bounds, and for one
        that went meanwhile. `era`: as it was when a store was asked, None where none was.
        """
        if era not in {None, self.era} or entry.id in self._gone:
            return False
        if entry.exact in self._entries:
            self.drop(entry.exact)
        size = _size(entry)
        if size > self._max_bytes:
            return False
        self._entries[entry.exact] = entry
        self._exact_of[entry.id] = entry.exact
        self._bytes += size
        while len(self._entries) > self._max_entries or self._bytes > self._max_bytes:
            self.drop(next(iter(self._entries)))
        return entry.id in self._exact_of

    def drop(self, exact: bytes) -> None:
        entry = self._entries.pop(exact, None)
        if entry is not None:
            self._exact_of.pop(entry.id, None)
            self._bytes -= _size(entry)

    def drop_id(self, entry_id: int) -> None:
        """For good."""
        self._gone[entry_id] = None
        if len(self._gone) > _MOST_GONE:
            del self._gone[next(iter(self._gone))]
        exact = self._exact_of.get(entry_id)
        if exact is not None:
            self.drop(exact)

    def clear(self) -> None:
        self.era += 1
        self._entries.clear()
        self._exact_of.clear()
        self._bytes = 0


def _size(entry: Entry) -> int:
    return _OVERHEAD + len(entry.answer) + 2 * len(entry.text)
