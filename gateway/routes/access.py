"""The control plane's door: who may call which handler, and how every refusal is told.

A handler names the role it needs in `opt={"role": …}`; one without a role is refused, so a forgotten mark closes a
route instead of opening it. A query parameter that the handler does not declare is refused.
Knows: roles, the admin socket, OpenAI's error shape. Does not know: what routes do.
"""

import re
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import msgspec
from litestar import Request, Response, Router
from litestar.connection import ASGIConnection
from litestar.di import NamedDependency, Provide
from litestar.enums import ParamType
from litestar.exceptions import HTTPException, ValidationException
from litestar.handlers import BaseRouteHandler
from litestar.params import QueryParameter
from litestar.types import ASGIApp, ControllerRouterHandler, Receive, Scope, Send
from sqlalchemy.exc import DBAPIError, IntegrityError

from cache.store import StoreDown
from gateway.auth import LOCAL, ROLES, require
from gateway.call import Principal, Role
from gateway.db.session import UNREACHABLE
from gateway.dialects.messages_answer import refusal
from gateway.errors import (
    GatewayError,
    Internal,
    InvalidRequest,
    MethodNotAllowed,
    NotAllowed,
    NotFound,
    Overloaded,
    TooLarge,
)
from gateway.ids import uuid7
from gateway.services import Services

Connection = ASGIConnection[Any, Any, Any, Any]
AnyRequest = Request[Any, Any, Any]

_SOCKET_MARK, _SERVICES = "nearhit.admin_socket", "nearhit.services"
_LONGEST_PROBLEMS = 5
_DATA = "22"  # how SQL's states begin where the value is at fault, not the server
_FIELD = re.compile(r"field `([^`]{1,100})`")
_MISSING = re.compile(r"Missing required query parameter '(\w{1,100})'")
_OUTSIDE = {"form": "format", "start": "from", "end": "to"}  # query parameters whose names are Python's own words


def admin_socket(app: ASGIApp) -> ASGIApp:
    """`app` as it is served on NEARHIT_HOME/run/admin.sock (0600): whoever can open that file is an administrator.

    The mark lives in the ASGI scope, which no client can write. Never serve the result on a network address.
    """

    async def marked(scope: Scope, receive: Receive, send: Send) -> None:
        cast("dict[str, object]", scope)[_SOCKET_MARK] = True
        await app(scope, receive, send)

    return marked


def over_admin_socket(connection: Connection) -> bool:
    return cast("dict[str, object]", connection.scope).get(_SOCKET_MARK) is True


def with_services(scope: Scope, services: Services) -> Scope:
    """The scope of a request that is answered with these services."""
    cast("dict[str, object]", scope)[_SERVICES] = services
    return scope


def services_of(connection: Connection) -> Services:
    """What `with_services` put there."""
    return cast("Services", cast("dict[str, object]", connection.scope)[_SERVICES])


async def guard(connection: Connection, handler: BaseRouteHandler) -> None:
    """Identify, then compare with the handler's role. Raises Unauthorized, NotAllowed."""
    role = handler.opt.get("role")
    if role not in ROLES or role == "app":
        raise NotAllowed("This route is closed: it declares no role.", code="route_closed")
    if over_admin_socket(connection):
        principal = LOCAL
    else:
        principal = await services_of(connection).keyring.identify(connection.scope["headers"], peer(connection) or "")
    require(principal, cast("Role", role))
    connection.scope["user"] = principal
    if not handler.opt.get("reads_query"):
        _refuse_unread(connection, handler)


def _refuse_unread(connection: Connection, handler: BaseRouteHandler) -> None:
    """Raises InvalidRequest for a parameter that is not read: left out of account it would answer another question.

    Handlers with `opt={"reads_query": True}` look at the query themselves.
    """
    known = _asked(handler)
    for name in connection.query_params:
        if name not in known:
            why = f" Known: {', '.join(known)}." if known else ""
            raise InvalidRequest(f"Nothing can be asked for by {name[:60]!r} here.{why}", param=name[:60])


@cache
def _asked(handler: BaseRouteHandler) -> tuple[str, ...]:
    """The query parameters that a handler declares, as clients write them."""
    declared = [(name, field.kwarg_definition) for name, field in handler.parsed_fn_signature.parameters.items()]
    return tuple(kind.name or name for name, kind in declared if isinstance(kind, QueryParameter))


def peer(connection: Connection) -> str | None:
    """The address at the other end of the connection; forwarded-for headers are not believed."""
    return connection.client.host if connection.client else None


class Caller:
    """What every handler of the control plane is given: who asks, from where, and the parts to answer with."""

    def __init__(self, request: AnyRequest) -> None:
        self.request = request
        self.services = services_of(request)
        self.principal = cast("Principal", request.scope["user"])
        self.ip = peer(request)


CallerDep = NamedDependency[Caller]


def provide_caller(request: AnyRequest) -> Caller:
    return Caller(request)


def as_gateway_error(error: Exception) -> GatewayError:
    """Litestar's and msgspec's own errors in our tree; anything else is an internal error without a detail."""
    if isinstance(error, GatewayError):
        return error
    if isinstance(error, ValidationException):
        return _invalid(error)
    if isinstance(error, msgspec.ValidationError):
        return InvalidRequest(str(error))
    if isinstance(error, HTTPException):
        return _of_status(error)
    return _away(error) or Internal("Something went wrong here. The log has the details under this request's id.")


def _away(error: Exception) -> GatewayError | None:
    """A part that does not answer: worth trying again, and nobody's bug. Or one that was asked for what cannot be."""
    if isinstance(error, StoreDown):
        return Overloaded("The cache's store does not answer; nothing was changed.", headers=(("retry-after", "5"),))
    if isinstance(error, DBAPIError) and str(getattr(error.orig, "sqlstate", "")).startswith(_DATA):
        return InvalidRequest("What was sent holds a character that no text here can hold (NUL).", code="invalid_value")
    if isinstance(error, UNREACHABLE) and not isinstance(error, IntegrityError):
        return Overloaded(
            "The database does not answer. Try again in a moment.",
            code="database_unavailable",
            headers=(("retry-after", "2"),),
        )
    return None


def _of_status(error: HTTPException) -> GatewayError:
    if error.status_code == 404:
        return NotFound("There is nothing at this address. GET /docs lists what there is.", code="not_found")
    if error.status_code == 405:
        why = "This address does not answer that method. GET /docs lists what it does answer."
        return MethodNotAllowed(why, headers=tuple((error.headers or {}).items()))  # `allow`, which the router knows
    if error.status_code == 413:
        return TooLarge("The request body is larger than this server accepts (server.max_body).")
    return InvalidRequest(error.detail) if error.status_code < 500 else Internal("Something went wrong here.")


def _invalid(error: ValidationException) -> InvalidRequest:
    """Name each wrong field, first one as `param`."""
    raw: object = error.extra
    found = cast("list[dict[str, object]]", raw) if isinstance(raw, list) else []
    problems = [_problem(_named(item), str(item.get("message") or "")) for item in found]
    if not problems:
        missing = _MISSING.match(error.detail)
        return InvalidRequest(missing[0] + "." if missing else error.detail, param=missing[1] if missing else None)
    words = "; ".join(f"`{key}`: {text}" if key else text for key, text in problems[:_LONGEST_PROBLEMS])
    return InvalidRequest(words, param=problems[0][0] or None)


def _named(item: dict[str, object]) -> str:
    """What the caller calls it."""
    key = str(item.get("key") or "")
    return _OUTSIDE.get(key, key) if item.get("source") == ParamType.QUERY else key


def _problem(key: str, text: str) -> tuple[str, str]:
    """For a missing or unknown field Litestar names the whole body; the field's own name stands in the words."""
    if key == "data":
        field = _FIELD.search(text)
        return (field[1] if field else "", text)
    return key, text


def respond(request: AnyRequest, error: Exception) -> Response[Any]:
    """Any failure as `{"error": {message, type, param, code}}`, and as Anthropic tells it to a client of theirs."""
    told = as_gateway_error(error)
    if isinstance(told, Internal):
        request.logger.error("control plane failed", exc_info=error) if request.app.logger else None
    headers = {**dict(told.headers), "cache-control": "no-store"}
    status, body = told.http_status, told.body()
    if "anthropic-version" in request.headers:
        request_id = uuid7()
        headers |= {"x-request-id": request_id, "request-id": request_id}
        status, body = refusal(told, request_id)
    return Response(body, status_code=status, media_type="application/json", headers=headers)


EXCEPTION_HANDLERS: dict[int | type[Exception], Callable[[AnyRequest, Exception], Response[Any]]] = {Exception: respond}


def declared(handlers: list[ControllerRouterHandler], *also: str) -> list[ControllerRouterHandler]:
    """The handlers as given. Raises ValueError for one without a role, so that the application does not even start."""
    known = {*ROLES[1:], *also}
    for handler in handlers:
        if not isinstance(handler, BaseRouteHandler) or handler.opt.get("role") not in known:
            raise ValueError(f"{handler} declares no role: opt={{'role': …}} with one of {', '.join(sorted(known))}")
    return handlers


def control_router(path: str, handlers: list[ControllerRouterHandler], *, tags: list[str]) -> Router:
    """A router whose every handler is guarded and answers errors in OpenAI's shape."""
    return Router(
        path=path,
        route_handlers=declared(handlers),
        guards=[guard],
        dependencies={"caller": Provide(provide_caller, sync_to_thread=False)},
        exception_handlers=EXCEPTION_HANDLERS,
        response_headers={"cache-control": "no-store", "x-content-type-options": "nosniff"},
        tags=tags,
    )
