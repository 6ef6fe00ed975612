"""`/api/v1/months`: what each month cost, what keeps it open, closing it.

Knows: JSON, who may see and do what. Does not know: how a month is closed or added up (`gateway.ledger`).
"""

from litestar import get, post
from litestar.params import FromPath, JSONBody
from litestar.types import ControllerRouterHandler
from msgspec import Struct

from gateway.audit import Asking, Change, noted
from gateway.auth import ORG_WIDE, require
from gateway.call import Principal
from gateway.db.session import Also
from gateway.errors import Conflict, InvalidRequest, NotAllowed
from gateway.ledger.closing import AlreadyClosed, Months, NotClosable, Totals
from gateway.ledger.grouping import TooMany
from gateway.ledger.statement import Month, month, months
from gateway.routes import shapes
from gateway.routes.access import Caller, CallerDep, control_router
from policies.money import usd
from policies.months import Blocker, span

_LONGEST_REASON = 500


class MonthView(Struct, kw_only=True):
    """One UTC month. `spent_usd` holds everything booked in it; `adjustments_usd` is its part for earlier months.

    `state`: running, open (over and not closed), closing or sealed. `closing_since`, `closing_by`: who is at it; where
    the gateway died meanwhile it stays so until the month is closed again. `digest` chains a sealed month to the one
    closed `previous`.
    """

    month: str
    start: str | None
    end: str | None
    state: str
    spent_usd: str
    estimated_usd: str
    adjustments_usd: str
    entries: int
    closing_since: str | None
    closing_by: str | None
    sealed_at: str | None
    sealed_by: str | None
    reason: str | None
    digest: str | None
    previous: str | None


class MonthDetail(MonthView, kw_only=True):
    """`blockers`: what keeps it from being closed now; none for a sealed month."""

    blockers: list[Blocker]


class MonthList(Struct):
    """Newest first."""

    data: list[MonthView]


class CloseWanted(Struct, kw_only=True, forbid_unknown_fields=True):
    """`force` closes although something is open, with a `reason` (role operator); what comes later is booked later."""

    force: bool = False
    reason: str | None = None


def named(month_name: str) -> str:
    """Raises InvalidRequest for what is no month."""
    try:
        span(month_name)
    except ValueError as error:
        raise InvalidRequest(f"{error}.", param="month") from error
    return month_name


def view(of: Month) -> MonthView:
    its, seal = span(of.name), of.seal
    closing = seal if of.state == "closing" else None
    return MonthView(
        month=of.name,
        start=shapes.moment(float(its.start)),
        end=shapes.moment(float(its.end)),
        state=of.state,
        spent_usd=usd(of.sums.amount_nano),
        estimated_usd=usd(of.sums.estimated_nano),
        adjustments_usd=usd(of.sums.adjustments_nano),
        entries=of.sums.entries,
        closing_since=None if closing is None else shapes.moment(closing.began),
        closing_by=None if closing is None else closing.actor,
        sealed_at=None if seal is None else shapes.moment(seal.sealed),
        sealed_by=None if seal is None or seal.digest is None else seal.actor,
        reason=None if seal is None else seal.reason,
        digest=None if seal is None else seal.digest,
        previous=None if seal is None else seal.previous,
    )


def own_team(principal: Principal, asked: str | None = None) -> str | None:
    """The team an answer is limited to; None for everyone. Raises NotAllowed for another team's."""
    if principal.team == ORG_WIDE:
        return asked
    if asked not in (None, principal.team):
        raise NotAllowed("This is beyond your team.", code="beyond_team", param="team")
    return principal.team


async def detail(caller: Caller, name: str) -> MonthDetail:
    services = caller.services
    found = view(await month(services.database, name, services.now(), own_team(caller.principal)))
    keeps = (
        [] if found.state == "sealed" else await Months(services.database, now=services.ledger.instant).blockers(name)
    )
    return MonthDetail(**{field: getattr(found, field) for field in MonthView.__struct_fields__}, blockers=keeps)


@get("/months", opt={"role": "viewer"}, summary="Months")
async def list_months(caller: CallerDep) -> MonthList:
    """Every month from the first entry to the one that runs."""
    services = caller.services
    await services.ledger.flush()
    found = await months(services.database, services.now(), own_team(caller.principal))
    return MonthList([view(one) for one in found])


@get("/months/{month_name:str}", opt={"role": "viewer"}, summary="A month")
async def read_month(caller: CallerDep, month_name: FromPath[str]) -> MonthDetail:
    """One month, and everything that keeps it from being closed now."""
    await caller.services.ledger.report()
    return await detail(caller, named(month_name))


async def close(asking: Asking, name: str, reason: str | None) -> None:
    """Close a month and note it. Raises what `Months.close` raises."""

    def said(sums: Totals, digest: str) -> Also:
        after: dict[str, object] = {"amount_usd": usd(sums.amount_nano), "digest": digest, "reason": reason}
        return noted(asking, Change("month.close", name, after=after))

    services = asking.services
    await Months(services.database, now=services.ledger.instant).close(name, asking.principal.key_id, reason, said)


@post("/months/{month_name:str}/close", opt={"role": "finance"}, summary="Close a month", status_code=200)
async def close_month(
    caller: CallerDep, month_name: FromPath[str], data: JSONBody[CloseWanted | None] = None
) -> MonthDetail:
    """Seals the month's sums for good. Whatever is posted for it later stands in the first open month instead.

    Refused while the month runs, while an earlier one is open, and while anything of it may still be under way; the
    answer names each reason. An operator may close it nevertheless by `force` and a `reason`.
    """
    services, who, wanted = caller.services, caller.principal, data or CloseWanted()
    if who.team != ORG_WIDE:
        raise NotAllowed("Closing a month concerns every team; this key is bound to one.", code="beyond_team")
    reason = (wanted.reason or "").strip()[:_LONGEST_REASON] or None
    if wanted.force:
        require(who, "operator")
        if reason is None:
            raise InvalidRequest("`force` needs a `reason`; it is kept with the month.", param="reason")
    await services.ledger.report()
    try:
        await close(caller, named(month_name), reason if wanted.force else None)
    except NotClosable as error:
        raise Conflict(f"{month_name} cannot be closed: {error}.", code="month_not_closable") from error
    except AlreadyClosed as error:
        raise Conflict(f"{error}.", code="month_closed") from error
    except TooMany as error:
        raise InvalidRequest(f"{error}.") from error
    return await detail(caller, month_name)


def route_handlers() -> list[ControllerRouterHandler]:
    return [control_router("/api/v1", [list_months, read_month, close_month], tags=["Months"])]
