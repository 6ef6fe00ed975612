"""`/api/v1/ledger`: rebuild every balance, compare with a provider's bill, correct what an attempt cost.

Knows: requests and answers. Does not know: how either check works (`gateway.ledger`).
"""

import tempfile
from pathlib import Path

from litestar import post
from litestar.params import JSONBody
from litestar.types import ControllerRouterHandler
from msgspec import Struct

from gateway.audit import Change, note, noted
from gateway.auth import ORG_WIDE
from gateway.db.session import Also
from gateway.errors import InvalidRequest, NotAllowed
from gateway.ledger.statement import booked
from gateway.routes.access import Caller, CallerDep, control_router
from policies.money import nano, usd


class Verified(Struct, kw_only=True):
    """`problems`: each difference in a sentence; none when every balance follows from its entries."""

    agrees: bool
    problems: list[str]


class Compared(Struct, kw_only=True):
    """Entries against a bill. `over_usd`: labelled as estimated, above the bill. `problems`: what nothing explains."""

    agrees: bool
    calls: int
    exact: int
    estimated: int
    billed_usd: str
    posted_usd: str
    over_usd: str
    problems: list[str]
    omitted: int


def _everyones(caller: Caller) -> None:
    """Raises NotAllowed for a key of one team: every answer here tells of all of them."""
    if caller.principal.team != ORG_WIDE:
        raise NotAllowed("This concerns everyone's books; this key is bound to one team.", code="beyond_team")


@post("/verify", opt={"role": "finance"}, summary="Rebuild every balance", status_code=200)
async def verify(caller: CallerDep) -> Verified:
    """Recomputes every charge from tokens and price version and every balance from its entries."""
    _everyones(caller)
    await caller.services.ledger.flush()
    problems = await caller.services.ledger.verify()
    return Verified(agrees=not problems, problems=problems)


@post("/reconcile", opt={"role": "finance"}, summary="Compare with a provider's bill", status_code=200)
async def reconcile(caller: CallerDep) -> Compared:
    """The body is the bill: one JSON object per line, as `nearhit scripted --bill` writes it."""
    _everyones(caller)
    body = await caller.request.body()
    if not body.strip():
        raise InvalidRequest("The body must be the bill: one JSON object per line.")
    await caller.services.ledger.flush()
    with tempfile.TemporaryDirectory(dir=caller.services.settings.home) as folder:
        bill = Path(folder) / "bill.jsonl"
        bill.write_bytes(body)
        try:
            found = await caller.services.ledger.reconcile(bill)
        except ValueError as error:
            raise InvalidRequest(f"The bill could not be read: {error}") from error
    await note(
        caller.services,
        caller.principal,
        Change("ledger.reconcile", "bill", after={"agrees": found.agrees, "calls": found.calls}),
        ip=caller.ip,
    )
    return Compared(
        agrees=found.agrees,
        calls=found.calls,
        exact=found.exact,
        estimated=found.estimated,
        billed_usd=usd(found.billed_nano),
        posted_usd=usd(found.posted_nano),
        over_usd=usd(found.over_nano),
        problems=found.problems,
        omitted=found.omitted,
    )


class AdjustWanted(Struct, kw_only=True, forbid_unknown_fields=True):
    """What an attempt cost more (or, negative, less) than its entry says, as a decimal, and why."""

    entry_id: str
    delta_usd: str
    reason: str


class Adjusted(Struct, kw_only=True):
    """The entry that corrects. `month`: where it is booked; a later one than the attempt's if that is closed."""

    id: str
    month: str


@post("/adjust", opt={"role": "finance"}, summary="Correct a charge", status_code=201)
async def adjust(caller: CallerDep, data: JSONBody[AdjustWanted]) -> Adjusted:
    """Adds an entry beside the one it corrects; the entry itself and closed months never change."""
    services = caller.services
    _everyones(caller)
    try:
        delta = nano(data.delta_usd.strip())
    except ValueError as error:
        raise InvalidRequest(f"`delta_usd`: {error}.", param="delta_usd") from error
    if delta == 0 or not data.reason.strip():
        raise InvalidRequest("A correction needs an amount other than 0 and a reason.", param="reason")

    def said(made: str) -> Also:
        after: dict[str, object] = {"delta_usd": usd(delta), "reason": data.reason.strip()[:500], "id": made}
        return noted(caller, Change("ledger.adjust", data.entry_id[:200], after=after))

    await services.ledger.flush()
    try:
        made = await services.ledger.adjust(
            data.entry_id, delta, reason=data.reason.strip(), actor=caller.principal.key_id, also=said
        )
    except ValueError as error:
        raise InvalidRequest(f"{error}.", param="entry_id") from error
    return Adjusted(id=made, month=await booked(services.database, made))


def route_handlers() -> list[ControllerRouterHandler]:
    return [control_router("/api/v1/ledger", [verify, reconcile, adjust], tags=["Ledger"])]
