"""The judge that needs no network: the same words, else numbers, names, polarity and meaning, weighed by a small model.

Weights and thresholds are in `offline.json`, made by `python -m cache.judging.calibrate` from the gold pairs; with them
how often a sure verdict was wrong on pairs it had not been made from. Does not know who asks.
"""

from collections.abc import Sequence
from importlib.resources import files

import msgspec
import numpy as np
from msgspec import Struct

from cache.embedder import Encoder, EncoderDown
from cache.judging import MOST_TEXT, Judgement, Pair
from cache.judging.features import NAMES, equal, features, plain

_EQUAL = 0.002  # two equal texts are different answers only where the question means something else


class Weights(Struct, frozen=True, kw_only=True):
    """`same`, `different`: sure at and above, at and below. `flip`, `unsure`: shares found on held-out gold pairs."""

    names: tuple[str, ...]
    weights: tuple[float, ...]
    same: float
    different: float
    flip: float
    unsure: float
    about: str = ""


class Calibration(Struct, frozen=True, kw_only=True):
    """One set of weights where answers are embedded, one for where they cannot be."""

    embedded: Weights
    plain: Weights


def shipped() -> Calibration:
    return msgspec.json.decode((files("cache.judging") / "offline.json").read_bytes(), type=Calibration)


class OfflineJudge:
    """Implements `cache.judging.Judge`. Without an encoder, or while it is away, only words count."""

    name = "offline"

    def __init__(self, encoder: Encoder | None = None, calibration: Calibration | None = None) -> None:
        self._encoder = encoder
        self._calibration = calibration or shipped()
        if any(found.names != NAMES for found in (self._calibration.embedded, self._calibration.plain)):
            raise ValueError("offline.json was made for other features: python -m cache.judging.calibrate")

    async def compare(self, pairs: Sequence[Pair]) -> list[Judgement]:
        cosines = await self._cosines(pairs)
        return [self._judge(pair, cosine) for pair, cosine in zip(pairs, cosines, strict=True)]

    async def _cosines(self, pairs: Sequence[Pair]) -> Sequence[float | None]:
        texts = [plain(text) or " " for pair in pairs for text in (pair.kept, pair.fresh)]
        if self._encoder is None or self._encoder.status() is not None or not texts:
            return [None] * len(pairs)
        try:
            vectors = (await self._encoder.encode(texts)).vectors
        except EncoderDown:
            return [None] * len(pairs)
        return [float(np.dot(vectors[2 * i], vectors[2 * i + 1])) for i in range(len(pairs))]

    def _judge(self, pair: Pair, cosine: float | None) -> Judgement:
        if equal(pair):
            return Judgement(verdict="same", probability=1.0 - _EQUAL, flip=_EQUAL, by=self.name)
        found = self._calibration.plain if cosine is None else self._calibration.embedded
        z = float(np.dot(np.asarray(found.weights), features(pair, cosine)))
        p = float(1.0 / (1.0 + np.exp(-np.clip(z, -30.0, 30.0))))
        whole = max(len(pair.kept), len(pair.fresh)) <= MOST_TEXT
        verdict = "different" if p <= found.different else "same" if p >= found.same and whole else "unsure"
        return Judgement(verdict=verdict, probability=p, flip=found.flip, by=self.name)
