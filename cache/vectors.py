"""How an embedding is kept: packed to half precision, unpacked to normalised float32.

Half precision moves a cosine by less than 1e-4, an order below what separates two decisions, and halves every store.
"""

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]


def pack(vector: Vector) -> bytes:
    """`(dim,)` float32 -> little-endian float16 bytes."""
    return vector.astype("<f2").tobytes()


def unpack(packed: bytes) -> Vector:
    """The vector `pack` was given, renormalised; empty for empty bytes. Raises ValueError for an odd length."""
    found = np.frombuffer(packed, dtype="<f2").astype(np.float32)
    length = float(np.linalg.norm(found))
    return found / length if length > 0.0 else found


def to_bytes(vector: Vector) -> bytes:
    """Full float32 bytes, the form `Miss.vector` travels in."""
    return np.ascontiguousarray(vector, dtype="<f4").tobytes()


def from_bytes(raw: bytes) -> Vector:
    """Inverse of `to_bytes`. Raises ValueError for a length that is no multiple of four."""
    return np.frombuffer(raw, dtype="<f4")
