"""`python -m cache.judging.calibrate`: make `offline.json` from the gold pairs, and say what was found.

Weights: logistic regression with a ridge. Thresholds: the widest sure regions in which at most `_WRONG` of the held-out
verdicts are wrong, each pair judged by weights made without it (20 folds, seed in the file). Not needed at run time.
"""

import sys
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from cache.bench.vectors import Embedder
from cache.judging import gold
from cache.judging.features import NAMES, features, plain
from cache.judging.offline import Calibration, Weights

_SEED, _FOLDS, _RIDGE, _WRONG = 7, 20, 1.0, 0.04
Matrix = NDArray[np.float64]


def fit(x: Matrix, y: Matrix) -> Matrix:
    """Maximum posterior by Newton's method; the bias is not held back."""
    b = np.zeros(x.shape[1])
    ridge = np.diag([1e-3, *[_RIDGE] * (x.shape[1] - 1)])
    for _ in range(60):
        p = 1.0 / (1.0 + np.exp(-np.clip(x @ b, -30, 30)))
        step = np.linalg.solve((x * (p * (1 - p))[:, None]).T @ x + ridge, x.T @ (y - p) - ridge @ b)
        b = b + step
    return b


def held_out(x: Matrix, y: Matrix) -> Matrix:
    """The probability of each pair by weights made without its fold."""
    folds = np.random.default_rng(_SEED).permutation(len(y)) % _FOLDS
    found = np.zeros(len(y))
    for fold in range(_FOLDS):
        rest = folds != fold
        found[~rest] = 1.0 / (1.0 + np.exp(-np.clip(x[~rest] @ fit(x[rest], y[rest]), -30, 30)))
    return found


def weights(x: Matrix, y: Matrix, about: str) -> Weights:
    p = held_out(x, y)
    same = _edge(p, 1 - y)
    different = 1 - _edge(1 - p, y)
    sure = (p >= same) | (p <= different)
    wrong = ((p >= same) & (y == 0)) | ((p <= different) & (y == 1))
    # One more wrong than was seen, so that a judge is never taken for perfect.
    flip = (float(wrong.sum()) + 1) / (float(sure.sum()) + 2)
    return Weights(
        names=NAMES,
        weights=tuple(round(float(value), 4) for value in fit(x, y)),
        same=round(same, 4),
        different=round(different, 4),
        flip=round(flip, 4),
        unsure=round(1 - float(sure.mean()), 4),
        about=about,
    )


def _edge(p: Matrix, bad: Matrix) -> float:
    """The lowest probability above which at most `_WRONG` are bad, and never below an even chance."""
    order = np.argsort(-p)
    share = np.cumsum(bad[order]) / np.arange(1, len(p) + 1)
    fits = np.flatnonzero((share <= _WRONG) & (p[order] >= 0.6))
    return float(p[order][fits[-1]]) if len(fits) else 1.0


def main() -> None:
    pairs = gold()
    texts = [plain(text) or " " for item in pairs for text in (item.a, item.b)]
    vectors = Embedder(Path(sys.argv[1] if len(sys.argv) > 1 else ".nearhit/bench")).embed(texts)
    cosines = (vectors[0::2] * vectors[1::2]).sum(axis=1)
    y = np.asarray([float(item.same) for item in pairs])
    about = f"{len(pairs)} gold pairs, seed {_SEED}, {_FOLDS} folds"
    embedded = np.stack([features(item.pair, float(c)) for item, c in zip(pairs, cosines, strict=True)])
    bare = np.stack([features(item.pair, None) for item in pairs])
    found = Calibration(embedded=weights(embedded, y, about), plain=weights(bare, y, about))
    out = Path(__file__).with_name("offline.json")
    out.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    for name, made in (("embedded", found.embedded), ("plain", found.plain)):
        print(f"{name}: sure {1 - made.unsure:.0%}, wrong {made.flip:.1%} of those ({about})")  # noqa: T201 - a command


if __name__ == "__main__":
    main()
