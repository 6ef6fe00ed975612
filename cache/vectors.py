"""How an embedding is kept: packed to half precision, unpacked to normalised float32.

Half precision moves a cosine by less than 1e-4, an order below what separates two decisions, and halves every store.
Knows which vectors are sound: the right size, finite, of length one. Does not know where they come from.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]
Ids = NDArray[np.int64]

# Half precision and a sum in single precision move a length by less than this.
_LENGTH_SLACK = 0.01


def pack(vector: Vector) -> bytes:
    """`(dim,)` float32 -> little-endian float16 bytes."""
    return vector.astype("<f2").tobytes()


def unpack(packed: bytes) -> Vector:
    """The vector `pack` was given, renormalised; empty for empty bytes. Raises ValueError for an odd length."""
    found = np.frombuffer(packed, dtype="<f2").astype(np.float32)
    length = float(np.linalg.norm(found))
    return found / length if length > 0.0 else found


def unpack_all(packed: Sequence[bytes], dimension: int) -> tuple[list[int], Vector]:
    """The sound ones among many, renormalised: their places in `packed`, and a matrix with a row for each."""
    places = [at for at, raw in enumerate(packed) if len(raw) == 2 * dimension]
    matrix = np.frombuffer(b"".join(packed[at] for at in places), dtype="<f2").astype(np.float32)
    matrix = matrix.reshape(len(places), dimension)
    lengths = np.sqrt(np.einsum("ij,ij->i", matrix, matrix))
    sound = np.isfinite(lengths) & (np.abs(lengths - 1.0) <= _LENGTH_SLACK)
    if not sound.all():
        places = [at for at, good in zip(places, sound, strict=True) if good]
        matrix, lengths = matrix[sound], lengths[sound]
    return places, matrix / lengths[:, None]


def is_sound(vector: Vector, dimension: int) -> bool:
    """Whether it may be looked for: NaN or zero would be near to nothing or to everything."""
    if vector.shape != (dimension,):
        return False
    length = float(np.linalg.norm(vector))
    return bool(np.isfinite(length)) and abs(length - 1.0) <= _LENGTH_SLACK


def checked(vectors: Vector, count: int, dimension: int) -> Vector:
    """`vectors` as FAISS wants them. Raises ValueError for another shape, NaN, infinity, or a length that is not 1."""
    if vectors.shape != (count, dimension):
        raise ValueError(f"expected vectors of shape {(count, dimension)}, got {vectors.shape}")
    matrix = np.ascontiguousarray(vectors, dtype=np.float32)
    lengths = np.sqrt(np.einsum("ij,ij->i", matrix, matrix))
    if count and not (np.isfinite(lengths) & (np.abs(lengths - 1.0) <= _LENGTH_SLACK)).all():
        raise ValueError("expected normalised vectors: some are zero, not finite or not of length 1")
    return matrix


def to_bytes(vector: Vector) -> bytes:
    """Full float32 bytes, the form `Miss.vector` travels in."""
    return np.ascontiguousarray(vector, dtype="<f4").tobytes()


def from_bytes(raw: bytes) -> Vector:
    """Inverse of `to_bytes`. Raises ValueError for a length that is no multiple of four."""
    return np.frombuffer(raw, dtype="<f4")
