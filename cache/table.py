"""Entries' digests by id, for partitions of any size: a dictionary whose growth never takes long.

A dictionary of a million keys moves them all when it grows, and nothing else runs in the process for tens of
milliseconds; many small ones move a few thousand each. Knows ids and bytes, nothing of entries.
"""

from collections.abc import Iterable, Iterator

# Up to here one dictionary is quick enough, and thousands of small partitions cost nothing more.
_ONE = 8_192
_PARTS = 256  # a power of two


class Table:
    """Non-negative ids to bytes. Not safe for changes beside an iteration over it, but for reads beside changes."""

    def __init__(self, items: Iterable[tuple[int, bytes]] = ()) -> None:
        self._parts: list[dict[int, bytes]] = [{}]
        self._count = 0
        self.update(items)

    def __len__(self) -> int:
        return self._count

    def __contains__(self, entry_id: object) -> bool:
        return isinstance(entry_id, int) and entry_id in self._part(entry_id)

    def __iter__(self) -> Iterator[int]:
        for part in self._parts:
            yield from part

    def items(self) -> Iterator[tuple[int, bytes]]:
        for part in self._parts:
            yield from part.items()

    def get(self, entry_id: int) -> bytes | None:
        return self._part(entry_id).get(entry_id)

    def put(self, entry_id: int, value: bytes) -> None:
        part = self._part(entry_id)
        before = len(part)
        part[entry_id] = value
        self._count += len(part) - before
        if self._count > _ONE and len(self._parts) == 1:
            self._split()

    def update(self, items: Iterable[tuple[int, bytes]]) -> None:
        for entry_id, value in items:
            self.put(entry_id, value)

    def pop(self, entry_id: int) -> bytes | None:
        """None where it was not there."""
        found = self._part(entry_id).pop(entry_id, None)
        self._count -= found is not None
        return found

    def copy(self) -> "Table":
        """In a thread: it takes a while for a million, but never long at a time."""
        made = Table()
        made._parts = [part.copy() for part in self._parts]
        made._count = sum(map(len, made._parts))
        return made

    def _part(self, entry_id: int) -> dict[int, bytes]:
        parts = self._parts
        return parts[entry_id & (len(parts) - 1)]

    def _split(self) -> None:
        """Into many, by the last bits of the ids, which are drawn by chance."""
        parts: list[dict[int, bytes]] = [{} for _ in range(_PARTS)]
        for entry_id, value in self._parts[0].items():
            parts[entry_id & (_PARTS - 1)][entry_id] = value
        self._parts = parts
