"""Forecasts of budgets from the sums of past requests.

Knows: which sums belong to a scope, how far back to look. Does not know: how a forecast is made (`policies.forecast`).
"""

from collections.abc import Sequence

from gateway.db.queries import Pruned, Queries
from gateway.db.rows import BudgetState, UsageRow
from gateway.routes import shapes
from gateway.routes.budget_shapes import ForecastView
from gateway.services import Services
from policies.forecast import Forecast, forecast
from policies.money import usd

_HOUR, _DAY = 3_600, 86_400
_HOURS, _DAYS = 48, 28
_AHEAD = 366 * _DAY  # how far a window that never ends is looked into
_NAMES = ("model", "provider", "model_used")
_MOST = 100  # budgets of a list; those nearest to their limit come first


async def forecasts(services: Services, states: Sequence[BudgetState]) -> dict[str, ForecastView]:
    """By scope, for those with enough of a past; of a long list the hundred of which most is used."""
    nearest = sorted(states, key=lambda one: one.spent_nano / max(1, one.limit_nano), reverse=True)[:_MOST]
    queries, now, found = Queries(services.database), services.now(), dict[str, ForecastView]()
    for state in nearest:
        if state.spent_nano <= 0:
            continue
        stretch = _HOUR if state.window == "day" else _DAY
        past = await _past(queries, state.scope, stretch, now)
        made = forecast(past, stretch, state.spent_nano, state.limit_nano, now, min(state.ends, now + _AHEAD))
        if made is not None:
            found[state.scope] = _view(made, ends=state.window != "total")
    return found


async def _past(queries: Queries, scope: str, stretch: int, now: float) -> list[int]:
    """Nano-USD per stretch, oldest first, from the first one in which anything was spent."""
    count, last = (_HOURS if stretch == _HOUR else _DAYS), int(now) // _HOUR * _HOUR
    bounds = [float(last - stretch * back) for back in range(count, -1, -1)]
    kind, _, name = scope.partition(":")
    try:
        if kind == "model":
            rows = await queries.series(bounds, _NAMES)
        else:
            rows = await queries.series(bounds, (), where_of(scope))
    except Pruned:
        return []
    sums = [sum(row.cost_nano for row in some if kind != "model" or name in _names(row)) for some in rows]
    first = next((i for i, one in enumerate(sums) if one), len(sums))
    return sums[first:]


def _names(row: UsageRow) -> tuple[str, str, str]:
    """What a budget may call the model of a request by (`gateway.ledger.pools.asker_of`)."""
    asked, provider, used = (row.group[name] for name in _NAMES)
    return asked, used, f"{provider}/{used}"


def where_of(scope: str) -> dict[str, str]:
    """The requests of a scope that is no model's, in the dimensions of usage."""
    kind, _, name = scope.partition(":")
    if kind == "project":
        team, _, project = name.partition("/")
        return {"team": team, "project": project}
    if kind == "tag":
        tag, _, value = name.partition("=")
        return {f"tag:{tag}": value}
    return {} if scope == "org" else {kind: name}


def _view(made: Forecast, *, ends: bool) -> ForecastView:
    return ForecastView(
        at_end_usd=usd(made.spent) if ends else None,
        low_usd=usd(made.low) if ends else None,
        high_usd=usd(made.high) if ends else None,
        runs_out=shapes.moment(made.runs_out),
        runs_out_earliest=shapes.moment(made.earliest),
        runs_out_latest=shapes.moment(made.latest),
        level=made.level,
        basis=made.basis,
    )
