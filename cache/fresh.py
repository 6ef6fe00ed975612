"""Vectors that wait to be folded into a large index: added one by one on the event loop, so plain arrays.

A call into FAISS gives the interpreter away and has to wait for it again, a millisecond each while a thread works hard;
an array is written at once. Nothing is ever removed: whoever reads it knows what is gone. Searches may run in a thread
beside additions. Knows ids and vectors.
"""

from collections.abc import Sequence

import numpy as np

from cache.index import Near
from cache.vectors import Ids, Vector

_ROWS = 1_024


class _Chunk:
    """So many rows, filled from the front. `count` is raised after a row is whole."""

    __slots__ = ("count", "ids", "rows")

    def __init__(self, dimension: int) -> None:
        self.ids: Ids = np.zeros(_ROWS, np.int64)
        self.rows: Vector = np.empty((_ROWS, dimension), np.float32)
        self.count = 0


class Fresh:
    """Normalised float32 vectors of one dimension, in the order they came."""

    def __init__(self, dimension: int) -> None:
        self._dimension = dimension
        self._chunks: list[_Chunk] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, ids: Sequence[int], vectors: Vector) -> None:
        """`vectors`: `(len(ids), dimension)`."""
        done = 0
        while done < len(ids):
            if not self._chunks or self._chunks[-1].count == _ROWS:
                self._chunks.append(_Chunk(self._dimension))
            chunk = self._chunks[-1]
            at, some = chunk.count, min(len(ids) - done, _ROWS - chunk.count)
            chunk.ids[at : at + some] = ids[done : done + some]
            chunk.rows[at : at + some] = vectors[done : done + some]
            chunk.count = at + some
            done += some
        self._count += len(ids)

    def search(self, vector: Vector, k: int) -> list[Near]:
        """At most `k` of each thousand, in any order."""
        found: list[Near] = []
        for chunk in list(self._chunks):
            count = chunk.count
            similarities = chunk.rows[:count] @ vector
            best = np.argpartition(-similarities, k - 1)[:k] if count > k else np.arange(count)
            found += [Near(int(chunk.ids[at]), min(1.0, float(similarities[at]))) for at in best]
        return found

    def slices(self, rows: int) -> list[tuple[list[int], Vector]]:
        """All of it in pieces of at most so many rows, as views. Nothing may be added meanwhile."""
        return [
            (chunk.ids[at : min(at + rows, chunk.count)].tolist(), chunk.rows[at : min(at + rows, chunk.count)])
            for chunk in self._chunks
            for at in range(0, chunk.count, rows)
        ]
