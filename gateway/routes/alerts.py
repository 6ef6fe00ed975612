"""`/api/v1/alerts`: which thresholds were reached, what else was to be told, and whether anybody has been.

Knows: JSON out, who may see which. Does not know: how an alert is sent (`gateway.alerts`).
"""

from collections.abc import Callable, Sequence
from typing import Any

from litestar import get
from litestar.types import ControllerRouterHandler
from msgspec import Struct
from sqlalchemy import select

from gateway.alert_notices import Notice
from gateway.alert_rows import dear, wrong
from gateway.auth import ORG_WIDE
from gateway.call import Principal
from gateway.db.models import AlertDelivery, BudgetAlert, CacheDelivery, SpendingDelivery
from gateway.routes import shapes
from gateway.routes.access import CallerDep, control_router
from gateway.routes.budgets import reachable
from gateway.services import Services
from policies.budget import parse_window_id
from policies.money import usd

_MOST = 200
_MOST_PAGES = 50  # of so many, looked through for those of one team
_MOST_ROWS = 1_000  # a notice has one for each channel


class SentView(Struct, kw_only=True):
    """One channel. `state`: delivered, waiting (tried `attempts` times, again at `next`), given-up."""

    channel: str
    state: str
    attempts: int
    delivered: str | None
    next: str | None
    error: str | None


class DeliveryView(SentView, kw_only=True):
    """`limit_usd`: the limit that was reached; one that was raised since may have been reached again."""

    limit_usd: str


class AlertView(Struct, kw_only=True):
    """A budget that reached a fraction of its limit. `deliveries` is empty where no channel was configured."""

    at: str | None
    scope: str
    window: str
    window_start: str | None
    threshold: float
    spent_usd: str
    deliveries: list[DeliveryView]


class NoticeView(Struct, kw_only=True):
    """Of a cache whose hits are wrong too often or no longer, or of a dear day.

    `type` and `data`: as the webhook has them. There are none where no channel was configured at that time.
    """

    at: str | None
    type: str
    data: dict[str, Any]
    deliveries: list[SentView]


class AlertList(Struct):
    """Newest first, at most 200 of each: budgets in `data`, what else was told in `notices`."""

    data: list[AlertView]
    notices: list[NoticeView]


async def reached(services: Services, principal: Principal) -> list[AlertView]:
    """The thresholds that the caller's budgets have reached lately, newest first, with their deliveries."""
    alerts = await _within_reach(services, principal)
    async with services.database.read() as connection:
        of = select(AlertDelivery).where(AlertDelivery.window_id.in_({row.window_id for row in alerts}))
        sent = (await connection.execute(of.order_by(AlertDelivery.channel, AlertDelivery.created))).all()
    found: list[AlertView] = []
    for row in alerts:
        scope, window, span = parse_window_id(row.window_id)
        found.append(
            AlertView(
                at=shapes.moment(row.at),
                scope=scope,
                window=window,
                window_start=None if window == "total" else shapes.moment(float(span.start)),
                threshold=row.threshold,
                spent_usd=usd(row.spent_nano),
                deliveries=[
                    _delivery(one) for one in sent if one.window_id == row.window_id and one.threshold == row.threshold
                ],
            )
        )
    return found


async def _within_reach(services: Services, principal: Principal) -> list[Any]:
    """The newest of the caller's own, however many newer ones others have (up to a bound)."""
    recent = select(BudgetAlert).order_by(BudgetAlert.at.desc(), BudgetAlert.window_id, BudgetAlert.threshold)
    known: dict[str, bool] = {}
    found: list[Any] = []
    for page in range(_MOST_PAGES):
        async with services.database.read() as connection:
            rows = (await connection.execute(recent.limit(_MOST).offset(page * _MOST))).all()
        for row in rows:
            scope = parse_window_id(row.window_id)[0]
            if scope not in known:
                known[scope] = await reachable(services, principal, scope)
            found += [row] * known[scope]
        if len(rows) < _MOST or len(found) >= _MOST:
            break
    return found[:_MOST]


@get("/", opt={"role": "viewer"}, summary="List alerts")
async def list_alerts(caller: CallerDep) -> AlertList:
    """The thresholds that budgets have reached lately, what the cache and dear days gave to tell, and who was told."""
    reached_lately = await reached(caller.services, caller.principal)
    return AlertList(reached_lately, await noticed(caller.services, caller.principal))


async def noticed(services: Services, principal: Principal) -> list[NoticeView]:
    """What was told of the caller's caches, and of everybody's spending to who may see that; newest first."""
    caches = select(CacheDelivery).order_by(CacheDelivery.created.desc(), CacheDelivery.id)
    days = select(SpendingDelivery).order_by(SpendingDelivery.created.desc(), SpendingDelivery.id)
    everything = principal.team == ORG_WIDE
    if not everything:
        caches = caches.where(CacheDelivery.team == principal.team)
    async with services.database.read() as connection:
        told: list[tuple[Any, Callable[[Any], Notice]]] = [
            (row, wrong) for row in _whole((await connection.execute(caches.limit(_MOST_ROWS))).all())
        ]
        if everything:
            told += [(row, dear) for row in _whole((await connection.execute(days.limit(_MOST_ROWS))).all())]
    return _together(told)


def _whole(rows: Sequence[Any]) -> Sequence[Any]:
    """Without the rows of a notice some of whose rows may lie beyond the bound."""
    if len(rows) < _MOST_ROWS:
        return rows
    last = _notice(rows[-1])
    return [row for row in rows if _notice(row) != last]


def _notice(row: Any) -> str:
    """The id of a delivery is its notice's and its channel's (`id|channel`)."""
    return row.id.rpartition("|")[0]


def _together(told: Sequence[tuple[Any, Callable[[Any], Notice]]]) -> list[NoticeView]:
    """One of each notice, with all channels it went to."""
    found: dict[str, NoticeView] = {}
    for row, notice_of in told:
        name = _notice(row)
        if name not in found:
            notice = notice_of(row)
            found[name] = NoticeView(
                at=shapes.moment(notice.created), type=notice.kind(), data=notice.data(), deliveries=[]
            )
        found[name].deliveries.append(SentView(**_sent(row)))
    newest = sorted(found.values(), key=lambda view: view.at or "", reverse=True)
    return newest[:_MOST]


def _delivery(row: Any) -> DeliveryView:
    return DeliveryView(limit_usd=usd(row.limit_nano), **_sent(row))


def _sent(row: Any) -> dict[str, Any]:
    return {
        "channel": row.channel,
        "state": "delivered" if row.delivered is not None else "given-up" if row.due is None else "waiting",
        "attempts": row.attempts,
        "delivered": shapes.moment(row.delivered),
        "next": shapes.moment(row.due),
        "error": row.error,
    }


def route_handlers() -> list[ControllerRouterHandler]:
    return [control_router("/api/v1/alerts", [list_alerts], tags=["Budgets"])]
