"""The nearest kept keys of a request, for many runs over the same requests in the same order.

Knows requests by their place in the order, and the index that serves. `Table` asks it once for all pairs of requests
and then only picks those that are kept: the same keys with the same cosines, to the last bit, for a small share of the
time. Does not know texts, answers or policies.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cache.index import Near
from cache.index import load as load_index

Matrix = NDArray[np.float32]
_DEPTH = 128


class Nearest(Protocol):
    """Keys that are kept. `place` of a request in the order."""

    def add(self, key: int, place: int, vector: NDArray[np.float32]) -> None: ...

    def remove(self, key: int) -> None: ...

    def search(self, place: int, vector: NDArray[np.float32], k: int) -> Sequence[Near]: ...


class Searched:
    """Asks the index at each request."""

    def __init__(self, dimension: int) -> None:
        self._index = load_index("flat").Index(dimension)

    def add(self, key: int, place: int, vector: NDArray[np.float32]) -> None:
        del place
        self._index.add([key], vector[None])

    def remove(self, key: int) -> None:
        self._index.remove([key])

    def search(self, place: int, vector: NDArray[np.float32], k: int) -> Sequence[Near]:
        del place
        return self._index.search(vector, k)


class Table:
    """The `depth` nearest of all requests for each of them: `places` and `cosines`, both `(requests, depth)`."""

    def __init__(self, vectors: Matrix, depth: int = _DEPTH) -> None:
        index = load_index("flat").Index(vectors.shape[1])
        index.add(range(len(vectors)), vectors)
        self.depth = min(depth, len(vectors))
        self.dimension = int(vectors.shape[1])
        self.places = np.full((len(vectors), self.depth), -1, np.int32)
        self.cosines = np.zeros((len(vectors), self.depth), np.float64)
        for i, vector in enumerate(vectors):
            found = index.search(vector, self.depth)
            self.places[i, : len(found)] = [near.entry_id for near in found]
            self.cosines[i, : len(found)] = [near.similarity for near in found]


class Picked:
    """One run over a `Table`. Where the table is not deep enough to be sure, the index is asked."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._searched = Searched(table.dimension)
        self._key_at = np.full(len(table.places), -1, np.int64)
        self._place_of: dict[int, int] = {}
        # Not in the index yet: often it is never asked.
        self._pending: dict[int, NDArray[np.float32]] = {}

    def add(self, key: int, place: int, vector: NDArray[np.float32]) -> None:
        self._pending[key] = vector
        self._key_at[place] = key
        self._place_of[key] = place

    def remove(self, key: int) -> None:
        if self._pending.pop(key, None) is None:
            self._searched.remove(key)
        self._key_at[self._place_of.pop(key)] = -1

    def search(self, place: int, vector: NDArray[np.float32], k: int) -> Sequence[Near]:
        keys = self._key_at[self._table.places[place]]
        kept = np.flatnonzero(keys >= 0)[: k + 1]
        cosines = self._table.cosines[place, kept]
        # One more than is wanted, and not as near as the last that is: else another might belong there as well.
        if len(kept) <= k or cosines[k] == cosines[k - 1]:
            return self._asked(place, vector, k)
        found = zip(keys[kept[:k]].tolist(), cosines[:k].tolist(), strict=True)
        return [Near(key, cosine) for key, cosine in found]

    def _asked(self, place: int, vector: NDArray[np.float32], k: int) -> Sequence[Near]:
        for key, late in self._pending.items():
            self._searched.add(key, self._place_of[key], late)
        self._pending.clear()
        return self._searched.search(place, vector, k)
