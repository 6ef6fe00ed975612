"""`/api/v1/audit`: who changed what, and whether that log is whole; `/api/v1/sessions`: signing somebody out.

Knows: JSON in and out, which rows are asked for. Does not know: how rows are chained (`gateway.audit`).
"""

from typing import Annotated, Any

from litestar import delete, get, post
from litestar.params import FromPath, QueryParameter
from litestar.types import ControllerRouterHandler
from msgspec import Struct
from sqlalchemy import select

from gateway.audit import Change, said_by, verify
from gateway.auth import ORG_WIDE
from gateway.call import Principal
from gateway.db.models import Audit
from gateway.db.session import Also
from gateway.errors import NotAllowed
from gateway.routes import shapes
from gateway.routes.access import CallerDep, control_router
from gateway.services import Services
from gateway.web.sessions import Sessions

Text = Annotated[str | None, QueryParameter(max_length=200)]
LineId = Annotated[int | None, QueryParameter(ge=1, le=2**63 - 1)]  # what a database's integers can hold
Digest = Annotated[str | None, QueryParameter(pattern="^[0-9a-f]{64}$", description="a head that was noted earlier")]


class AuditLine(Struct, kw_only=True):
    """Who changed what."""

    id: int
    at: str | None
    actor: str
    action: str
    target: str
    before: dict[str, object] | None
    after: dict[str, object] | None
    ip: str | None


class AuditAnswer(Struct, kw_only=True):
    """Newest first. `whole` is false when a row was altered or taken out; `broken_at` names the first such place."""

    data: list[AuditLine]
    whole: bool
    broken_at: int | None


class AuditVerdict(Struct, kw_only=True):
    """`head`: the last digest. Note it elsewhere: as `noted` it proves later that no row was cut off since."""

    whole: bool
    broken_at: int | None
    rows: int
    head: str
    noted_is_there: bool


class Ended(Struct):
    """How many sessions there were."""

    ended: int


def of_every_team(principal: Principal) -> None:
    """The log names every team's keys and limits. Raises NotAllowed."""
    if principal.team != ORG_WIDE:
        raise NotAllowed("The audit log covers every team; this key is bound to one.", code="beyond_team")


async def newest(services: Services, limit: int, **asked: Any) -> list[AuditLine]:
    """Newest first. `asked`: `before` (an id), `actor`, `action` (its beginning), `target`; None is anything."""
    wanted = select(Audit.__table__).order_by(Audit.id.desc()).limit(limit)
    if asked.get("before") is not None:
        wanted = wanted.where(Audit.id < asked["before"])
    if asked.get("actor"):
        wanted = wanted.where(Audit.actor == asked["actor"])
    if asked.get("target"):
        wanted = wanted.where(Audit.target == asked["target"])
    if asked.get("action"):
        wanted = wanted.where(Audit.action.startswith(asked["action"], autoescape=True))
    async with services.database.read() as connection:
        rows = (await connection.execute(wanted)).all()
    return [
        AuditLine(
            id=row.id,
            at=shapes.moment(row.at),
            actor=row.actor,
            action=row.action,
            target=row.target,
            before=row.before,
            after=row.after,
            ip=row.ip,
        )
        for row in rows
    ]


@get("/audit", opt={"role": "admin"}, summary="Who changed what")
async def audit(
    caller: CallerDep,
    limit: Annotated[int, QueryParameter(ge=1, le=1000)] = 100,
    before: LineId = None,
    actor: Text = None,
    action: Text = None,
    target: Text = None,
) -> AuditAnswer:
    """The newest changes, and whether the whole chain of them is intact. `action` is a beginning, such as `key.`."""
    of_every_team(caller.principal)
    lines = await newest(caller.services, limit, before=before, actor=actor, action=action, target=target)
    found = await verify(caller.services)
    return AuditAnswer(data=lines, whole=found.broken_at is None, broken_at=found.broken_at)


@post("/audit/verify", opt={"role": "admin"}, summary="Verify the audit log", status_code=200)
async def verify_audit(caller: CallerDep, noted: Digest = None) -> AuditVerdict:
    """Recompute every digest from the first row on."""
    of_every_team(caller.principal)
    found = await verify(caller.services, noted=noted)
    return AuditVerdict(
        whole=found.broken_at is None,
        broken_at=found.broken_at,
        rows=found.rows,
        head=found.head,
        noted_is_there=found.seen,
    )


@delete("/sessions/{actor:path}", opt={"role": "admin"}, summary="Sign somebody out everywhere", status_code=200)
async def end_sessions(caller: CallerDep, actor: FromPath[str]) -> Ended:
    """`actor` as the audit log writes it: a key's id, or `oidc:` and a name. They may sign in again."""
    of_every_team(caller.principal)
    actor = actor.removeprefix("/")

    def said(ended: int) -> Also:
        return said_by(
            caller.services, caller.principal, Change("session.end", actor, after={"ended": ended}), caller.ip
        )

    ended = await Sessions(caller.services).close_all(actor, said)
    return Ended(ended)


def route_handlers() -> list[ControllerRouterHandler]:
    return [control_router("/api/v1", [audit, verify_audit, end_sessions], tags=["Audit"])]
