"""A stream of labelled requests through the decision as it runs: search, verdict, audit, judge, learn, one more key.

Knows classes, which play the part of answers, and a judge who says whether two are the same (and may be wrong with a
given chance). Does not know stores or models. The policy and its state are the ones the cache uses.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from cache.bench.data import Row
from cache.bench.nearest import Nearest, Picked, Searched, Table
from policies.reuse import (
    Budget,
    Evidence,
    Explore,
    LearningPolicy,
    Neighbour,
    Outcome,
    ReusePolicy,
    Serve,
    Verdict,
    believed,
    told,
    unread,
)

# Log odds of each (kept text, question).
Reader = Callable[[Sequence[tuple[str, str]]], Sequence[float]]
Decide = Callable[[Sequence[Neighbour]], Verdict]


class Options(Struct, frozen=True, kw_only=True):
    """`flip`: how often the judge is wrong; `told`: whether the policy is told so. `keys`: most keys of one answer.
    `reader`: reads what the policy wants read; without one nothing is served to a policy that wants that."""

    budget: Budget
    seed: int = 0
    neighbours: int = 8
    flip: float = 0.0
    told: bool = True
    keys: int = 64
    reader: Reader | None = None


class Step(Struct, frozen=True):
    """What became of one request. `judged`: comparisons the judge made for it."""

    hit: bool
    wrong: bool
    explored: bool
    audited: bool
    judged: int


class Answer(Struct):
    """A kept answer: its class, its record, and its keys from the oldest on."""

    kind: str
    keys: list[int]
    good: float = 0.0
    bad: float = 0.0


class Mind(Protocol):
    """A policy with its state, if it has one."""

    aliases: bool

    def decide(self, text: str, neighbours: Sequence[Neighbour], budget: Budget) -> Verdict: ...

    def count(self, verdict: Verdict, *, served: bool) -> None: ...

    def learn(self, outcome: Outcome) -> None: ...


class Fixed:
    """A policy that never learns; there is no judge either, so every answer is a new one."""

    aliases = False

    def __init__(self, policy: ReusePolicy) -> None:
        self._policy = policy

    def decide(self, text: str, neighbours: Sequence[Neighbour], budget: Budget) -> Verdict:
        return self._policy.judge(text, neighbours, budget)

    def count(self, verdict: Verdict, *, served: bool) -> None:
        """Nothing to count."""

    def learn(self, outcome: Outcome) -> None:
        """Nothing to learn."""


class Learning:
    """One scope of a learning policy."""

    def __init__(self, policy: LearningPolicy[Any]) -> None:
        self.aliases = policy.aliases
        self._policy = policy
        self.state = policy.fresh()

    def decide(self, text: str, neighbours: Sequence[Neighbour], budget: Budget) -> Verdict:
        return self._policy.decide(self.state, text, neighbours, budget)

    def count(self, verdict: Verdict, *, served: bool) -> None:
        self.state = self._policy.count(self.state, verdict, served=served)

    def learn(self, outcome: Outcome) -> None:
        self.state = self._policy.learn(self.state, outcome)


def read(decide: Decide, text: str, near: list[Neighbour], reader: Reader | None) -> Verdict:
    """What `decide` says of the neighbours once `reader` has read what it wants read."""
    verdict = decide(near)
    wanted = frozenset(unread(verdict))
    if not wanted or reader is None:
        return verdict
    pairs = {item.entry_id: (item.text, text) for item in near if item.entry_id in wanted}
    return decide(told(near, dict(zip(pairs, reader(list(pairs.values())), strict=True))))


class Replay:
    """A cache from empty on. `ask` answers one request. `nearest`: how its keys are found; default: by the index."""

    def __init__(self, mind: Mind, dimension: int, options: Options, nearest: Nearest | None = None) -> None:
        self._mind = mind
        self._options = options
        self._random = random.Random(options.seed)  # noqa: S311 - coins of a simulation
        self._nearest = nearest or Searched(dimension)
        self._texts: dict[int, tuple[str, int]] = {}
        self._answers: dict[int, Answer] = {}
        self._place = -1
        self._next = 0

    def ask(self, row: Row, vector: NDArray[np.float32]) -> Step:
        self._place += 1
        verdict = read(
            lambda near: self._mind.decide(row.text, near, self._options.budget),
            row.text,
            self._near(vector),
            self._options.reader,
        )
        audited = isinstance(verdict, Serve) and self._random.random() < verdict.audit
        served = isinstance(verdict, Serve) and not audited
        self._mind.count(verdict, served=served)
        if isinstance(verdict, Serve) and served:
            answer = self._answers[self._texts[verdict.entry_id][1]]
            return Step(True, answer.kind != row.kind, False, False, 0)
        same, judged = self._compare(row, verdict, audited=audited)
        if same is None:
            self._add_answer(row, vector)
        elif self._mind.aliases:
            self._add_key(same, row, vector)
        return Step(False, False, isinstance(verdict, Explore), audited, judged)

    def _near(self, vector: NDArray[np.float32]) -> list[Neighbour]:
        found: list[Neighbour] = []
        for near in self._nearest.search(self._place, vector, self._options.neighbours):
            text, answer = self._texts[near.entry_id]
            held = self._answers[answer]
            found.append(
                Neighbour(
                    entry_id=near.entry_id,
                    text=text,
                    similarity=near.similarity,
                    answer_id=answer,
                    good=held.good,
                    bad=held.bad,
                )
            )
        return found

    def _compare(self, row: Row, verdict: Verdict, *, audited: bool) -> tuple[int | None, int]:
        """The answer the judge takes for the same as the fresh one, and how many it looked at."""
        evidence: Sequence[Evidence] = verdict.evidence if isinstance(verdict, Serve | Explore) else ()
        same: int | None = None
        least = 1.0 - self._options.budget.max_wrong_hit_rate
        for item in sorted(evidence, key=lambda item: -item.probability):
            held = self._answers[item.answer_id]
            said = (held.kind == row.kind) != (self._random.random() < self._options.flip)
            flip = self._options.flip if self._options.told else 0.0
            self._mind.learn(Outcome(evidence=item, same=said, kind="audit" if audited else "explore", flip=flip))
            held.good, held.bad = held.good + said, held.bad + (not said)
            if said and same is None and (not self._mind.aliases or believed(item, flip) >= least):
                same = item.answer_id
        return same, len(evidence)

    def _add_answer(self, row: Row, vector: NDArray[np.float32]) -> None:
        number = len(self._answers)
        self._answers[number] = Answer(row.kind, [])
        self._add_key(number, row, vector)

    def _add_key(self, answer: int, row: Row, vector: NDArray[np.float32]) -> None:
        key = self._next
        self._next += 1
        self._texts[key] = (row.text, answer)
        self._nearest.add(key, self._place, vector)
        keys = self._answers[answer].keys
        keys.append(key)
        if len(keys) > self._options.keys:
            oldest = keys.pop(0)
            self._nearest.remove(oldest)
            del self._texts[oldest]


def replay(
    rows: Sequence[Row], vectors: NDArray[np.float32], mind: Mind, options: Options, table: Table | None = None
) -> list[Step]:
    """Every request in order, the cache empty before the first. `table`: of these vectors, for many runs over them."""
    cache = Replay(mind, vectors.shape[1], options, Picked(table) if table else None)
    return [cache.ask(row, vector) for row, vector in zip(rows, vectors, strict=True)]
