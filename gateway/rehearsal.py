"""What a dry run says of money and limits: what each budget has left, and whether one of them would refuse.

Knows: how a hold and a rate limit decide, told as numbers, what a route can cost as a whole. Does not know: who draws
on what, how anything is taken. The answer holds for this moment: others draw on the same budgets.
"""

from collections.abc import Mapping, Sequence
from typing import cast

from gateway.call import Call
from gateway.charging import worst
from gateway.estimate import Bound, within
from gateway.ledger.pools import Pool
from gateway.model_settings import ModelSettings
from policies.budget import told
from policies.money import Price, nano, usd

Told = dict[str, object]
_PASSED_OVER = ("model_not_priced", "max_cost_exceeded")


def attempt(call: Call, prices: Mapping[str, Price | None], limits: Bound, pools: Sequence[Pool]) -> Told:
    """What would become of an attempt at those prices: its worst cost, its budgets, and `verdict`.

    `prices`: of the model that is asked for first, then of those that the service may ask in its place, any of which
    may be what is paid for: `models` tells each. `verdict`: ok, shorter (with the `max_tokens` that can be paid), or
    the code of the refusal, with `refused_by`.
    """
    costs = {name: None if price is None else worst(limits, price) for name, price in prices.items()}
    price = next(iter(prices.values()))
    each: Told = {} if len(prices) < 2 else {"models": [_of(name, prices[name], cost) for name, cost in costs.items()]}
    known = [cost for cost in costs.values() if cost is not None]
    if price is None or len(known) < len(costs):
        told_price = None if price is None else price.id
        return {"worst_case_usd": None, "price": told_price, **each, "budgets": [], "verdict": "model_not_priced"}
    need = max(known)
    found: Told = {
        "worst_case_usd": usd(need),
        "price": price.id,
        **each,
        "budgets": [_budget(pool, need) for pool in pools],
        "verdict": "ok",
    }
    most = call.directives.max_cost_nano
    if most is not None and need > most:
        return {**found, "verdict": "max_cost_exceeded", "refused_by": "x-nearhit-max-cost-usd"}
    if (tightest := _tightest(pools, need)) is None:
        return found
    if (shorter := within(limits, price, tightest.headroom)) is not None:
        return {**found, "verdict": "shorter", "max_tokens": shorter.injected, "limited_by": tightest.budget.scope}
    return {**found, "verdict": "insufficient_quota", "refused_by": tightest.budget.scope}


def _of(name: str, price: Price | None, cost: int | None) -> Told:
    worst_case = None if cost is None else usd(cost)
    return {"model": name, "worst_case_usd": worst_case, "price": None if price is None else price.id}


def whole(attempts: Sequence[Told], routing: Told, *, both: bool = False) -> Told:
    """The dry run of a route of which one place answers: at worst the dearest, and two of them where one is a hedge."""
    costs = sorted(filter(None, map(_worst, attempts)), reverse=True)
    return {"route": attempts, "worst_case_usd": usd(sum(costs[: 1 + both])), "routing": routing}


def of_several(chosen: ModelSettings, told: Told) -> Told:
    """The same of a route of which several answer, all of them paid for: every rung at worst, or `of` votes."""
    places = {one["target"]: one for one in cast("list[Told]", told["route"])}  # of equal servers one is asked
    asked = list(places.values())
    rule: Told = {"min_logprob": chosen.min_logprob}
    if chosen.strategy == "ensemble":
        rule = {"of": chosen.of}
        names = [entry.to for entry in chosen.route]
        voters = (names[number % len(names)] for number in range(chosen.of))
        asked = [places[name] for name in voters if name in places]
    routing = {**cast("Told", told["routing"]), "strategy": chosen.strategy, **rule}
    return {"route": asked, "worst_case_usd": usd(sum(filter(None, map(_worst, asked)))), "routing": routing}


def _worst(attempt: Told) -> int | None:
    worst = attempt["worst_case_usd"]
    return nano(worst) if isinstance(worst, str) else None


def refusal(attempts: object, rates: Sequence[Told], *, kept: bool) -> Told | None:
    """Who would refuse the request first, and with which code; None where it would be answered.

    `attempts`: those of the route, in order. `kept`: a kept answer would be served, which costs a request of every
    limit, and no tokens and no money.
    """
    for rate in rates:
        if not rate["enough"] and (rate["kind"] == "requests" or not kept):
            return {"code": "rate_limit_exceeded", **rate}
    if kept:
        return None
    # A place without a price, or dearer than the client allows, is passed over; a budget's refusal is the request's.
    tried = cast("list[Told]", attempts)
    first = next((one for one in tried if one["verdict"] not in _PASSED_OVER), tried[0] if tried else None)
    if first is None or first["verdict"] in ("ok", "shorter"):
        return None
    return {"code": first["verdict"], "scope": first.get("refused_by"), "target": first.get("target")}


def _tightest(pools: Sequence[Pool], need: int) -> Pool | None:
    lacking = [pool for pool in pools if pool.hard and pool.headroom < need]
    return min(lacking, key=lambda pool: pool.headroom, default=None)


def _budget(pool: Pool, need: int) -> Told:
    budget = pool.budget
    found: Told = {
        "scope": budget.scope,
        "window": budget.window,
        "mode": budget.mode,
        "limit_usd": usd(pool.limit),
        "headroom_usd": usd(pool.headroom),
        "resets_at": told(pool.ends),
        "enough": not pool.hard or pool.headroom >= need,
    }
    return found if budget.degrade_to is None else {**found, "degrade_to": budget.degrade_to}
