"""Who may use the data plane's stored things, and the lists they are shown in.

Knows: keys, roles, OpenAI's cursors. Does not know: what is listed.
"""

from typing import Any, Protocol, TypeVar, cast

from litestar import Request
from litestar.datastructures import State

from gateway.auth import Keyring
from gateway.call import Principal
from gateway.directives import directives
from gateway.errors import InvalidRequest, NotAllowed

AnyRequest = Request[Any, Any, State]
READERS = frozenset({"viewer", "finance"})
_MOST = 100
_DIGITS = 9


class Identified(Protocol):
    """A row of a list."""

    @property
    def id(self) -> str: ...


Row = TypeVar("Row", bound=Identified)


async def identified(keyring: Keyring, scope: Any) -> Principal:
    """By the key in a request's headers. Raises Unauthorized."""
    client = scope.get("client")
    return await keyring.identify(scope["headers"], client[0] if client else "")


async def asker(keyring: Keyring, scope: Any) -> Principal:
    """Whose request this is. Raises Unauthorized, NotAllowed."""
    client = scope.get("client")
    principal = await keyring.identify(scope["headers"], client[0] if client else "")
    if principal.role in READERS:
        raise NotAllowed(
            f"A key with the role {principal.role!r} reads reports; use an application's key to ask models.",
            code="role_not_allowed",
        )
    return principal


async def changer(keyring: Keyring, scope: Any) -> Principal:
    """Whose request to change something this is. Raises Unauthorized, NotAllowed, InvalidRequest.

    Nothing of it can be rehearsed, and to do it all the same would be the opposite of what was asked for.
    """
    principal = await asker(keyring, scope)
    if directives(scope["headers"]).dry_run:
        why = "Only requests to models can be rehearsed; nothing was changed."
        raise InvalidRequest(why, param="x-nearhit-dry-run", code="invalid_value")
    return principal


def whole(told: str) -> int | None:
    """A number as clients write one, of at most nine digits; None for everything else."""
    return int(told) if told.isascii() and told.isdigit() and len(told) <= _DIGITS else None


def limit_of(request: AnyRequest, default: int, most: int = _MOST) -> int:
    """The query's `limit`. Raises InvalidRequest."""
    told = request.query_params.get("limit")
    if told is None:
        return default
    if (limit := whole(told)) is None or not 1 <= limit <= most:
        raise InvalidRequest(f"'limit' must be a whole number from 1 to {most}.", param="limit", code="invalid_value")
    return limit


def order_of(request: AnyRequest) -> bool:
    """Whether the newest comes first. Raises InvalidRequest."""
    told = request.query_params.get("order", "desc")
    if told not in ("asc", "desc"):
        raise InvalidRequest("'order' must be asc or desc.", param="order", code="invalid_value")
    return told == "desc"


def page(found: list[Row], limit: int, shown: list[dict[str, object]]) -> dict[str, object]:
    """A page of a list; `found` holds one row more than `limit` where there is more."""
    data = shown[:limit]
    first, last = (found[0].id, found[len(data) - 1].id) if data else (None, None)
    return {"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": len(found) > limit}


def after_of(request: AnyRequest) -> str | None:
    return text_of(request, "after")


def text_of(request: AnyRequest, name: str) -> str | None:
    """What the query says there. Raises InvalidRequest for what no id and no name holds (nor PostgreSQL's texts)."""
    told = cast("str | None", request.query_params.get(name))
    if told is not None and not told.isprintable():
        raise InvalidRequest(f"'{name}' holds characters that cannot be printed.", param=name, code="invalid_value")
    return told
