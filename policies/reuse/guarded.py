"""A similarity threshold with vetoes: serve the nearest text that nothing forbids.

The guards decide what no threshold can. The threshold follows the error budget by a table of what was measured, guards
on, over streams of 5,000 requests (all-MiniLM-L6-v2, bfloat16): intents of BANKING77 and intents with slots of HWU64,
both CC BY 4.0. It holds the worse of the two, rounded up, after reading HWU64's wrong hits at 0.92 by hand, where 4 in
5 were right answers under another label. Pure: no memory, no clock.
"""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from policies.reuse import Budget, Neighbour, Note, Regenerate, Serve, Verdict
from policies.reuse.facts import analyse
from policies.reuse.guards import forbids


class Step(NamedTuple):
    """At `similarity` and above: wrong answers per request, and per hit."""

    similarity: float
    wrong_per_request: float
    wrong_per_hit: float


class Params(Struct, frozen=True, kw_only=True):
    """`steps`: ascending in similarity, what was measured at and above it with these guards (see the module)."""

    steps: tuple[Step, ...] = (
        Step(0.88, 0.020, 0.100),
        Step(0.90, 0.013, 0.070),
        Step(0.92, 0.008, 0.045),
        Step(0.95, 0.002, 0.025),
        Step(0.97, 0.001, 0.012),
    )


class Policy:
    """Implements `policies.reuse.ReusePolicy`."""

    def __init__(self, params: Params | None = None) -> None:
        self._params = params or Params()

    @property
    def floor(self) -> float:
        return self._params.steps[0].similarity

    def judge(self, text: str, neighbours: Sequence[Neighbour], budget: Budget) -> Verdict:
        """Nearest first; the first neighbour near enough for the budget that no guard forbids is served."""
        threshold = self._threshold(budget)
        if threshold is None:
            return Regenerate(reason="budget")
        asked = analyse(text)
        notes: list[Note] = []
        for neighbour in sorted(neighbours, key=lambda item: (-item.similarity, item.entry_id)):
            if neighbour.similarity < threshold:
                break
            guard = forbids(asked, analyse(neighbour.text))
            confidence = self._confidence(neighbour.similarity)
            notes.append(Note(entry_id=neighbour.entry_id, guard=guard, confidence=confidence))
            if guard is None:
                return Serve(entry_id=neighbour.entry_id, confidence=confidence, notes=tuple(notes))
        return Regenerate(reason="guard" if notes else "far", notes=tuple(notes))

    def _threshold(self, budget: Budget) -> float | None:
        """The lowest similarity whose measured error fits both budgets; None when none does."""
        for step in self._params.steps:
            if step.wrong_per_request <= budget.max_error_rate and step.wrong_per_hit <= budget.max_wrong_hit_rate:
                return step.similarity
        return None

    def _confidence(self, similarity: float) -> float:
        """Of the steps reached, the last one's share of right hits."""
        return 1.0 - next(step.wrong_per_hit for step in reversed(self._params.steps) if step.similarity <= similarity)
