"""`/api/v1/usage`: what was used, spent and saved, by any dimension, as JSON or CSV.

Knows: query parameters, shapes. Does not know: SQL (`gateway.db.queries`), money's rules.
"""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Literal

from litestar import Response, get, post
from litestar.params import QueryParameter
from litestar.types import ControllerRouterHandler
from msgspec import Struct

from gateway.audit import Change, note
from gateway.auth import ORG_WIDE
from gateway.call import Principal
from gateway.db.queries import DIMENSIONS, Queries
from gateway.db.rows import UsageRow
from gateway.db.sums import DAY, HOUR
from gateway.errors import InvalidRequest, NotAllowed
from gateway.routes import shapes
from gateway.routes.access import AnyRequest, CallerDep, control_router
from gateway.services import Services
from gateway.web.sheet import Cell, csv_bytes
from policies.money import usd

_MOST_DIMENSIONS = 4
_FILTERS = ("team", "project", "key", "user", "model", "model_used", "provider", "operation", "source", "cache")
_NO_FILTERS = frozenset({"group_by", "from", "to", "format", "limit", "before", "failed"})
_COLUMNS = (
    "requests",
    "hits",
    "hit_rate",
    "errors",
    "error_rate",
    "prompt_tokens",
    "cached_tokens",
    "cache_write_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "total_tokens",
    "cost_usd",
    "estimated_usd",
    "provider_cache_usd",
    "routing_usd",
    "audits",
    "audit_usd",
    "saved_usd",
    "corrected_usd",
    "embed_usd",
    "net_saved_usd",
    "p50_ms",
    "p95_ms",
    "p99_ms",
)
Row = dict[str, str | int | float | None]


class UsageAnswer(Struct, kw_only=True):
    """`data`: one row per group, the group's dimensions first; `total`: the same over everything. Amounts in USD."""

    start: str
    end: str
    group_by: list[str]
    data: list[Row]
    total: Row


class Span(Struct, frozen=True):
    """`[start, end)` in seconds since the epoch."""

    start: float
    end: float


def month_start(now: float) -> float:
    """The first instant of this month in UTC."""
    at = datetime.fromtimestamp(now, UTC)
    return datetime(at.year, at.month, 1, tzinfo=UTC).timestamp()


def span_of(start: str | None, end: str | None, now: float) -> Span:
    """`from` and `to` as given: times, dates, or durations before now (`7d`); this month by default."""
    lower = month_start(now) if start is None else _moment(start, now, "from")
    upper = now + 1 if end is None else _moment(end, now, "to")
    if lower >= upper:
        raise InvalidRequest("`from` must lie before `to`.", param="from")
    return Span(lower, upper)


def since_of(services: Services, days: float) -> float:
    """So long ago, and at most an hour more (a day, where hours are not kept so long): single rows may have gone."""
    kept = services.settings.retention.hours
    width = float(DAY if 0 < kept <= days else HOUR)
    return (services.now() - days * DAY) // width * width


def left_out(start: float, since: float) -> str:
    """What a page that begins at `start` says where sums are kept from `since` on only; nothing where all is there."""
    if start >= since:
        return ""
    return f"; what was before {datetime.fromtimestamp(since, UTC):%Y-%m-%d} is not kept any more and left out"


def start_of(since: str, now: float) -> float:
    """A time, a date or a duration before now. Raises InvalidRequest."""
    start = _moment(since, now, "since")
    if start > now:
        raise InvalidRequest("`since` must lie before now.", param="since")
    return start


def _moment(text: str, now: float, param: str) -> float:
    ahead = shapes.instant(text, now=now, param=param)
    return shapes.instant(2 * now - ahead, now=now, param=param) if shapes.is_duration(text) else ahead


def reach(principal: Principal) -> dict[str, str]:
    """The condition that keeps a team's key inside its team."""
    return {} if principal.team == ORG_WIDE else {"team": principal.team}


def dimensions(text: str | None) -> list[str]:
    """`team,model` -> names. Raises InvalidRequest that lists the known ones."""
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    if len(names) > _MOST_DIMENSIONS:
        raise InvalidRequest(f"`group_by` takes at most {_MOST_DIMENSIONS} dimensions.", param="group_by")
    known = set(DIMENSIONS)
    for name in names:
        if name not in known and not name.startswith("tag:"):
            raise InvalidRequest(
                f"`group_by`: unknown dimension {name[:60]!r}. Known: {', '.join(DIMENSIONS)}.", param="group_by"
            )
    return names


def filters(request: AnyRequest, principal: Principal) -> dict[str, str]:
    """`team=`, `model=`, `tag:<name>=` … of the query, within what the caller may see.

    Raises InvalidRequest for a parameter that nobody reads: left out of account it would answer another question.
    """
    asked: dict[str, str] = {}
    for name, value in request.query_params.items():
        if name in _FILTERS or (name.startswith("tag:") and name != "tag:"):
            asked[name] = value
        elif name not in _NO_FILTERS:
            known = ", ".join((*_FILTERS, "tag:<name>"))
            raise InvalidRequest(f"Nothing can be filtered by {name[:60]!r}. Known: {known}.", param=name[:60])
    mine = reach(principal)
    if "team" in mine and asked.get("team", mine["team"]) != mine["team"]:
        return {**asked, "team": mine["team"], "source": "\0nothing"}  # another team's rows: an empty answer, no hint
    return {**asked, **mine}


def shown(row: UsageRow) -> Row:
    return {
        **row.group,
        "requests": row.requests,
        "hits": row.hits,
        "hit_rate": round(row.hit_rate, 6),
        "errors": row.errors,
        "error_rate": round(row.error_rate, 6),
        "prompt_tokens": row.prompt,
        "cached_tokens": row.cached,
        "cache_write_tokens": row.cache_write,
        "completion_tokens": row.completion,
        "reasoning_tokens": row.reasoning,
        "total_tokens": row.prompt + row.completion,
        "cost_usd": usd(row.cost_nano),
        "estimated_usd": usd(row.estimated_nano),
        "provider_cache_usd": usd(row.discount_nano),
        "routing_usd": usd(row.routed_nano),
        "audits": row.audits,
        "audit_usd": usd(row.audit_nano),
        "saved_usd": usd(row.saved_nano),
        "corrected_usd": usd(row.corrected_nano),
        "embed_usd": usd(row.embed_nano),
        "net_saved_usd": usd(row.net_saved_nano),
        "p50_ms": row.p50_ms,
        "p95_ms": row.p95_ms,
        "p99_ms": row.p99_ms,
    }


def as_csv(rows: list[Row], group_by: list[str], name: str) -> Response[bytes]:
    """A download with the group's dimensions first and amounts as plain decimals."""
    columns = [*group_by, *_COLUMNS]
    body = csv_bytes(columns, [[_cell(column, row[column]) for column in columns] for row in rows])
    headers = {"content-disposition": f'attachment; filename="{name}.csv"'}
    return Response(body, media_type="text/csv", headers=headers)


def _cell(column: str, value: Cell) -> Cell:
    return Decimal(value) if column.endswith("_usd") and isinstance(value, str) else value


Text = Annotated[str | None, QueryParameter(max_length=200)]


@get(["/usage", "/export/usage"], opt={"role": "viewer", "reads_query": True}, summary="Usage, cost and savings")
async def usage(
    caller: CallerDep,
    group_by: Text = None,
    start: Annotated[str | None, QueryParameter(name="from", max_length=64)] = None,
    end: Annotated[str | None, QueryParameter(name="to", max_length=64)] = None,
    form: Annotated[Literal["json", "csv"] | None, QueryParameter(name="format")] = None,
) -> UsageAnswer | Response[bytes]:
    """Totals per group between `from` and `to` (a time, a date or a duration before now; this month by default).

    `net_saved_usd` is what hits would have cost (`saved_usd`), less what feedback took back (`corrected_usd`) and what
    checking hits has cost (`audit_usd`, a part of `cost_usd`; those `audits` are not counted in `requests`) and the
    encoder's time has (`embed_usd`, no part of `cost_usd`).
    `provider_cache_usd` is what providers' own prompt caches took off `cost_usd`, `routing_usd` what the same
    tokens would have cost at the place asked without a strategy, less what was paid. Percentiles are read off a
    histogram and off by less than 41 % (a factor of 2 below 64 ms). A span may begin and end anywhere; before
    `retention.requests` days ago it must be whole hours (UTC), by user or tag whole days.
    A request that was paid at several places stands whole at the one that answered (`provider`, `model_used`);
    statements and FOCUS have each attempt where it was made.
    Filters: `team`, `project`, `key`, `user`, `model`, `model_used`, `provider`, `operation`, `source`, `cache`,
    `tag:<name>`; any other parameter is refused.
    """
    await caller.services.ledger.catch_up()
    span, names = span_of(start, end, caller.services.now()), dimensions(group_by)
    where = filters(caller.request, caller.principal)
    queries = Queries(caller.services.database)
    await queries.require_kept(span.start)
    rows = [shown(row) for row in await queries.usage(names, span.start, span.end, where)]
    if form == "csv" or (form is None and caller.request.url.path.endswith("/export/usage")):
        return as_csv(rows, names, "nearhit-usage")
    total = rows[0] if not names else shown((await queries.usage((), span.start, span.end, where))[0])
    return UsageAnswer(
        start=shapes.moment(span.start) or "",
        end=shapes.moment(span.end) or "",
        group_by=names,
        data=rows,
        total=total,
    )


class Rebuilt(Struct, kw_only=True):
    """`days`: how many there were with rows."""

    days: int


@post("/usage/rebuild", opt={"role": "admin"}, summary="Make the sums of usage anew", status_code=200)
async def rebuild(caller: CallerDep) -> Rebuilt:
    """From the rows, as far back as they are kept. Needed only after `nearhit ledger verify` found them wrong."""
    if caller.principal.team != ORG_WIDE:
        raise NotAllowed("These are everyone's sums; this key is bound to one team.", code="beyond_team")
    days = await caller.services.ledger.rebuild_sums()
    await note(caller.services, caller.principal, Change("usage.rebuild", "sums", after={"days": days}), ip=caller.ip)
    return Rebuilt(days=days)


def route_handlers() -> list[ControllerRouterHandler]:
    return [control_router("/api/v1", [usage, rebuild], tags=["Usage"])]
