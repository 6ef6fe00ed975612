"""The pooled prototype that the shipped policy grew out of, kept as a baseline of the bench.

One logistic model per scope, fitted anew every hundred labels to the last six thousand of them from no prior, over the
nearest answer alone: cosine, margin, agreement, overlap of words, and seven flags read off the texts. What bears less
than a threshold is served; the threshold is the largest whose estimated errors over the last three thousand requests
fit the budgets, scaled by what audits of one hit in twenty found.
Knows one stream. Does not know stores, tenants or vetoes: it is no `policies.reuse` policy and nothing serves with it.
"""

import math
import re
from collections import deque
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from policies.reuse import Budget, Evidence, Explore, Neighbour, Outcome, Regenerate, Serve, Verdict
from policies.reuse.english import bag

Array = NDArray[np.float64]

_NEIGHBOURS = 5
_AUDIT = 0.05
_CAUTION = 2.0
_WINDOW = 3_000
_EVERY, _FIRST, _LABELS = 100, 80, 6_000
_RISKIEST = 0.5
_MOST_SCALE = 10.0
_PENALTY = 0.5
_NOBODY = 0.3
_WORD = re.compile(r"[a-z]+|\d+(?:[.,:]\d+)*")
_NAME = re.compile(r"(?<!^)(?<![.!?] )\b[A-Z][a-zA-Z0-9]+")
_NEGATIONS = bag(
    "not no never without cannot nor neither none nobody nothing isnt arent wasnt werent dont doesnt didnt wont "
    "wouldnt cant couldnt shouldnt hasnt havent hadnt stop avoid unable except"
)
_ASKING = bag("what who whom whose when where why how which can should is are do does did will would could")
_STOP = bag(
    "a an the of to in on for at by with from and or is are was were be been being do does did i me my you your it "
    "its this that these those there what who when where why how which can could should will would shall may might "
    "as if so than then into about up out over we us our he she they them his her their have has had any some please "
    "tell get"
)
_NUMBERS = bag(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen twenty thirty "
    "forty fifty hundred thousand million first second third fourth fifth"
)
_OPPOSITES = """
increase decrease|more less|before after|buy sell|on off|up down|open close|enable disable|start stop|add remove|
add delete|create delete|import export|encode decode|encrypt decrypt|best worst|min max|minimum maximum|
ascending descending|cheap expensive|good bad|safe dangerous|legal illegal|left right|north south|east west|
activate deactivate|lock unlock|install uninstall|upgrade downgrade|include exclude|male female|men women|boy girl|
husband wife|father mother
"""
_PAIRS = [(first, second) for first, second in (pair.split() for pair in _OPPOSITES.split("|"))]


class _Read(Struct, frozen=True):
    words: frozenset[str]
    content: tuple[str, ...]
    numbers: tuple[str, ...]
    negated: bool
    asks: tuple[str, ...]
    names: frozenset[str]
    count: int


@lru_cache(maxsize=65_536)
def _read(text: str) -> _Read:
    plain = text.lower().replace("n't", " not").replace("\u2019", "'").replace("'", "")
    found = _WORD.findall(plain)
    return _Read(
        words=frozenset(found),
        content=tuple(word for word in found if word not in _STOP and not word[0].isdigit()),
        numbers=tuple(sorted(word for word in found if word[0].isdigit() or word in _NUMBERS)),
        negated=sum(word in _NEGATIONS for word in found) % 2 == 1,
        asks=tuple(word for word in found if word in _ASKING)[:1],
        names=frozenset(name.lower() for name in _NAME.findall(text)),
        count=len(found),
    )


def _opposed(a: frozenset[str], b: frozenset[str]) -> bool:
    only_a, only_b = a - b, b - a
    return any((x in only_a and y in only_b) or (y in only_a and x in only_b) for x, y in _PAIRS)


def _features(text: str, nearest: Neighbour, margin: float, agree: float) -> Array:
    a, b = _read(text), _read(nearest.text)
    here, there = set(a.content), set(b.content)
    new, gone = here - there, there - here
    names = len(a.names | b.names)
    seen = nearest.good + nearest.bad
    return np.asarray(
        [
            1.0,
            nearest.similarity,
            max(0.0, nearest.similarity - 0.8) * 5,
            max(0.0, nearest.similarity - 0.9) * 10,
            margin,
            agree,
            len(here & there) / max(1, len(here | there)),
            a.numbers != b.numbers,
            a.negated != b.negated,
            _opposed(a.words, b.words),
            sorted(a.content) == sorted(b.content) and a.content != b.content,
            len(a.names ^ b.names) / max(1, names),
            a.asks != b.asks,
            abs(a.count - b.count) / max(a.count, b.count, 1),
            len(new) == len(gone) == 1,
            min(len(new), 5) / 5,
            min(len(gone), 5) / 5,
            math.log((nearest.good + 1) / (nearest.bad + 1)),
            min(1.0, seen / 5),
        ],
        float,
    )


class Pooled:
    """Obeys `cache.bench.replay.Mind`. `budget` of the last decision is the one the threshold is made for."""

    aliases = True

    def __init__(self) -> None:
        self._labelled: deque[tuple[Array, bool]] = deque(maxlen=_LABELS)
        self._window: deque[Array] = deque(maxlen=_WINDOW)
        self._model: tuple[Array, Array] | None = None
        self._fresh = 0
        self._found, self._feared = 0.0, 0.0
        self._threshold = -1.0

    def decide(self, text: str, neighbours: Sequence[Neighbour], budget: Budget) -> Verdict:
        near = sorted(neighbours, key=lambda item: (-item.similarity, item.entry_id))[:_NEIGHBOURS]
        if not near:
            return Regenerate(reason="far")
        if self._fresh >= _EVERY:
            self._fresh = 0
            self._fit(budget)
        best = near[0]
        other = next((item.similarity for item in near if item.answer != best.answer), _NOBODY)
        agree = sum(item.answer == best.answer for item in near) / len(near)
        x = _features(text, best, best.similarity - other, agree)
        self._window.append(x)
        risk = float(_risks(x[None], *self._model)[0]) if self._model else 1.0
        wanted = risk <= self._threshold
        evidence = Evidence(
            entry_id=best.entry_id,
            answer_id=best.answer,
            probability=1.0 - risk,
            risk=risk,
            features=x.tobytes(),
            wanted=wanted,
        )
        if not wanted:
            return Explore(entry_id=best.entry_id, evidence=(evidence,))
        return Serve(entry_id=best.entry_id, confidence=1.0 - risk, risk=risk, audit=_AUDIT, evidence=(evidence,))

    def count(self, verdict: Verdict, *, served: bool) -> None:
        """Nothing is kept of what was served."""

    def learn(self, outcome: Outcome) -> None:
        self._labelled.append((np.frombuffer(outcome.evidence.features), outcome.same))
        self._fresh += 1
        if outcome.kind == "audit":
            self._found += not outcome.same
            self._feared += outcome.evidence.risk

    def _fit(self, budget: Budget) -> None:
        if len(self._labelled) < _FIRST:
            return
        x = np.asarray([row for row, _ in self._labelled])
        same = np.asarray([label for _, label in self._labelled], float)
        self._model = _logistic(x, same, self._model[0] if self._model else np.zeros(x.shape[1]))
        risks = np.sort(_risks(np.asarray(self._window), *self._model))
        scale = min(max((self._found + 1.0) / (self._feared + 1.0), 1.0), _MOST_SCALE)
        taken = scale * np.cumsum(risks)
        count = np.arange(1, len(risks) + 1)
        fits = np.flatnonzero(
            (taken <= budget.max_error_rate * len(risks)) & (taken <= budget.max_wrong_hit_rate * count)
        )
        self._threshold = min(float(risks[fits[-1]]), _RISKIEST) if len(fits) else -1.0


def _risks(x: Array, mean: Array, covariance: Array) -> Array:
    spread = np.sqrt(np.sum((x @ covariance) * x, axis=1))
    return 1.0 / (1.0 + np.exp(np.clip(x @ mean - _CAUTION * spread, -500.0, 500.0)))


def _logistic(x: Array, same: Array, start: Array) -> tuple[Array, Array]:
    """Mean and covariance of the weights under a normal prior around zero."""
    b = start
    curvature: Array = np.eye(x.shape[1])
    for _ in range(25):
        p = 1.0 / (1.0 + np.exp(-np.clip(x @ b, -500.0, 500.0)))
        curvature = x.T @ (x * (p * (1.0 - p) + 1e-9)[:, None]) + _PENALTY * np.eye(x.shape[1])
        step = np.linalg.solve(curvature, x.T @ (same - p) - _PENALTY * b).astype(np.float64)
        longest = float(np.abs(step).max())
        b = b + step * min(1.0, 5.0 / max(longest, 1e-12))
        if longest < 1e-5:
            break
    inverse: Array = np.linalg.inv(curvature).astype(np.float64)
    return b, inverse
