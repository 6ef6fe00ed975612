"""`/api/v1/ledger/invoice`: the ledger beside a provider's invoice file, by model and day.

Knows: parameters and the answer. Does not know: file formats, the comparison (`gateway.ledger.invoice`).
"""

import asyncio
from datetime import UTC, datetime
from typing import Annotated

from litestar import post
from litestar.params import FromQuery, QueryParameter
from litestar.types import ControllerRouterHandler
from msgspec import Struct

from gateway.audit import Change, note
from gateway.auth import ORG_WIDE
from gateway.errors import InvalidRequest, NotAllowed
from gateway.invoice_files import Columns, Shape, aliases, read
from gateway.ledger.grouping import DAY
from gateway.ledger.invoice import Invoice, compare_invoice
from gateway.routes.access import CallerDep, control_router
from policies.invoices import Row
from policies.money import usd

_MOST_ALIASES = 1_000
Text = Annotated[str | None, QueryParameter(max_length=200)]


class InvoiceRow(Struct, kw_only=True):
    """One model on one day. `difference_usd` = ledger - invoice, `share` of the invoice (null where that is 0).

    `why`: agrees, estimated (above the invoice by no more than `estimated_usd`), another day (the model agrees over all
    days), or unexplained.
    """

    day: str
    model: str
    ledger_usd: str
    estimated_usd: str
    invoice_usd: str
    difference_usd: str
    share: float | None
    why: str


class InvoiceAnswer(Struct, kw_only=True):
    """`agrees` is false when a row is unexplained or usage could not be priced (`unpriced`).

    `first_day` and `last_day` are those of the invoice: what the ledger has of days before and after is not compared.
    """

    agrees: bool
    provider: str
    ledger_usd: str
    invoice_usd: str
    difference_usd: str
    share: float | None
    unexplained: int
    rows: list[InvoiceRow]
    unpriced: list[str]
    first_day: str
    last_day: str


@post(
    "/invoice",
    opt={"role": "finance"},
    summary="Compare with a provider's invoice",
    status_code=200,
)
async def invoice(  # noqa: PLR0913 - one name per parameter
    caller: CallerDep,
    provider: Annotated[str, QueryParameter(max_length=200)],
    shape: FromQuery[Shape] = "generic",
    tolerance: Annotated[float, QueryParameter(ge=0, le=1)] = 0.001,
    day: Text = None,
    model: Text = None,
    amount: Text = None,
    alias: FromQuery[list[str] | None] = None,
) -> InvoiceAnswer:
    """The body is the file: `openai` (cost export as CSV, or the JSON of its costs API), `anthropic` (cost or usage
    export as CSV) or `generic` (any CSV; `day`, `model` and `amount` name its columns).

    `alias=name on the invoice=name in the ledger` may be given more than once. Dates in names of models do not count.
    Nothing is corrected by this: corrections are `POST /api/v1/ledger/adjust`.
    """
    services = caller.services
    if caller.principal.team != ORG_WIDE:
        raise NotAllowed("An invoice concerns every team; this key is bound to one.", code="beyond_team")
    named = alias or []
    if len(named) > _MOST_ALIASES:
        raise InvalidRequest(f"At most {_MOST_ALIASES} aliases.", param="alias")
    columns = Columns(day or "day", model or "model", amount or "amount")
    await services.ledger.flush()
    body = await caller.request.body()
    try:
        lines = await asyncio.to_thread(lambda: list(read(body, shape, columns)))  # many lines take seconds
        found = await compare_invoice(services.database, provider, lines, aliases(named), tolerance)
    except ValueError as error:
        raise InvalidRequest(f"The invoice could not be compared: {error}.") from error
    answer = _answer(provider, found)
    after: dict[str, object] = {"agrees": answer.agrees, "difference_usd": answer.difference_usd}
    await note(services, caller.principal, Change("ledger.invoice", provider, after=after), ip=caller.ip)
    return answer


def _answer(provider: str, found: Invoice) -> InvoiceAnswer:
    ledger = sum(row.ledger_nano for row in found.rows)
    billed = sum(row.invoice_nano for row in found.rows)
    return InvoiceAnswer(
        agrees=found.agrees,
        provider=provider,
        ledger_usd=usd(ledger),
        invoice_usd=usd(billed),
        difference_usd=usd(ledger - billed),
        share=_share(ledger - billed, billed),
        unexplained=sum(row.why == "unexplained" for row in found.rows),
        rows=[_row(row) for row in found.rows],
        unpriced=found.unpriced,
        first_day=_day(found.first),
        last_day=_day(found.last),
    )


def _row(row: Row) -> InvoiceRow:
    return InvoiceRow(
        day=_day(row.day),
        model=row.model,
        ledger_usd=usd(row.ledger_nano),
        estimated_usd=usd(row.estimated_nano),
        invoice_usd=usd(row.invoice_nano),
        difference_usd=usd(row.difference_nano),
        share=_share(row.difference_nano, row.invoice_nano),
        why=row.why,
    )


def _day(number: int) -> str:
    return datetime.fromtimestamp(number * DAY, UTC).strftime("%Y-%m-%d")


def _share(difference: int, of: int) -> float | None:
    return difference / of if of else None


def route_handlers() -> list[ControllerRouterHandler]:
    return [control_router("/api/v1/ledger", [invoice], tags=["Ledger"])]
