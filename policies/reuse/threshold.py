"""Serve the nearest neighbour above a fixed similarity: the usual rule, kept as the baseline to compare with.

It cannot tell "book two seats" from "book three seats": no threshold can. Prefer `guarded`.
"""

from collections.abc import Sequence

from msgspec import Struct

from policies.reuse import Budget, Neighbour, Note, Regenerate, Serve, Verdict


class Params(Struct, frozen=True, kw_only=True):
    """`similarity`: cosine at and above which the nearest neighbour is served."""

    similarity: float = 0.95


class Policy:
    """Implements `policies.reuse.ReusePolicy`."""

    def __init__(self, params: Params | None = None) -> None:
        self._params = params or Params()

    @property
    def floor(self) -> float:
        return self._params.similarity

    def judge(self, text: str, neighbours: Sequence[Neighbour], budget: Budget) -> Verdict:
        """`text` and the budget play no part: a fixed similarity promises nothing, so a budget of 0 switches it off."""
        del text
        near = [neighbour for neighbour in neighbours if neighbour.similarity >= self._params.similarity]
        if not near:
            return Regenerate(reason="far")
        if budget.max_error_rate <= 0.0 or budget.max_wrong_hit_rate <= 0.0:
            return Regenerate(reason="budget")
        best = max(near, key=lambda neighbour: (neighbour.similarity, -neighbour.entry_id))
        return Serve(
            entry_id=best.entry_id,
            confidence=best.similarity,
            notes=(Note(entry_id=best.entry_id, confidence=best.similarity),),
        )
