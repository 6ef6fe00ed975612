"""Readings of many pairs of texts by the reader that serves, kept in a folder by the digests of reader and texts.

Knows one file per reader, written when it is closed. Does not know what is done with them; the file holds no text.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cache import weights
from cache.priors import digest, reader_artefact

if TYPE_CHECKING:
    from cache.reader import Reader

_STEP = 32


class Readings:
    """The reader is loaded only when something is not in `folder` yet; without a folder everything is read anew."""

    def __init__(self, folder: Path | None, changes: bytes | None = None) -> None:
        self._changes = reader_artefact() if changes is None else changes
        self.digest = digest(self._changes)
        self._path = folder / f"readings-{self.digest}.npz" if folder else None
        self._reader: Reader | None = None
        self._known: dict[bytes, float] = {}
        self._fresh = 0
        if self._path is not None and self._path.is_file():
            with np.load(self._path, allow_pickle=False) as held:
                self._known = dict(zip((bytes(key) for key in held["keys"]), held["odds"].tolist(), strict=True))

    def read(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Log odds for each (kept text, question)."""
        keys = [_key(pair) for pair in pairs]
        missing = {key: pair for key, pair in zip(keys, pairs, strict=True) if key not in self._known}
        if missing:
            # Alike lengths beside each other: a pass pads to its longest.
            ordered = sorted(missing.items(), key=lambda item: len(item[1][0]) + len(item[1][1]))
            for start in range(0, len(ordered), _STEP):
                step = ordered[start : start + _STEP]
                self._known |= zip((key for key, _ in step), self._compute([pair for _, pair in step]), strict=True)
            self._fresh += len(missing)
        return [self._known[key] for key in keys]

    def save(self) -> None:
        """Keep what was read since."""
        if self._path is None or not self._fresh:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        part = self._path.with_suffix(".part.npz")
        keys = np.frombuffer(b"".join(self._known), np.uint8).reshape(-1, 16)
        np.savez(part, keys=keys, odds=np.asarray(list(self._known.values())))
        part.replace(self._path)
        self._fresh = 0

    def _compute(self, pairs: list[tuple[str, str]]) -> list[float]:
        if self._reader is None:
            import torch  # seconds, and not needed when everything is in the folder

            from cache import reader

            self._reader = reader.Reader(weights.locate(weights.BUNDLED).folder, self._changes, torch.float32)
        return self._reader.read(pairs)


def _key(pair: tuple[str, str]) -> bytes:
    kept, asked = (hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest() for text in pair)
    return hashlib.blake2b(kept + asked, digest_size=16).digest()
