"""`/api/v1/ledger`: rebuild every balance, compare with a provider's bill.

Knows: requests and answers. Does not know: how either check works (`gateway.ledger`).
"""

import tempfile
from pathlib import Path

from litestar import post
from litestar.types import ControllerRouterHandler
from msgspec import Struct

from gateway.audit import Change, note
from gateway.errors import InvalidRequest
from gateway.routes.access import CallerDep, control_router
from policies.money import usd


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


@post("/verify", opt={"role": "finance"}, summary="Rebuild every balance", status_code=200)
async def verify(caller: CallerDep) -> Verified:
    """Recomputes every charge from tokens and price version and every balance from its entries."""
    await caller.services.ledger.flush()
    problems = await caller.services.ledger.verify()
    return Verified(agrees=not problems, problems=problems)


@post("/reconcile", opt={"role": "finance"}, summary="Compare with a provider's bill", status_code=200)
async def reconcile(caller: CallerDep) -> Compared:
    """The body is the bill: one JSON object per line, as `nearhit scripted --bill` writes it."""
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


def route_handlers() -> list[ControllerRouterHandler]:
    return [control_router("/api/v1/ledger", [verify, reconcile], tags=["Ledger"])]
