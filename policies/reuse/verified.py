"""The published verified cache: one logistic boundary per entry, and a coin that keeps the error rate per request.

Written from the formulas of the paper (vCache, arXiv 2502.03771): only the nearest entry and its cosine count, an entry
needs labels of its own before it is served, a text judged the same is not kept, and the chance of asking anew is set so
that each request is wrong with chance `max_error_rate` at most, if requests to an entry are alike and the judge is
right. The rate per hit is not kept: hopeless requests are served with that same chance. Kept as the baseline.

Knows per entry the cosines and labels so far. The coin is the caller's: `Serve.audit` is the chance of asking anew.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from policies.reuse import Budget, Evidence, Explore, Neighbour, Note, Outcome, Regenerate, Serve, Verdict

Seen = tuple[tuple[float, bool], ...]


class Params(Struct, frozen=True, kw_only=True):
    """`labels`: how many of its own an entry needs; `kept`: how many it keeps; `entries`: most entries remembered."""

    labels: int = 4
    kept: int = 64
    entries: int = 50_000


class State(Struct, frozen=True, kw_only=True):
    """Cosine and label of every comparison, by entry."""

    seen: Mapping[int, Seen] = {}


# Confidence levels tried for the boundary, with the normal quantile of each.
_LEVELS = np.linspace(1e-6, 1.0 - 1e-6, 50)


def _quantile(p: float) -> float:
    """The normal quantile, by bisection of erf: 50 values, once."""
    low, high = -8.0, 8.0
    for _ in range(60):
        middle = (low + high) / 2
        if 0.5 * (1.0 + math.erf(middle / math.sqrt(2.0))) < p:
            low = middle
        else:
            high = middle
    return (low + high) / 2


_QUANTILES = np.asarray([_quantile(1.0 - level) for level in _LEVELS])


class Policy:
    """Implements `policies.reuse.LearningPolicy[State]`."""

    aliases = False

    def __init__(self, params: Params | None = None) -> None:
        self._params = params or Params()

    @property
    def floor(self) -> float:
        return 0.0

    def fresh(self) -> State:
        return State()

    def judge(self, text: str, neighbours: Sequence[Neighbour], budget: Budget) -> Verdict:
        return self.decide(self.fresh(), text, neighbours, budget)

    def decide(self, state: State, text: str, neighbours: Sequence[Neighbour], budget: Budget) -> Verdict:
        """`text` plays no part: the published method looks at the cosine only."""
        del text
        near = [neighbour for neighbour in neighbours if neighbour.similarity >= self.floor]
        if not near:
            return Regenerate(reason="far")
        if budget.max_error_rate <= 0.0 or budget.max_wrong_hit_rate <= 0.0:
            return Regenerate(reason="budget")
        best = max(near, key=lambda item: (item.similarity, -item.entry_id))
        seen = state.seen.get(best.entry_id, ())
        evidence = Evidence(
            entry_id=best.entry_id, answer_id=best.answer, features=np.float32(best.similarity).tobytes()
        )
        if len(seen) < self._params.labels:
            return Explore(entry_id=best.entry_id, evidence=(evidence,))
        ask, right = _chance(seen, round(best.similarity, 3), budget.max_error_rate)
        if ask >= 1.0:
            return Explore(entry_id=best.entry_id, evidence=(evidence,))
        note = Note(entry_id=best.entry_id, confidence=right)
        return Serve(entry_id=best.entry_id, confidence=right, notes=(note,), audit=ask, evidence=(evidence,))

    def count(self, state: State, verdict: Verdict, *, served: bool) -> State:
        """The method has no account of what it spent."""
        del verdict, served
        return state

    def learn(self, state: State, outcome: Outcome) -> State:
        entry = outcome.evidence.entry_id
        cosine = float(np.frombuffer(outcome.evidence.features, np.float32)[0])
        fresh = (*state.seen.get(entry, ()), (round(cosine, 3), outcome.same))[-self._params.kept :]
        seen = {**state.seen, entry: fresh}
        while len(seen) > self._params.entries:
            del seen[next(iter(seen))]
        return State(seen=seen)


def _chance(seen: Seen, cosine: float, allowed: float) -> tuple[float, float]:
    """The chance with which to ask anew, and the estimated probability that the kept answer is right."""
    s = np.asarray([0.0, 1.0, *(value for value, _ in seen)])
    c = np.asarray([0.0, 1.0, *(float(same) for _, same in seen)])
    bias, slope, curvature = _fit(s, c)
    middle = min(1.0, max(0.0, -bias / slope))
    if s[c == 1.0].min() > s[c == 0.0].max():
        variance = max(0.01, 0.035 * (6.0 / len(s)) ** 1.28)
    else:
        gradient = np.asarray([-1.0 / slope, bias / slope**2])
        variance = float(gradient @ np.linalg.pinv(curvature) @ gradient)
    boundary = np.clip(middle + _QUANTILES * math.sqrt(max(0.0, variance)), 0.0, 1.0)
    sure = (1.0 - _LEVELS) / (1.0 + np.exp(np.clip(-slope * (cosine - boundary), -500.0, 500.0)))
    ask = float((1.0 - allowed / np.maximum(1.0 - sure, 1e-12)).min())
    right = 1.0 / (1.0 + math.exp(min(500.0, max(-500.0, -slope * (cosine - middle)))))
    return max(0.0, ask), right


def _fit(s: np.ndarray, c: np.ndarray) -> tuple[float, float, np.ndarray]:
    """Maximum likelihood of a logistic in one variable, a hair of penalty against separable data; slope above 0."""
    x = np.stack([np.ones_like(s), s], axis=1)
    b = np.zeros(2)
    curvature = np.eye(2)
    for _ in range(100):
        p = 1.0 / (1.0 + np.exp(np.clip(-(x @ b), -500.0, 500.0)))
        curvature = x.T @ (x * (p * (1.0 - p))[:, None])
        step = np.linalg.solve(curvature + 1e-5 * np.eye(2), x.T @ (c - p) - 1e-5 * b)
        b = b + step * min(1.0, 5.0 / max(1e-9, float(np.abs(step).max())))
        if float(np.abs(step).max()) < 1e-6:
            break
    return float(b[0]), max(1e-6, float(b[1])), curvature
