"""The dashboard's door: a session cookie instead of a key, a CSRF token on every change, pages instead of JSON errors.

Knows: cookies, origins, which role a page needs (`opt={"role": …}`, as in `access`; `anyone` marks what is open).
Does not know: what pages show.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast
from urllib.parse import urlsplit

from litestar import Response, Router
from litestar.datastructures import Cookie, FormMultiDict
from litestar.di import NamedDependency, Provide
from litestar.handlers import BaseRouteHandler
from litestar.types import ControllerRouterHandler

from gateway.auth import ORG_WIDE, ROLES, may
from gateway.call import Principal, Role
from gateway.errors import GatewayError, Internal, NotAllowed, Unauthorized
from gateway.routes import access
from gateway.routes.access import AnyRequest, Connection, as_gateway_error, declared, peer, services_of
from gateway.services import Services
from gateway.web.pages import HEADERS, render
from gateway.web.sessions import ABSOLUTE, Opened, Sessions, csrf_matches
from gateway.web.sheet import Cell, csv_bytes

_SECURE_NAME = "__Host-nearhit"
_PLAIN_NAME = "nearhit"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_LONGEST_ADDRESS = 2_000
# What every answer behind the door has unless it says otherwise, sheets included: what a session's reader may see is
# kept by no cache on the way, and there are some that keep whatever is called `.csv`.
_OF_ALL = {name: HEADERS[name] for name in ("cache-control", "x-content-type-options")}
NAVIGATION: tuple[tuple[str, str, Role], ...] = (
    ("/ui", "Overview", "viewer"),
    ("/ui/live", "Live", "viewer"),
    ("/ui/requests", "Requests", "viewer"),
    ("/ui/spend", "Spend", "viewer"),
    ("/ui/savings", "Savings", "viewer"),
    ("/ui/budgets", "Budgets", "viewer"),
    ("/ui/statements", "Statements", "viewer"),
    ("/ui/anomalies", "Anomalies", "viewer"),
    ("/ui/calculator", "Calculator", "viewer"),
    ("/ui/prices", "Prices", "viewer"),
    ("/ui/exports", "Exports", "finance"),
    ("/ui/cache", "Cache", "viewer"),
    ("/ui/upstreams", "Upstreams", "viewer"),
    ("/ui/engine", "Engine", "viewer"),
    ("/ui/keys", "Keys", "operator"),
    ("/ui/policies", "Policies", "operator"),
    ("/ui/audit", "Audit", "admin"),
    ("/docs", "API", "viewer"),
)


_OF_EVERY_TEAM = ("/ui/policies", "/ui/audit")  # closed to whoever is bound to one, whatever their role there


class SignInNeeded(Unauthorized):
    """No session, or one that is over."""


def secure(connection: Connection) -> bool:
    """Cookies travel over TLS only, except to this very machine, where plain HTTP is the default."""
    host = urlsplit(f"//{connection.headers.get('host', '')}").hostname
    return connection.scope["scheme"] == "https" or host not in _LOOPBACK


def cookie_name(connection: Connection) -> str:
    """`__Host-` makes browsers refuse one that was set by another host or without TLS."""
    return _SECURE_NAME if secure(connection) else _PLAIN_NAME


def session_cookie(connection: Connection, token: str) -> Cookie:
    """The cookie that carries a session; an empty token takes it back."""
    return Cookie(
        key=cookie_name(connection),
        value=token,
        path="/",
        max_age=int(ABSOLUTE) if token else 0,
        httponly=True,
        secure=secure(connection),
        samesite="strict",
    )


def same_origin(connection: Connection) -> bool:
    """Whether our own page sent this. Browsers say so themselves; older ones name the page's origin."""
    site = connection.headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = connection.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == connection.headers.get("host")


async def guard(connection: Connection, handler: BaseRouteHandler) -> None:
    """Find the session, then compare with the page's role. Raises SignInNeeded, NotAllowed."""
    role = handler.opt.get("role")
    if role == "anyone":
        return
    if role not in ROLES or role == "app":
        raise NotAllowed("This page is closed: it declares no role.", code="route_closed")
    token = connection.cookies.get(cookie_name(connection), "")
    used = not connection.scope["path"].startswith("/ui/parts/")
    opened = await Sessions(services_of(connection)).find(token, used=used)
    if opened is None:
        raise SignInNeeded("Sign in to see this page.")
    connection.scope["user"] = opened
    if not may(opened.principal, cast("Role", role)):
        raise NotAllowed(f"This page needs the role {role!r} or higher; yours is {opened.principal.role!r}.")


class Visitor:
    """Who looks at a page, and what pages are made from."""

    def __init__(self, request: AnyRequest) -> None:
        self.request = request
        self.services: Services = services_of(request)
        self.opened = cast("Opened", request.scope["user"])
        self.principal: Principal = self.opened.principal
        self.ip = peer(request)

    async def form(self) -> dict[str, str]:
        """The fields of a change, after its origin and its CSRF token were checked. Raises NotAllowed."""
        fields = text_fields(await self.request.form())
        if not same_origin(self.request) or not csrf_matches(self.opened, fields.get("csrf", "")):
            raise NotAllowed("This form is too old or came from elsewhere. Reload the page and try again.")
        return fields

    def page(self, template: str, *, status: int = 200, **context: object) -> Response[bytes]:
        """A whole page with what every page has."""
        return html(render(template, **self.common(), **context), status)

    def go(self, path: str) -> Response[bytes]:
        """On to another page, after a change that worked."""
        return Response(b"", status_code=303, headers={**HEADERS, "location": path})

    def common(self) -> dict[str, object]:
        here = self.request.url.path
        return {
            "who": self.principal,
            "csrf": self.opened.csrf,
            "here": "/" + "/".join(here.strip("/").split("/")[:2]),
            "navigation": [item for item in NAVIGATION if self._opens(item)],
            "base": _to_copy(self.request),
        }

    def _opens(self, item: tuple[str, str, Role]) -> bool:
        return may(self.principal, item[2]) and (item[0] not in _OF_EVERY_TEAM or self.principal.team == ORG_WIDE)


VisitorDep = NamedDependency[Visitor]


def provide_visitor(request: AnyRequest) -> Visitor:
    return Visitor(request)


def text_fields(form: FormMultiDict) -> dict[str, str]:
    """Fields of an ordinary form; files are not expected and left out."""
    return {key: value.strip() for key, value in dict(form).items() if isinstance(value, str)}


def base_url(connection: Connection) -> str:
    """This gateway as the reader's browser reaches it."""
    host = connection.headers.get("host", "127.0.0.1:8080")
    return f"{connection.scope['scheme']}://{host}"


def _to_copy(connection: Connection) -> str:
    """The same for an example that somebody copies, key and all: over TLS where the browser came over it, though the
    proxy that took it off says nothing that is believed.
    """
    url = base_url(connection)
    over_tls = secure(connection) and not _open_air(connection)
    return "https" + url.removeprefix("http") if over_tls and url.startswith("http:") else url


def html(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response[bytes]:
    return Response(body, status_code=status, media_type="text/html", headers={**HEADERS, **(headers or {})})


def spreadsheet(columns: Sequence[str], rows: Iterable[Sequence[Cell]], name: str) -> Response[bytes]:
    """A table as a CSV download."""
    headers = {"content-disposition": f'attachment; filename="nearhit-{name}.csv"', "x-content-type-options": "nosniff"}
    return Response(csv_bytes(columns, rows), media_type="text/csv", headers=headers)


def sign_in_page(connection: Connection, *, problem: str = "", back: str = "/ui", status: int = 200) -> Response[bytes]:
    sso = services_of(connection).sign_on is not None
    return html(render("login.html", problem=problem, next=back, sso=sso, open_air=_open_air(connection)), status)


def _open_air(connection: Connection) -> bool:
    """Whether the browser seems to come over plain HTTP from another machine, where it will not keep our cookie.

    Nothing that a proxy says is believed; but only over TLS (and to this very machine) do browsers send `Sec-Fetch-*`.
    """
    return secure(connection) and connection.scope["scheme"] == "http" and "sec-fetch-site" not in connection.headers


def within_pages(address: str) -> str:
    """Where to go after signing in: only to our own pages, the view that was asked for with them.

    It becomes a header, and on the way over a sign-in provider a cookie: one line, and not a long one.
    """
    path, mark, query = address.partition("?")
    ours = path == "/ui" or (path.startswith("/ui/") and "\\" not in path and "//" not in path)
    if not ours or not all("!" <= letter <= "~" for letter in address):
        return "/ui"
    return path + mark + query if len(address) <= _LONGEST_ADDRESS else path


def _here(request: AnyRequest) -> str:
    """The view somebody without a session asked for; of a form and of a part, the page they stand on."""
    if request.method == "GET" and not request.headers.get("hx-request"):
        query = request.scope["query_string"].decode("latin-1")
        return within_pages(request.url.path + ("?" + query if query else ""))
    page = urlsplit(request.headers.get("referer", ""))
    ours = page.netloc == request.headers.get("host")
    return within_pages(page.path + ("?" + page.query if page.query else "")) if ours else "/ui"


def _signed_out(request: AnyRequest) -> Response[bytes]:
    """The sign-in form, which leads on to the view that was asked for.

    Browsers keep the `strict` cookie back when somebody follows a link on another site: then a page of ours asks for
    the view once more, and the cookie comes along. Only for looking: a change from elsewhere finds nobody signed in.
    """
    cookie, back = request.cookies.get(cookie_name(request)), _here(request)
    if request.headers.get("hx-request"):
        return html(b"", 401, {"hx-redirect": back})
    followed = request.headers.get("sec-fetch-site") == "cross-site" and request.method == "GET"
    if followed and not cookie and request.headers.get("sec-fetch-mode") == "navigate":
        return html(render("onward.html", title="One moment", back=back), 401)
    problem = "Your session is over. Sign in again." if cookie else ""
    return sign_in_page(request, problem=problem, back=back, status=401)


def respond(request: AnyRequest, error: Exception) -> Response[Any]:
    """Any failure as a page: the sign-in form, or what went wrong and a way back."""
    told = as_gateway_error(error)
    if isinstance(told, SignInNeeded):
        return _signed_out(request)
    if isinstance(told, Internal) and request.app.logger is not None:
        request.logger.error("page failed", exc_info=error)
    if request.headers.get("hx-request"):  # a part of a page that is open: it stays as it is
        return html(b"", told.http_status)
    opened = cast("dict[str, object]", request.scope).get("user")
    if not isinstance(opened, Opened):
        return _without_session(request, told)
    return Visitor(request).page("error.html", status=told.http_status, title=_title(told), words=told.message)


def _without_session(request: AnyRequest, told: GatewayError) -> Response[bytes]:
    """While the database is away nobody's session can be looked up: no reason to ask them for their key."""
    opening = request.url.path.startswith(("/ui/login", "/ui/oidc"))
    if told.http_status < 500 or opening:
        return sign_in_page(request, problem=told.message, status=told.http_status)
    words = f"{told.message} Whoever is signed in stays so."
    page = render("away.html", title=_title(told), words=words, back=_here(request), onward="Try again")
    return html(page, told.http_status, dict(told.headers))


def respond_anywhere(request: AnyRequest, error: Exception) -> Response[Any]:
    """What no route answers: as a page where a browser asked for one of ours, else as the API tells it."""
    path, told = request.url.path, as_gateway_error(error)
    reads = "text/html" in request.headers.get("accept", "")
    if not (reads and (path == "/ui" or path.startswith("/ui/"))) or told.http_status not in (404, 405):
        return access.respond(request, error)
    words = "There is no page at this address."
    page = render("away.html", title="Nothing here", words=words, back="/ui", onward="To the overview")
    return html(page, told.http_status, dict(told.headers))


def _title(told: GatewayError) -> str:
    named = {403: "Not for this role", 404: "Nothing here", 400: "That did not work", 503: "Not available now"}
    return named.get(told.http_status, "Something went wrong")


EXCEPTION_HANDLERS: dict[int | type[Exception], Callable[[AnyRequest, Exception], Response[Any]]] = {Exception: respond}


def page_router(path: str, handlers: list[ControllerRouterHandler]) -> Router:
    """A router of pages: guarded, kept out of the API's description."""
    return Router(
        path=path,
        route_handlers=declared(handlers, "anyone"),
        guards=[guard],
        dependencies={"visitor": Provide(provide_visitor, sync_to_thread=False)},
        exception_handlers=EXCEPTION_HANDLERS,
        response_headers=_OF_ALL,
        include_in_schema=False,
    )
