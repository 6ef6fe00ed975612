"""What choosing among the places of a route has saved: the same tokens at the place that would have been asked.

Knows: which place a route without its strategy asks, which attempts the choice has to answer for. Does not know: prices
of places (they are handed in), who chose, rows.

The measure is what would be booked without the strategy: the place that is written first; for a cascade the last one,
as all others only stand before it. Never the dearest one: that flatters. A failed attempt is nobody's choice and is
left out; a rung that was not sure, a vote, a second call beside a slow one are the price of choosing and count.
"""

from collections.abc import Callable

from gateway.catalog import Route, Target
from gateway.flights import Landing, Step
from policies.money import Price, cost_nano


def without_choice(route: Route) -> Target:
    """The place that would have been asked."""
    return route.targets[-1 if route.chosen.strategy == "cascade" else 0]


def routed_nano(route: Route, landing: Landing, price: Callable[[Target], Price | None]) -> int:
    """Nano-USD, negative where choosing cost more; 0 where nothing was to choose, or the place has no price."""
    if len(route.targets) < 2 or landing.usage is None or landing.ended != "complete":
        return 0
    usual = price(without_choice(route))
    if usual is None:
        return 0
    return cost_nano(landing.usage, usual) - sum(step.cost_nano for step in landing.steps if _chosen(step))


def _chosen(step: Step) -> bool:
    """It answered, or was given up for another that did."""
    return step.first_chunk_at > 0 or step.result == "cancelled"
