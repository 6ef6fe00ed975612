"""`/api/v1/cache/tune`: the logged traffic under other error budgets. Reads; changes nothing.

Knows: which budgets are asked about, how much data there was and what that means. Does not know: how the arithmetic
goes (`policies.tuning`), how the log is read (`gateway.db.decisions`).
"""

import asyncio
from typing import Annotated

from litestar import get
from litestar.params import QueryParameter
from litestar.types import ControllerRouterHandler
from msgspec import Struct

from gateway.call import Principal
from gateway.db.decisions import MOST_DECISIONS, Log, decisions
from gateway.errors import InvalidRequest
from gateway.parts import build_policy
from gateway.routes import shapes
from gateway.routes.access import CallerDep, control_router
from gateway.routes.usage import reach, start_of
from gateway.services import Services
from policies.money import usd
from policies.reuse import Budget, ReusePolicy, learned
from policies.tuning import Choice, Seen, Share, Start, as_it_was, replay

_MOST_BUDGETS = 8
_FEW = 300  # judged answers below which an error of a percent or less cannot be told from none


class ShareView(Struct, kw_only=True):
    """A share and its 95 % interval; `rate` is null where nothing would have been served."""

    rate: float | None
    low: float
    high: float


class ChoiceView(Struct, kw_only=True):
    """One budget. `hits` are answers served by meaning, `exact` the very same request; `judged` of the hits are known
    to be right or wrong, the others count by the policy's own estimate. `saved_usd`: by meaning, over the whole span.
    """

    max_error_rate: float
    max_wrong_hit_rate: float
    hits: int
    exact: int
    hit_rate: float | None
    wrong_per_request: ShareView
    wrong_per_hit: ShareView
    judged: int
    saved_usd: str


class TuneAnswer(Struct, kw_only=True):
    """`requests` asked the cache in the span; `explained` of them say what was looked at, `weighed` had a kept answer
    near that no guard forbade, `judged` of those are known to be right or wrong. `warnings`: what to bear in mind.
    """

    start: str
    requests: int
    explained: int
    weighed: int
    judged: int
    scopes: int
    warnings: list[str]
    as_it_was: ChoiceView
    data: list[ChoiceView]


@get("/", opt={"role": "viewer"}, summary="Other error budgets over the logged traffic")
async def tune(
    caller: CallerDep,
    budget: Annotated[str, QueryParameter(max_length=200)] = "0.005,0.01,0.02,0.05",
    max_wrong_hit_rate: Annotated[float | None, QueryParameter(ge=0, le=1)] = None,
    since: Annotated[str, QueryParameter(max_length=64)] = "7d",
) -> TuneAnswer:
    """Replays what was logged under each `max_error_rate` in `budget` (shares with commas between) and tells hit rate,
    expected error with its interval, and dollars saved. `max_wrong_hit_rate`: as configured when left out.
    """
    return await tuned(caller.services, caller.principal, budget, max_wrong_hit_rate, since)


async def tuned(
    services: Services, principal: Principal, budget: str, max_wrong_hit_rate: float | None, since: str
) -> TuneAnswer:
    """The same for whoever asks. Raises InvalidRequest."""
    await services.ledger.catch_up()
    settings = services.settings.cache
    per_hit = settings.max_wrong_hit_rate if max_wrong_hit_rate is None else max_wrong_hit_rate
    wanted = [Budget(max_error_rate=rate, max_wrong_hit_rate=per_hit) for rate in rates(budget)]
    start = start_of(since, services.now())
    log = await decisions(services.database, start, team=reach(principal).get("team"))
    seen = [one.seen for one in log.decisions]
    now = Budget(max_error_rate=settings.max_error_rate, max_wrong_hit_rate=settings.max_wrong_hit_rate)
    # Pure arithmetic over thousands of requests: not on the loop that answers them.
    choices = await asyncio.to_thread(_replayed, seen, wanted, build_policy(services.settings))
    weighed = [one for one in seen if one.risk is not None]
    judged = sum(one.wrong is not None for one in weighed)
    return TuneAnswer(
        start=shapes.moment(start) or "",
        requests=log.requests,
        explained=len(seen),
        weighed=len(weighed),
        judged=judged,
        scopes=len({one.scope for one in weighed}),
        warnings=_warnings(log, judged),
        as_it_was=_view(as_it_was(seen, now)),
        data=[_view(choice) for choice in choices],
    )


def rates(text: str) -> list[float]:
    """`0.005,0.01` in ascending order, each once. Raises InvalidRequest."""
    try:
        found = sorted({float(part) for part in text.split(",") if part.strip()})
    except ValueError as error:
        raise InvalidRequest("`budget` takes shares such as 0.005,0.01.", param="budget") from error
    if not found or len(found) > _MOST_BUDGETS or not all(0.0 <= rate <= 1.0 for rate in found):
        raise InvalidRequest(f"`budget` takes 1 to {_MOST_BUDGETS} shares from 0 to 1.", param="budget")
    return found


def _replayed(seen: list[Seen], budgets: list[Budget], policy: ReusePolicy) -> list[Choice]:
    return [replay(seen, budget, start=_start(policy, budget)) for budget in budgets]


def _start(policy: ReusePolicy, budget: Budget) -> Start:
    """A scope of the policy that learns begins with what its prior allows."""
    if not isinstance(policy, learned.Policy):
        return Start()
    labels, requests = policy.own_after
    return Start(threshold=policy.threshold(policy.fresh(), budget), labels=labels, requests=requests)


def _warnings(log: Log, judged: int) -> list[str]:
    found: list[str] = []
    if log.bounded:
        found.append(f"Only the newest {MOST_DECISIONS:,} requests were replayed.")
    elif len(log.decisions) < log.requests:
        gone = log.requests - len(log.decisions)
        found.append(f"{gone} requests were left out: their explanations are gone (telemetry.explain_days).")
    if judged < _FEW:
        found.append(
            f"Only {judged} near answers were judged (audits, explorations, feedback): the intervals are wide, and "
            "what nobody judged counts by the policy's own estimate."
        )
    found.append(
        "A replay starts without knowledge of its scopes and cannot see that more hits leave fewer answers to reuse."
    )
    return found


def _view(choice: Choice) -> ChoiceView:
    return ChoiceView(
        max_error_rate=choice.budget.max_error_rate,
        max_wrong_hit_rate=choice.budget.max_wrong_hit_rate,
        hits=choice.hits,
        exact=choice.exact,
        hit_rate=choice.hit_rate,
        wrong_per_request=_share(choice.wrong_per_request),
        wrong_per_hit=_share(choice.wrong_per_hit),
        judged=choice.judged,
        saved_usd=usd(choice.saved_nano),
    )


def _share(share: Share) -> ShareView:
    return ShareView(rate=share.rate, low=share.low, high=share.high)


def route_handlers() -> list[ControllerRouterHandler]:
    return [control_router("/api/v1/cache/tune", [tune], tags=["Cache"])]
