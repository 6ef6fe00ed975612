"""The dashboard's pages of requests, one request, and keys; changes made from them.

Every change goes through the same functions as the JSON API, so both refuse and record the same things.
Knows: forms and which numbers each page shows. Does not know: SQL, money's rules.
"""

from typing import Annotated, cast

from litestar import Response, get, post
from litestar.params import FromPath, FromQuery, QueryParameter
from litestar.types import ControllerRouterHandler
from msgspec import Struct

from gateway.auth import ROLES, may
from gateway.call import Role
from gateway.db.kept import kept_from
from gateway.db.queries import Queries
from gateway.db.rows import RequestDetail, UsageRow
from gateway.errors import GatewayError
from gateway.keyrows import KeyRow
from gateway.routes import keys as key_routes
from gateway.routes import shapes
from gateway.routes.cache_admin import FeedbackWanted, judge
from gateway.routes.charged_price import price_view
from gateway.routes.requests import answer, detail
from gateway.routes.requests_view import FIELDS, Chosen, read_chosen
from gateway.routes.usage import left_out, month_start, reach
from gateway.routes.visitor import Visitor, VisitorDep, page_router
from gateway.web.pages import HEADERS
from gateway.web.waterfall import waterfall
from gateway.web.why import ending, sentence
from gateway.web.words import DASH, MARKS, millis

_PAGE = 50
_ROLE_WORDS: dict[Role, str] = {
    "app": "calls models, opens nothing here",
    "viewer": "sees usage and requests",
    "finance": "sees costs and exports too",
    "operator": "purges, judges hits, reads cached prompts",
    "admin": "everything",
}
Text = Annotated[str, QueryParameter(max_length=200)]


def moved(path: str) -> Response[bytes]:
    """To another page after a change, so that reloading it does not repeat the change."""
    return Response(b"", status_code=303, headers={**HEADERS, "location": path})


# -- requests --------------------------------------------------------------------------------------------------------


@get("/requests", opt={"role": "viewer"})
async def requests_page(
    visitor: VisitorDep, failed: FromQuery[bool] = False, before: FromQuery[str | None] = None
) -> Response[bytes]:
    """Requests by filter, newest first."""
    services, chosen = visitor.services, asked_for(visitor, failed=failed)
    where = {**chosen.where, **reach(visitor.principal)}
    found = await Queries(services.database).recent_requests(_PAGE + 1, before, where, failed, chosen.span())
    rows = found[:_PAGE]
    narrowed = [(name, value) for name, value in chosen.asked.items() if name not in FIELDS]
    return visitor.page(
        "requests.html",
        rows=rows,
        filters={**chosen.asked, "failed": failed},
        chosen=chosen,
        narrowed=[(name, value, chosen.address(without=name)) for name, value in narrowed],
        marks=list(MARKS),
        models=services.models(),
        query=chosen.address(),
        before=before,
        next_query=chosen.address(before=rows[-1].id) if len(found) > _PAGE else "",
        kept=services.settings.retention.requests,
    )


def asked_for(visitor: Visitor, *, failed: bool) -> Chosen:
    """The view that the address asks for."""
    given = {str(name): str(value) for name, value in visitor.request.query_params.items()}
    return read_chosen(given, visitor.services.now(), failed=failed)


class Timeline(Struct, kw_only=True):
    """What the timeline is drawn against: the whole request, at least as long as its last attempt."""

    whole_ms: float


@get("/requests/{request_id:str}", opt={"role": "viewer"})
async def request_page(visitor: VisitorDep, request_id: FromPath[str], judged: FromQuery[str] = "") -> Response[bytes]:
    """Everything about one request."""
    found = await detail(visitor.services, visitor.principal, request_id)
    told, row = answer(found), found.request
    ends = [step.end_ms or 0.0 for step in told.attempts]
    return visitor.page(
        "request.html",
        id=row.id if row else request_id,
        row=row,
        why=told.why,
        why_words=_why_words(found),
        route=told.route,
        steps=told.attempts,
        bars=waterfall(found.explain or {}, row.total_ms if row else 0.0),
        whole_ms=max([1.0, row.total_ms if row else 0.0, *ends]),
        lines=found.entries,
        prices={name: price_view(price) for name, price in found.prices.items()},
        facts=_facts(found),
        is_hit=bool(row and row.source in ("exact", "semantic")),
        may_judge=may(visitor.principal, "operator"),
        notice=_JUDGED.get(judged, ""),
    )


_JUDGED = {
    "right": "Noted: this hit was right. It counts in the measured wrong-hit rate.",
    "wrong": "Noted: this hit was wrong. The kept answer is out of the cache.",
}


def _why_words(found: RequestDetail) -> str:
    told = found.explain or {}
    row = found.request
    mark = None if row is None else row.cache
    reason, bar = told.get("reason"), told.get("semantic_bar")
    return sentence(
        mark,
        None if reason is None else str(reason),
        None if bar is None else str(bar),
        known=found.explain is not None,
        ended=None if row is None else ending(row.error, row.attempts),
    )


def _facts(found: RequestDetail) -> list[tuple[str, str]]:
    row = found.request
    if row is None:
        return []
    facts = [
        ("Team", row.team or DASH),
        ("Project", row.project or DASH),
        ("Key", row.key_id),
        ("User", row.user or DASH),
        ("Answered by", f"{row.provider}/{row.model_used}" if row.provider else DASH),
        ("Finish reason", row.finish or DASH),
        ("Whole answer", "yes" if row.complete else "no"),
        ("Client left early", "yes" if row.client_gone else "no"),
        ("Per further token", millis(row.tpot_ms)),
        ("Prompt tokens", f"{row.prompt} ({row.cached} of them in the provider's cache)"),
        ("Answer tokens", f"{row.completion} ({row.reasoning} of them reasoning)"),
    ]
    return facts + [(f"Tag {name}", value) for name, value in (row.tags or {}).items()]


@post("/requests/{request_id:str}/feedback", opt={"role": "operator"}, status_code=200)
async def judge_request(visitor: VisitorDep, request_id: FromPath[str]) -> Response[bytes]:
    """A person's verdict on a hit."""
    verdict = (await visitor.form()).get("verdict", "")
    if verdict not in ("wrong", "right"):
        return moved(f"/ui/requests/{request_id}")
    wanted = FeedbackWanted(request_id=request_id, verdict=verdict)
    await judge(visitor.services, visitor.principal, wanted, visitor.ip)
    return moved(f"/ui/requests/{request_id}?judged={verdict}")


# -- keys ------------------------------------------------------------------------------------------------------------


class KeyLine(Struct, kw_only=True):
    """A key as the page shows it."""

    id: str
    name: str
    prefix: str
    team: str
    project: str
    role: str
    models: list[str] | None
    state: str
    created_at: float
    expires_at: float | None
    last_used_at: float | None


def _key_line(row: KeyRow, now: float) -> KeyLine:
    shown = key_routes.view(row, now)
    return KeyLine(
        id=row.id,
        name=row.name,
        prefix=row.prefix,
        team=row.team,
        project=row.project,
        role=row.role,
        models=shown.models,
        state=shown.state,
        created_at=row.created,
        expires_at=row.expires,
        last_used_at=row.last_used,
    )


class TeamLine(Struct, kw_only=True):
    """A team with what it has and did in this month."""

    name: str
    projects: list[str]
    active: int
    month: UsageRow | None


async def _teams(visitor: Visitor, rows: list[KeyRow]) -> list[TeamLine]:
    """Every team that has a key, by name."""
    now = visitor.services.now()
    used = await Queries(visitor.services.database).usage(
        ["team"], month_start(now), now + 1, reach(visitor.principal), latencies=False
    )
    by_team = {row.group["team"]: row for row in used}
    found: list[TeamLine] = []
    for team in sorted({row.team for row in rows if row.team}):
        own = [row for row in rows if row.team == team]
        projects = sorted({row.project for row in own if row.project})
        active = sum(1 for row in own if row.unusable(now) is None)
        found.append(TeamLine(name=team, projects=projects, active=active, month=by_team.get(team)))
    return found


async def _keys_page(
    visitor: Visitor,
    *,
    fresh: key_routes.KeyMade | None = None,
    problem: str = "",
    notice: str = "",
    form: dict[str, str] | None = None,
) -> Response[bytes]:
    now, principal = visitor.services.now(), visitor.principal
    rows = await visitor.services.keyring.list(principal)
    defaults = {"name": "", "team": principal.team, "project": "default", "role": "app", "models": "", "expires": ""}
    return visitor.page(
        "keys.html",
        status=400 if problem else 200,
        keys=[_key_line(row, now) for row in rows],
        teams=await _teams(visitor, rows),
        left_out=left_out(month_start(now), await kept_from(visitor.services.database)),
        fresh=fresh,
        problem=problem,
        notice=notice,
        may_change=may(principal, "admin"),
        roles=[(role, _ROLE_WORDS[role]) for role in ROLES],
        form={**defaults, **(form or {})},
    )


@get("/keys", opt={"role": "operator"})
async def keys_page(visitor: VisitorDep, revoked: Text = "") -> Response[bytes]:
    """Every key, and the form that makes one."""
    return await _keys_page(visitor, notice=f"The key {revoked} is revoked." if revoked else "")


@post("/keys", opt={"role": "admin"}, status_code=200)
async def make_key(visitor: VisitorDep) -> Response[bytes]:
    """Make a key and show it, once."""
    form = await visitor.form()
    models = [name.strip() for name in form.get("models", "").split(",") if name.strip()]
    try:
        wanted = key_routes.checked(
            key_routes.KeyWanted(
                name=form.get("name", ""),
                team=form.get("team", ""),
                project=form.get("project") or "default",
                role=cast("Role", form.get("role", "app")) if form.get("role") in ROLES else "app",
                models=models or None,
                expires=form.get("expires") or None,
            ),
            visitor.services.now(),
        )
        shown = await key_routes.make(visitor, wanted)
    except GatewayError as error:
        return await _keys_page(visitor, problem=error.message, form=form)
    return await _keys_page(visitor, fresh=shown)


@post("/keys/{key_id:str}/rotate", opt={"role": "admin"}, status_code=200)
async def rotate_key(visitor: VisitorDep, key_id: FromPath[str]) -> Response[bytes]:
    """Give a key a new secret and show it, once."""
    overlap = (await visitor.form()).get("overlap") or "0m"
    lasting = shapes.duration(overlap, param="overlap")
    return await _keys_page(visitor, fresh=await key_routes.renew(visitor, key_id, lasting))


@post("/keys/{key_id:str}/revoke", opt={"role": "admin"}, status_code=200)
async def revoke_key(visitor: VisitorDep, key_id: FromPath[str]) -> Response[bytes]:
    """Stop a key."""
    await visitor.form()
    await key_routes.revoke(visitor, key_id)
    return moved(f"/ui/keys?revoked={key_id}")


def route_handlers() -> list[ControllerRouterHandler]:
    handlers: list[ControllerRouterHandler] = [
        requests_page,
        request_page,
        judge_request,
        keys_page,
        make_key,
        rotate_key,
        revoke_key,
    ]
    return [page_router("/ui", handlers)]
