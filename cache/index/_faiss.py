"""What every FAISS index does alike: check, add, remove, search, write to a file.

Codes are half-precision numbers, as stores keep them: half the memory of single precision and twice as fast to scan,
at a cosine that is off by less than 1e-4 (eight bits: by up to 2e-2, which would move decisions).
Does not know how big an index is or when to make another.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from cache.index import Near
from cache.vectors import Ids, Vector, checked

METRIC = faiss.METRIC_INNER_PRODUCT
HALF = faiss.ScalarQuantizer.QT_fp16
# So many rows are turned to single precision at once when all are read.
BLOCK = 8_192


class FaissIndex:
    """Implements what `cache.index.Index` asks of any kind; `_index` takes ids with its vectors.

    It counts by itself: asking FAISS gives the interpreter away, and lengths are asked for all the time.
    """

    def __init__(self, dimension: int, index: Any) -> None:
        self.dimension = dimension
        self._index = index
        self._count = int(index.ntotal)

    def __len__(self) -> int:
        return self._count

    def add(self, ids: Sequence[int] | Ids, vectors: Vector) -> None:
        matrix = checked(vectors, len(ids), self.dimension)
        if len(ids):
            one_thread()
            self._index.add_with_ids(matrix, np.asarray(ids, dtype=np.int64))
            self._count += len(ids)

    def remove(self, ids: Sequence[int]) -> int:
        if not len(ids) or not len(self):
            return 0
        removed = int(self._index.remove_ids(faiss.IDSelectorBatch(np.asarray(ids, dtype=np.int64))))
        self._count -= removed
        return removed

    def search(self, vector: Vector, k: int) -> list[Near]:
        query = checked(np.reshape(vector, (1, -1)), 1, self.dimension)
        if not len(self) or k < 1:
            return []
        one_thread()
        similarities, ids = self._index.search(query, min(k, len(self)))
        return [
            Near(int(entry_id), min(1.0, float(similarity)))
            for entry_id, similarity in zip(ids[0], similarities[0], strict=True)
            if entry_id >= 0
        ]

    def save(self, path: Path) -> None:
        faiss.write_index(self._index, str(path))


def one_thread() -> None:
    """One query at a time: more threads cost more than they find, and fight the event loop for cores.

    The setting is each thread's own, so it is made where the work is done.
    """
    faiss.omp_set_num_threads(1)


def read(path: Path, wanted: type[Any], dimension: int) -> Any:
    """The FAISS index in a file. Raises ValueError for another kind, dimension or measure, or a damaged file."""
    try:
        index: Any = faiss.read_index(str(path))
    except RuntimeError as error:
        raise ValueError("not a FAISS index") from error
    if not isinstance(index, wanted) or index.d != dimension or index.metric_type != METRIC:
        raise ValueError(f"another index: {type(index).__name__}, dimension {index.d}")
    return index


def halves(data: Any, count: int, dimension: int) -> Any:
    """FAISS's own bytes as half-precision rows, not copied."""
    return faiss.rev_swig_ptr(data, count * dimension * 2).view("<f2").reshape(count, dimension)


def single(rows: Any) -> Vector:
    """Half-precision rows as normalised float32."""
    matrix = rows.astype(np.float32)
    return matrix / np.sqrt(np.einsum("ij,ij->i", matrix, matrix))[:, None]


def ids_of(data: Any, count: int) -> Ids:
    """FAISS's own ids, copied."""
    return faiss.rev_swig_ptr(data, count).copy()
