"""A cheaper model instead of a refusal, or from a chosen share of a budget on: which one, and whether it may be.

Knows: what a budget says about it, which names lead where, which models a key may use. Does not know: how a request is
answered, amounts. A hard limit stays hard: the cheaper model's reservation has to fit like any other.
"""

import structlog
from msgspec import structs

from gateway.catalog import Catalog
from gateway.errors import BudgetExhausted, NotFound
from gateway.journey import Degraded, Journey
from gateway.ledger import Ledger

log = structlog.get_logger("nearhit.budgets")


class Cheaper:
    """One per worker."""

    def __init__(self, ledger: Ledger, catalog: Catalog) -> None:
        self._ledger = ledger
        self._catalog = catalog

    def due(self, journey: Journey) -> Degraded | None:
        """What to ask instead because enough of a budget is used; None in nearly every case."""
        first = journey.route.targets[0]
        found = self._ledger.degraded(journey.call, first.provider, first.model)
        return None if found is None else self._allowed(journey, *found)

    def instead(self, journey: Journey, refusal: BudgetExhausted) -> Degraded | None:
        """What to ask instead of being refused."""
        if journey.degraded is not None or refusal.degrade_to is None:
            return None
        if refusal.held_up and journey.call.background:  # it is not refused: it waits
            return None
        return self._allowed(journey, refusal.scope, refusal.degrade_to, 1.0)

    def turn(self, journey: Journey, to: Degraded) -> None:
        """From here on the request is one for the cheaper model; its row still says what was asked for."""
        journey.degraded = to
        journey.call = structs.replace(journey.call, model=to.model, repeat=None)
        journey.route = self._catalog.resolve(to.model)
        journey.miss = None
        journey.told["degraded"] = {"budget": to.scope, "from": to.asked, "to": to.model, "used": round(to.used, 4)}

    def _allowed(self, journey: Journey, scope: str, model: str, used: float) -> Degraded | None:
        """None where it leads to the same place, the key may not use it, or there is no such model any more."""
        may = journey.call.principal.models
        if may is not None and model not in may:
            return None
        try:
            route = self._catalog.resolve(model)
        except NotFound:
            log.warning("a budget names a model that is not served", budget=scope, model=model)
            return None
        if route.targets == journey.route.targets:
            return None
        return Degraded(scope=scope, asked=journey.call.model, model=model, used=used)
