"""`/api/v1/export/requests`: every request of a span as CSV, piece by piece, however many there are; `/ui` has its own.

Knows: the columns. Does not know: SQL (`gateway.db.queries`), what a prompt said (nothing here keeps content).
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from math import inf, nextafter
from typing import Annotated

import msgspec
from litestar import get
from litestar.params import QueryParameter
from litestar.response import Stream
from litestar.types import ControllerRouterHandler

from gateway.db.listing import PAGE
from gateway.db.queries import Queries
from gateway.db.rows import RequestLine
from gateway.routes.access import CallerDep, control_router
from gateway.routes.requests import COLUMNS, cells, view
from gateway.routes.requests_view import Chosen
from gateway.routes.usage import filters, span_of
from gateway.web.sheet import csv_bytes, csv_lines

_COLUMNS = (*COLUMNS, "tags")


@get("/requests", opt={"role": "viewer", "reads_query": True}, summary="Every request of a span as CSV")
async def export_requests(
    caller: CallerDep,
    start: Annotated[str | None, QueryParameter(name="from", max_length=64)] = None,
    end: Annotated[str | None, QueryParameter(name="to", max_length=64)] = None,
) -> Stream:
    """In order of time; `from`, `to` and filters as in `/api/v1/usage`. Rows are kept `retention.requests` days."""
    await caller.services.ledger.catch_up()
    span = span_of(start, end, caller.services.now())
    pages = Queries(caller.services.database).export(span.start, span.end, filters(caller.request, caller.principal))
    return download(pages)


async def newest_first(
    queries: Queries, chosen: Chosen, mine: Mapping[str, str]
) -> AsyncGenerator[list[RequestLine], None]:
    """Every request of a view of `/ui/requests`, within what somebody may see (`mine`), each page a short read."""
    where, (start, end), before = {**chosen.where, **mine}, chosen.span(), None
    while True:
        rows = await queries.recent_requests(PAGE, before, where, chosen.failed, (start, end))
        if rows:
            yield rows
        if len(rows) < PAGE:
            return
        # Should that row be pruned before the next page is read, it is not begun from the newest again.
        before, end = rows[-1].id, min(end, nextafter(rows[-1].at, inf))


def download(pages: AsyncGenerator[list[RequestLine], None]) -> Stream:
    """Requests as a file, sent as they are read."""
    headers = {"content-disposition": 'attachment; filename="nearhit-requests.csv"'}
    return Stream(_lines(pages), media_type="text/csv", headers=headers)


async def _lines(pages: AsyncGenerator[list[RequestLine], None]) -> AsyncGenerator[bytes, None]:
    """A page of rows at a time, written away from the event loop: requests go first."""
    yield csv_bytes(_COLUMNS, ())
    async for rows in pages:
        yield await asyncio.to_thread(_page, rows)


def _page(rows: list[RequestLine]) -> bytes:
    return csv_lines([*cells(view(row)), _tags(row)] for row in rows)


def _tags(row: RequestLine) -> str | None:
    return msgspec.json.encode(row.tags).decode() if row.tags else None


def route_handlers() -> list[ControllerRouterHandler]:
    return [control_router("/api/v1/export", [export_requests], tags=["Usage"])]
