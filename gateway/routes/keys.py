"""`/api/v1/keys`: make, list, rotate and revoke keys. The text of a key leaves here once, in the answer that made it.

Knows: JSON in and out. Does not know: how keys are stored or checked (`gateway.auth`).
"""

from typing import Annotated

from litestar import delete, get, post
from litestar.params import FromPath, JSONBody, QueryParameter
from litestar.types import ControllerRouterHandler
from msgspec import Meta, Struct

from gateway.audit import Asking, Change, note, noted
from gateway.auth import ORG_WIDE, Created, NewKey
from gateway.call import Principal, Role
from gateway.db.session import Also
from gateway.errors import InvalidRequest
from gateway.firstrun import renew_admin_key
from gateway.keyrows import KeyRow
from gateway.routes import shapes
from gateway.routes.access import CallerDep, control_router
from gateway.services import Services

ADMIN_KEY_ID = "admin"
_MOST_MODELS = 200
_NOTHING = (b"", b"{}", b"null")  # bodies of clients that always send one
Overlap = Annotated[str, QueryParameter(description="how long the old secret works on: 1h, 24h, at most 30d")]


class KeyWanted(Struct, kw_only=True, forbid_unknown_fields=True):
    """A new key. `models`: names it may ask for, left out for all. `expires`: a time, a date or a duration (`30d`)."""

    name: str
    team: str = ""
    project: str = "default"
    role: Role = "app"
    models: list[Annotated[str, Meta(min_length=1, max_length=200)]] | None = None
    expires: str | int | float | None = None


class KeyView(Struct, kw_only=True):
    """A key without its secret. `team` is null for a key that reaches every team."""

    id: str
    name: str
    prefix: str
    team: str | None
    project: str | None
    role: Role
    models: list[str] | None
    created: str | None
    expires: str | None
    revoked: str | None
    last_used: str | None
    state: str
    old_works_until: str | None


class KeyMade(KeyView, kw_only=True):
    """`key` is shown this once and cannot be read again."""

    key: str


class KeyList(Struct):
    """Newest first."""

    data: list[KeyView]


def view(row: KeyRow, now: float) -> KeyView:
    why = row.unusable(now)
    return KeyView(
        id=row.id,
        name=row.name,
        prefix=row.prefix,
        team=row.team or None,
        project=row.project or None,
        role=row.role,
        models=None if row.models is None else sorted(row.models),
        created=shapes.moment(row.created),
        expires=shapes.moment(row.expires),
        revoked=shapes.moment(row.revoked),
        last_used=shapes.moment(row.last_used),
        state="active" if why is None else why.removeprefix("has ").removeprefix("been "),
        old_works_until=shapes.moment(row.old_until if row.old_until and row.old_until > now else None),
    )


def made(created: Created, now: float) -> KeyMade:
    shown = view(created.row, now)
    return KeyMade(key=created.key, **{field: getattr(shown, field) for field in shown.__struct_fields__})


def checked(data: KeyWanted, now: float) -> NewKey:
    """The request in the keyring's terms. Raises InvalidRequest naming the field."""
    org_wide = not data.team.strip()
    if org_wide and data.role == "app":
        raise InvalidRequest("`team` is needed: an application's key belongs to one team.", param="team")
    if data.models is not None and not 0 < len(data.models) <= _MOST_MODELS:
        raise InvalidRequest(f"`models` must name 1 to {_MOST_MODELS} models, or be left out for all.", param="models")
    return NewKey(
        name=shapes.label(data.name, param="name"),
        team=ORG_WIDE if org_wide else shapes.name(data.team, param="team"),
        project="" if org_wide else shapes.name(data.project, param="project"),
        role=data.role,
        models=None if data.models is None else frozenset(data.models),
        expires=None if data.expires is None else shapes.instant(data.expires, now=now, param="expires"),
    )


@post("/", opt={"role": "admin"}, summary="Make a key", status_code=201)
async def create_key(caller: CallerDep, data: JSONBody[KeyWanted]) -> KeyMade:
    """The answer holds the key; it is not shown again. A key never grants more than its maker has."""
    return await make(caller, checked(data, caller.services.now()))


async def make(asking: Asking, wanted: NewKey) -> KeyMade:
    """Make a key and note it. Raises what the keyring raises."""

    def said(row: KeyRow) -> Also:
        return noted(asking, Change("key.create", row.id, after=_granted(row)))

    return made(await asking.services.keyring.create(asking.principal, wanted, said), asking.services.now())


def _granted(row: KeyRow) -> dict[str, object]:
    """For the audit log: all that the key opens, and for how long."""
    return {
        "name": row.name,
        "team": row.team,
        "project": row.project,
        "role": row.role,
        "models": None if row.models is None else sorted(row.models),
        "expires": shapes.moment(row.expires),
    }


async def renew(asking: Asking, key_id: str, overlap: float) -> KeyMade:
    """Give a key a new secret and note it. `overlap`: for how many seconds the old one works on."""
    now = asking.services.now()

    def said(row: KeyRow) -> Also:
        after: dict[str, object] = {"old_works_until": view(row, now).old_works_until}
        return noted(asking, Change("key.rotate", key_id, after=after))

    return made(await asking.services.keyring.rotate(asking.principal, key_id, overlap=overlap, also=said), now)


async def revoke(asking: Asking, key_id: str) -> KeyRow:
    """Stop a key and note it."""

    def said(row: KeyRow) -> Also:
        return noted(asking, Change("key.revoke", key_id, before=_granted(row)))

    return await asking.services.keyring.revoke(asking.principal, key_id, said)


@get("/", opt={"role": "operator"}, summary="List keys")
async def list_keys(caller: CallerDep) -> KeyList:
    """Every key the caller may see, newest first, revoked ones included. Never their text."""
    now = caller.services.now()
    return KeyList([view(row, now) for row in await caller.services.keyring.list(caller.principal)])


@delete("/{key_id:str}", opt={"role": "admin"}, summary="Revoke a key", status_code=200)
async def revoke_key(caller: CallerDep, key_id: FromPath[str]) -> KeyView:
    """Within a second in every worker, at once in this one. Revoking twice changes nothing."""
    return view(await revoke(caller, key_id), caller.services.now())


@post("/{key_id:str}/rotate", opt={"role": "admin"}, summary="Give a key a new secret", status_code=200)
async def rotate_key(caller: CallerDep, key_id: FromPath[str], overlap: Overlap = "0m") -> KeyMade:
    """The id stays, so budgets and usage go on. The old secret stops working, after `overlap` if that is given.

    `admin` renews the admin key, whose old text stops at once. Anything else that comes with the request is
    refused: left out of account, what was meant to give applications time would stop them all.
    """
    if (await caller.request.body()).strip() not in _NOTHING:
        raise InvalidRequest("Nothing is read from a body here: `overlap` is a query parameter (`?overlap=24h`).")
    if key_id != ADMIN_KEY_ID:
        return await renew(caller, key_id, shapes.duration(overlap, param="overlap"))
    services = caller.services
    shown = _renewed(services, caller.principal)
    after: dict[str, object] = {"old_works_until": shown.old_works_until}
    await note(services, caller.principal, Change("key.rotate", key_id, after=after), ip=caller.ip)
    return shown


def _renewed(services: Services, principal: Principal) -> KeyMade:
    if principal.team != ORG_WIDE:
        raise InvalidRequest("Only an administrator of the whole installation renews the admin key.", param="key_id")
    try:
        key = renew_admin_key(services.settings)
    except ValueError as error:
        raise InvalidRequest(str(error), param="key_id", code="admin_key_fixed") from error
    services.keyring.forget_key(ADMIN_KEY_ID)
    now = services.now()
    row = KeyRow(id=ADMIN_KEY_ID, name="admin key", hash=b"", team="", project="", role="admin", created=now)
    return made(Created(row, key), now)


def route_handlers() -> list[ControllerRouterHandler]:
    return [control_router("/api/v1/keys", [create_key, list_keys, revoke_key, rotate_key], tags=["Keys"])]
