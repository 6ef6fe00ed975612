"""A similarity threshold with vetoes: serve the nearest text that nothing forbids.

The threshold is set per error budget from measured error of threshold and guards together; the guards decide what no
threshold can. Pure: no memory, no clock.
"""

from collections.abc import Sequence

from msgspec import Struct

from policies.reuse import Budget, Neighbour, Note, Regenerate, Serve, Verdict
from policies.reuse.facts import analyse
from policies.reuse.guards import forbids


class Params(Struct, frozen=True, kw_only=True):
    """`steps`: (similarity, expected wrong share of hits at and above it), ascending in similarity."""

    steps: tuple[tuple[float, float], ...] = ((0.80, 0.10), (0.85, 0.06), (0.90, 0.03), (0.95, 0.015))


class Policy:
    """Implements `policies.reuse.ReusePolicy`."""

    def __init__(self, params: Params | None = None) -> None:
        self._params = params or Params()

    @property
    def floor(self) -> float:
        return self._params.steps[0][0]

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
        allowed = min(budget.max_wrong_hit_rate, 5 * budget.max_error_rate)
        return next((similarity for similarity, wrong in self._params.steps if wrong <= allowed), None)

    def _confidence(self, similarity: float) -> float:
        return 1.0 - max((wrong for step, wrong in self._params.steps if step <= similarity), key=lambda wrong: -wrong)
