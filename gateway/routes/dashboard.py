"""`/ui`: signing in and out, the first page, its live parts, and the files pages load.

Knows: which numbers the first page shows. Does not know: SQL, how numbers are written (`gateway.web.words`).
"""

import asyncio
from datetime import UTC, datetime
from typing import Annotated, Literal

from litestar import Response, get, post
from litestar.params import FromPath, QueryParameter
from litestar.types import ControllerRouterHandler
from msgspec import Struct

from gateway.audit import Change, noted, said_by
from gateway.auth import may
from gateway.db.kept import kept_from
from gateway.db.queries import Queries
from gateway.db.rows import UsageRow
from gateway.errors import Overloaded, Unauthorized
from gateway.routes.access import AnyRequest, peer, services_of
from gateway.routes.budgets import visible
from gateway.routes.usage import Span, left_out, month_start, reach, since_of
from gateway.routes.visitor import (
    Visitor,
    VisitorDep,
    cookie_name,
    html,
    page_router,
    same_origin,
    session_cookie,
    sign_in_page,
    text_fields,
    within_pages,
)
from gateway.services import Services
from gateway.web.pages import HEADERS, assets, render
from gateway.web.reads import FirstPiece, first_piece, month_forecast, series
from gateway.web.sessions import Sessions

Period = Literal["today", "24h", "7d", "30d", "month"]
PERIODS: tuple[tuple[Period, str], ...] = (
    ("today", "Today"),
    ("24h", "24 h"),
    ("7d", "7 days"),
    ("30d", "30 days"),
    ("month", "Month to date"),
)
_WORDS: dict[Period, str] = {
    "today": "Since midnight UTC",
    "24h": "The last 24 hours",
    "7d": "The last 7 days",
    "30d": "The last 30 days",
    "month": "This calendar month so far (UTC)",
}
_DAY = 86_400.0
_SHORT = 2 * _DAY
_RECENT = 12
_TOP = 8
_FAILED_SIGN_IN = 0.3  # seconds a wrong key waits, so that guessing through the form is slow
_MOST_WAITING = 20
ChosenPeriod = Annotated[Period, QueryParameter(name="period")]


class Glance(Struct, kw_only=True):
    """The numbers of the tiles."""

    total: UsageRow
    first: FirstPiece


def span_of(services: Services, period: Period) -> Span:
    """Up to now. Where single requests are kept for less, up to an hour more: of an hour's sum no part can be told."""
    now, kept = services.now(), services.settings.retention.requests
    if period == "month":
        return Span(month_start(now), now + 1)
    if period == "today":
        return Span(
            datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0).timestamp(), now + 1
        )
    days = {"24h": 1, "7d": 7, "30d": 30}[period]
    return Span(since_of(services, days) if 0 < kept <= days else now - days * _DAY, now + 1)


async def glance(visitor: Visitor, span: Span) -> Glance:
    services, where = visitor.services, reach(visitor.principal)
    queries = Queries(services.database)
    total = (await queries.usage((), span.start, span.end, where))[0]
    return Glance(total=total, first=await first_piece(queries, span.start, span.end, where))


@get("/", opt={"role": "viewer"})
async def overview(visitor: VisitorDep, period: ChosenPeriod = "month") -> Response[bytes]:
    """Spend, savings, hit rate, latency, requests over time, what they were, the newest ones."""
    services, now = visitor.services, visitor.services.now()
    span, where = span_of(services, period), reach(visitor.principal)
    numbers = await glance(visitor, span)
    queries = Queries(services.database)
    models = await queries.usage(["model"], span.start, span.end, where, latencies=False)
    teams = await queries.usage(["team"], span.start, span.end, where, latencies=False)
    return visitor.page(
        "overview.html",
        period=period,
        periods=PERIODS,
        period_words=_WORDS[period] + left_out(span.start, await kept_from(services.database)),
        hourly=span.end - span.start <= _SHORT,
        total=numbers.total,
        first=numbers.first,
        series=await series(queries, span.start, span.end, where),
        breakdowns=(
            ("Models", "What apps asked for, dearest first.", "model", models[:_TOP]),
            ("Teams", "Who asked, dearest first.", "team", teams[:_TOP]),
        ),
        forecast=await month_forecast(queries, now, where) if period == "month" else None,
        budgets=(await visible(services, visitor.principal))[:_TOP],
        recent=await queries.recent_requests(_RECENT, where=where),
    )


@get("/parts/tiles", opt={"role": "viewer"})
async def tiles(visitor: VisitorDep, period: ChosenPeriod = "month") -> Response[bytes]:
    """The tiles again, asked for by the first page while it is open."""
    numbers = await glance(visitor, span_of(visitor.services, period))
    return html(render("tiles.html", total=numbers.total, first=numbers.first))


@get("/parts/recent", opt={"role": "viewer"})
async def recent(visitor: VisitorDep) -> Response[bytes]:
    """The newest requests again."""
    rows = await Queries(visitor.services.database).recent_requests(_RECENT, where=reach(visitor.principal))
    return html(render("recent.html", recent=rows))


_waiting: set[object] = set()


@get("/login", opt={"role": "anyone"})
async def login_page(request: AnyRequest) -> Response[bytes]:
    return sign_in_page(request)


@post("/login", opt={"role": "anyone"}, status_code=200)
async def login(request: AnyRequest) -> Response[bytes]:
    """A key that has a role opens a session. A wrong one waits a moment; a queue of wrong ones is turned away."""
    fields = text_fields(await request.form())
    back = within_pages(fields.get("next", ""))
    if not same_origin(request):
        return sign_in_page(request, problem="The form came from elsewhere. Try again.", status=403)
    if not fields.get("key"):
        return sign_in_page(request, problem="Type or paste a key.", back=back, status=401)
    services = services_of(request)
    try:
        principal, mark = await services.keyring.sign_in(fields["key"], peer(request) or "")
    except Unauthorized as error:
        await _slow_down()
        return sign_in_page(request, problem=error.message, back=back, status=401)
    if not may(principal, "viewer"):
        problem = "This key is for applications; it has no role here."
        return sign_in_page(request, problem=problem, back=back, status=403)
    said = said_by(services, principal, Change("session.open", principal.key_id), peer(request))
    token = await Sessions(services).open(principal, said, mark=mark)
    return Response(
        b"", status_code=303, headers={**HEADERS, "location": back}, cookies=[session_cookie(request, token)]
    )


async def _slow_down() -> None:
    if len(_waiting) >= _MOST_WAITING:
        raise Overloaded("Too many wrong keys at once. Wait a moment and try again.")
    mark = object()
    _waiting.add(mark)
    try:
        await asyncio.sleep(_FAILED_SIGN_IN)
    finally:
        _waiting.discard(mark)


@post("/logout", opt={"role": "viewer"}, status_code=200)
async def logout(visitor: VisitorDep) -> Response[bytes]:
    """End the session on both sides."""
    await visitor.form()
    token = visitor.request.cookies.get(cookie_name(visitor.request), "")
    await Sessions(visitor.services).close(token, noted(visitor, Change("session.close", visitor.principal.key_id)))
    gone = session_cookie(visitor.request, "")
    return Response(b"", status_code=303, headers={**HEADERS, "location": "/ui/login"}, cookies=[gone])


@get("/static/{name:path}", opt={"role": "anyone"})
async def static(request: AnyRequest, name: FromPath[str]) -> Response[bytes]:
    """A file of the package. Addresses carry a digest of the content, so browsers keep them for a year."""
    found = assets().get(name.removeprefix("/"))
    if found is None:
        return Response(b"", status_code=404, media_type="text/plain", headers=HEADERS)
    packed = "gzip" in request.headers.get("accept-encoding", "")
    headers = {
        "cache-control": "public, max-age=31536000, immutable",
        "etag": f'"{found.tag}"',
        "vary": "accept-encoding",
        "x-content-type-options": "nosniff",
        "cross-origin-resource-policy": "same-origin",
    }
    if packed:
        headers["content-encoding"] = "gzip"
    return Response(found.packed if packed else found.body, media_type=found.kind, headers=headers)


def route_handlers() -> list[ControllerRouterHandler]:
    return [page_router("/ui", [overview, tiles, recent, login_page, login, logout, static])]
