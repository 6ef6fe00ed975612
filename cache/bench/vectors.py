"""Embeddings of many texts by the real encoder, kept in a folder by the digest of model and text.

Knows the encoder's model and one file per model. Does not know what the texts are for; the file holds no text.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cache import weights

Matrix = NDArray[np.float32]
_STEP = 512


class Embedder:
    """The model that serves, loaded only when something is not in `folder` yet."""

    def __init__(self, folder: Path, model: str = weights.BUNDLED) -> None:
        self._source = weights.locate(model)
        self._path = folder / f"vectors-{self._source.digest[:16]}.npz"
        self._rows: dict[bytes, int] = {}
        self._vectors: Matrix | None = None
        if self._path.is_file():
            with np.load(self._path, allow_pickle=False) as held:
                self._vectors = held["vectors"]
                self._rows = {bytes(key): i for i, key in enumerate(held["keys"])}

    @property
    def digest(self) -> str:
        return self._source.digest

    def embed(self, texts: Sequence[str]) -> Matrix:
        """`(len(texts), dimension)` float32, normalised."""
        keys = [hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest() for text in texts]
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._rows}
        if missing:
            fresh = self._compute(list(missing.values()))
            start = len(self._rows)
            self._rows |= {key: start + i for i, key in enumerate(missing)}
            self._vectors = fresh if self._vectors is None else np.concatenate([self._vectors, fresh])
            self._save(self._vectors)
        assert self._vectors is not None or not keys
        return self._vectors[[self._rows[key] for key in keys]] if self._vectors is not None else np.zeros((0, 0), "f4")

    def _compute(self, texts: list[str]) -> Matrix:
        from cache.encoder import Model  # loads torch: seconds, and not needed when everything is in the folder

        model = Model(self._source, reads=False)
        return np.concatenate([model.embed(model.tokenize(texts[i : i + _STEP])) for i in range(0, len(texts), _STEP)])

    def _save(self, vectors: Matrix) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        part = self._path.with_suffix(".part.npz")
        keys = np.frombuffer(b"".join(self._rows), np.uint8).reshape(-1, 16)
        np.savez(part, keys=keys, vectors=vectors)
        part.replace(self._path)
