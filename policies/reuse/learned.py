"""The boundary that learns: a calibrated probability that a kept answer is right, and two error budgets that hold.

Each answer near the question becomes features (`pairs`), the features a probability with its uncertainty (`logistic`,
pooled over the scope, started from a shipped `prior`), the probability of the best one a risk by what became of others
with that probability (`curve`), and the risks a verdict under both budgets (`spending`).
Knows one scope's state, which is handed in and handed back. No memory, clock, chance or I/O of its own.

What is promised, per scope, for budgets d (wrong per request) and r (wrong per hit):

* d = 0 or r = 0: nothing is served by meaning. Always.
* Estimated spending: at any time the sum of estimated risks of what was served, scaled by what audits found, is at most
  d x requests + slack and r x hits + slack over the window. Where a hit's true risk is at most its estimate on average,
  so are the wrong answers expected. The estimate is the upper bound of the curve, `caution` deviations above its mean.
* Audits: each would-be hit is checked with a known chance that does not depend on its being right. When the checked
  ones prove (anytime-valid, false alarm with chance `alarm` at most) that more are wrong than allowed, serving stops
  until the window says otherwise. With every would-be hit audited with chance q at least, the wrong answers served
  before n audited ones were wrong are fewer than (n + 3 sqrt(n) + 5) / q, but with chance 1/20: whatever the traffic.
  This needs a correct judge, or one whose known `flip` rate is given, and no assumption on the model.
"""

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from policies.reuse import (
    Budget,
    Evidence,
    Explore,
    Neighbour,
    Note,
    Outcome,
    Regenerate,
    Serve,
    Verdict,
    curve,
    logistic,
)
from policies.reuse.curve import Curve
from policies.reuse.logistic import Belief
from policies.reuse.pairs import GUARD_NAMES, HARD, NAMES, WIDTH, Candidate, candidates, if_alike
from policies.reuse.prior import Prior
from policies.reuse.spending import Limits, Window, add, affordable, alarmed, check, is_whole, scale, threshold

VERSION = 4


class Params(Struct, frozen=True, kw_only=True):
    """`floor`: cosine below which nothing is looked at; `compared`: answers considered, and compared with a fresh one.

    `caution`: deviations of the curve between its mean and the cautious bound; `first_caution`: of the model, as long
    as the prior's bounds decide, which were measured with it. `memory`: how much of a label is left per label that
    follows, `curve_memory`: to the curve. `labels`,
    `requests`: how many a scope needs before its own window decides. `audits`: (hits so far, chance of an audit), the
    last that applies counts; `heaviest`: most labels an audit may count as. `excuse_labels`: pairs a guard spoke
    against in vain before it is no veto any more; those count that look right with `excuse_from` without it.
    """

    floor: float = 0.5
    compared: int = 3
    caution: float = 0.5
    first_caution: float = 0.25
    memory: float = 0.9999
    curve_memory: float = 0.9995
    labels: int = 80
    requests: float = 100.0
    audits: tuple[tuple[int, float], ...] = ((0, 0.2), (50, 0.1), (1_000, 0.03), (5_000, 0.02))
    heaviest: float = 1.0
    excuse_labels: int = 10
    excuse_from: float = 0.7
    limits: Limits = Limits()


class State(Struct, frozen=True, kw_only=True):
    """All a scope has learned: about 10 KB however long it lives.

    `excused`: per guard, float32: pairs it spoke against that looked right otherwise, how many were, and how many were
    expected to be.

    `hits`: would-be hits ever, `labels` ever learned.
    """

    belief: Belief
    curve: Curve = Curve()
    window: Window = Window()
    excused: bytes = bytes(12 * len(GUARD_NAMES))
    labels: int = 0
    hits: int = 0
    version: int = VERSION


class Policy:
    """Implements `policies.reuse.LearningPolicy[State]`. Without a prior nothing is served before labels."""

    aliases = True

    def __init__(self, params: Params | None = None, prior: Prior | None = None) -> None:
        self._params = params or Params()
        self._prior = _aligned(prior) if prior is not None else _ignorant()
        self._center = np.asarray(self._prior.center)
        self._scale = np.asarray(self._prior.scale)
        self._knots = np.asarray(self._prior.knots)
        self._score = np.asarray(self._prior.mean[:WIDTH])
        together = np.zeros(len(self._prior.mean))
        together[1:WIDTH] = self._prior.slope * self._score[1:]
        covariance = np.diag(np.square(self._prior.deviation)) + np.outer(together, together)
        self._fresh = State(belief=logistic.believe(np.asarray(self._prior.mean), covariance))
        self._basis = self._prior.basis

    @property
    def floor(self) -> float:
        return self._params.floor

    @property
    def basis(self) -> str:
        """What a state's numbers are about: weights learned under one prior mean nothing under another."""
        return self._basis

    def fresh(self) -> State:
        return self._fresh

    def fits(self, state: State) -> bool:
        """Whether `state` can be decided with: of this version, whole, and nothing in it that is no number."""
        new = self._fresh
        sizes = (
            (state.belief.mean, new.belief.mean),
            (state.belief.covariance, new.belief.covariance),
            (state.excused, new.excused),
        )
        if not is_whole(state.window) or any(len(held) != len(begun) for held, begun in sizes):
            return False
        finite = all(np.isfinite(np.frombuffer(held, "<f4")).all() for held, _ in sizes)
        return state.version == VERSION and finite

    def begin(self, before: State) -> State:
        """What a scope begins with that has learned on another basis: what it owes stays, what it knew does not.

        A new prior is no new budget, and what audits proved is not forgiven; but it is audited as a new scope is.
        """
        if before.version != VERSION or not is_whole(before.window):
            return self._fresh
        return replace(self._fresh, window=before.window)

    def judge(self, text: str, neighbours: Sequence[Neighbour], budget: Budget) -> Verdict:
        """The verdict of a scope that has learned nothing yet."""
        return self.decide(self._fresh, text, neighbours, budget)

    def decide(self, state: State, text: str, neighbours: Sequence[Neighbour], budget: Budget) -> Verdict:
        """Serve the least risky answer if the budgets allow, else ask, and compare with what came near."""
        if budget.max_error_rate <= 0.0 or budget.max_wrong_hit_rate <= 0.0:
            return Regenerate(reason="budget")
        near = [neighbour for neighbour in neighbours if neighbour.similarity >= self._params.floor]
        if not near:
            return Regenerate(reason="far")
        limit = self.threshold(state, budget)
        found = candidates(text, near, self._params.compared)
        evidence = tuple(self._weigh(state, candidate) for candidate in found)
        if unread := self._unread(state, found, evidence, budget):
            return Explore(
                entry_id=unread[0], notes=_notes(evidence), reason="unread", evidence=evidence, unread=unread
            )
        at = min(range(len(found)), key=lambda i: evidence[i].risk)
        best = evidence[at]
        reason = self._objection(state, best, limit, budget)
        audit = self._audit(state)
        wanted = best.risk <= limit
        chance = audit if wanted and reason is None else 1.0
        evidence = tuple(
            replace(item, best=True, wanted=wanted, chance=chance) if item is best else replace(item, chance=chance)
            for item in evidence
        )
        if reason is not None:
            return Explore(entry_id=best.entry_id, notes=_notes(evidence), reason=reason, evidence=evidence)
        return Serve(
            entry_id=best.entry_id,
            confidence=best.probability,
            notes=_notes(evidence),
            risk=best.risk,
            audit=audit,
            evidence=evidence,
        )

    def risks(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """The risk of each row of features in a scope that has learned nothing, vetoes apart: for making bounds."""
        found = (logistic.guess(self._fresh.belief, self._standard(row)) for row in features)
        return np.asarray([self._risk(self._fresh, guessed) for guessed in found])

    def threshold(self, state: State, budget: Budget) -> float:
        """The highest risk this scope serves now."""
        if self._is_grown(state):
            return threshold(state.window, budget, self._params.limits)
        return self._prior.threshold(budget)

    @property
    def own_after(self) -> tuple[int, float]:
        """Labels and requests a scope needs before its own window decides; until then the prior does."""
        return self._params.labels, self._params.requests

    def count(self, state: State, verdict: Verdict, *, served: bool) -> State:
        """The state after a request was answered."""
        risk = 1.0 if isinstance(verdict, Regenerate) else min((item.risk for item in verdict.evidence), default=1.0)
        return replace(
            state,
            window=add(state.window, risk, served=served, limits=self._params.limits),
            hits=state.hits + isinstance(verdict, Serve),
        )

    def learn(self, state: State, outcome: Outcome) -> State:
        """The state after a label. Evidence of another version of the features teaches nothing."""
        seen = outcome.evidence
        if len(seen.features) != 4 * WIDTH:
            return state
        x = self._standard(np.frombuffer(seen.features, "<f4"))
        # An audit could speak for all hits that were not audited; by default it counts once.
        weight = min(self._params.heaviest, 1.0 / max(seen.chance, 1e-3)) if outcome.kind == "audit" else 1.0
        belief = logistic.learn(
            state.belief, x, outcome.same, flip=outcome.flip, memory=self._params.memory, weight=weight
        )
        window = state.window
        if seen.wanted:
            window = check(window, seen.risk, wrong=not outcome.same, flip=outcome.flip)
        return replace(
            state,
            belief=belief,
            curve=self._bend(state.curve, outcome),
            window=window,
            excused=self._excuse(state.excused, outcome),
            labels=state.labels + 1,
        )

    def brief(self, state: State, budget: Budget) -> dict[str, float]:
        """What a page or a metric shows of a scope."""
        window = state.window
        return {
            "labels": state.labels,
            "would_be_hits": state.hits,
            "threshold": self.threshold(state, budget),
            "audited": window.checked,
            "audited_wrong": window.wrong,
            "feared_wrong": window.feared,
            "doubt": scale(window, self._params.limits),
            "steepness": state.curve.slope,
            "braked": float(alarmed(window, budget, self._params.limits)),
        }

    def _unread(
        self, state: State, found: Sequence[Candidate], evidence: Sequence[Evidence], budget: Budget
    ) -> tuple[int, ...]:
        """The entries to read with the question: where one would be served found alike, or as it is, all that would be.

        Labels may have made a text look better than one read as alike: only readings teach how much they are worth.
        Would be: under the budget per request alone. The one per hit is met by what has been read, and a scope that
        read only what meets it unread would read next to nothing, and never learn what it may serve.
        """
        if not self._prior.reader:
            return ()
        budget = replace(budget, max_wrong_hit_rate=1.0)
        limit = self.threshold(state, budget)
        hoped = [
            seen if candidate.read else min(seen, self._weigh(state, if_alike(candidate)), key=lambda item: item.risk)
            for candidate, seen in zip(found, evidence, strict=True)
        ]
        best = min(range(len(hoped)), key=lambda at: hoped[at].risk)
        if found[best].read or self._objection(state, hoped[best], limit, budget) is not None:
            return ()
        unread = zip(found, hoped, strict=True)
        return tuple(item.entry_id for candidate, item in unread if not candidate.read and item.risk <= limit)

    def _objection(self, state: State, best: Evidence, limit: float, budget: Budget) -> str | None:
        """Why `best` is not served, in a word."""
        if best.veto is not None:
            return "guard"
        if limit < 0.0:
            return "shadow"
        if best.risk > limit:
            return "unsure"
        if alarmed(state.window, budget, self._params.limits):
            return "brake"
        return None if affordable(state.window, best.risk, budget, self._params.limits) else "budget"

    def _weigh(self, state: State, candidate: Candidate) -> Evidence:
        guessed = logistic.guess(state.belief, self._standard(candidate.features))
        veto = next((name for name in candidate.guards if name in HARD and not self._excused(state, name)), None)
        risk = 1.0 if veto else self._risk(state, guessed)
        return Evidence(
            entry_id=candidate.nearest.entry_id,
            answer_id=candidate.nearest.answer,
            probability=logistic.sigmoid(guessed.logit),
            risk=risk,
            features=candidate.features.astype("<f4").tobytes(),
            guards=candidate.guards,
            veto=veto,
        )

    def _risk(self, state: State, guessed: logistic.Guess) -> float:
        if self._is_grown(state):
            return curve.risk(state.curve, guessed.logit, self._params.caution)
        return logistic.sigmoid(self._params.first_caution * guessed.spread - guessed.logit)

    def _bend(self, held: Curve, outcome: Outcome) -> Curve:
        """One more label for the curve. What people report is no sample of what was likely to be right."""
        seen = outcome.evidence
        if not seen.best or seen.veto is not None or outcome.kind == "feedback":
            return held
        p = min(max(seen.probability, 1e-9), 1.0 - 1e-9)
        said = math.log(p / (1.0 - p))
        return curve.learn(held, said, outcome.same, flip=outcome.flip, memory=self._params.curve_memory)

    def _is_grown(self, state: State) -> bool:
        """Whether the scope has labels and requests enough to decide by its own."""
        return state.labels >= self._params.labels and state.window.requests >= self._params.requests

    def _standard(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """What the model sees: scaled features, and the bends of their shipped score."""
        cut = self._prior.cut
        x = np.minimum(np.maximum((features - self._center) / self._scale, -cut), cut)
        return np.concatenate([x, np.maximum(0.0, float(x @ self._score) - self._knots)])

    def _audit(self, state: State) -> float:
        return next(chance for hits, chance in reversed(self._params.audits) if state.hits >= hits)

    def _excused(self, state: State, guard: str) -> bool:
        """Whether what `guard` speaks against is as right in this scope as it looks: then it only weighs, no veto."""
        count, right, hoped = np.frombuffer(state.excused, "<f4").reshape(-1, 3)[GUARD_NAMES.index(guard)]
        return count >= self._params.excuse_labels and right >= hoped - math.sqrt(hoped * (1.0 - hoped / count))

    def _excuse(self, held: bytes, outcome: Outcome) -> bytes:
        """One more label for the guards that spoke against a pair which looked right without them."""
        seen = outcome.evidence
        if seen.probability < self._params.excuse_from or not seen.guards:
            return held
        table = np.frombuffer(held, "<f4").reshape(-1, 3).copy()
        for name in seen.guards:
            table[GUARD_NAMES.index(name)] += (1.0, float(outcome.same), seen.probability)
        return table.tobytes()


def _notes(evidence: Sequence[Evidence]) -> tuple[Note, ...]:
    return tuple(Note(entry_id=item.entry_id, guard=item.veto, confidence=item.probability) for item in evidence)


def _aligned(prior: Prior) -> Prior:
    """Raises ValueError for a prior over other features."""
    if tuple(prior.names) != NAMES:
        raise ValueError("the prior was made for other features than this version computes: train it again")
    return prior


def _ignorant() -> Prior:
    """Nearness is good, distance and objections are bad, and nothing of it is sure."""
    mean = dict.fromkeys(NAMES, 0.0) | {"bias": -2.0, "cosine": 1.0, "margin": 1.0}
    mean |= {f"guard_{name}": -1.0 for name in GUARD_NAMES}
    center = dict.fromkeys(NAMES, 0.0) | {"cosine": 0.75}
    scales = dict.fromkeys(NAMES, 1.0) | {"cosine": 0.1, "margin": 0.1, "behind": 0.1, "second_key": 0.1}
    scales |= {"above_70": 0.1, "above_80": 0.1, "above_90": 0.05, "above_95": 0.05}
    return Prior(
        names=NAMES,
        center=tuple(center.values()),
        scale=tuple(scales.values()),
        mean=tuple(mean.values()),
        deviation=(1.5,) * WIDTH,
    )
