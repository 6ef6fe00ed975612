"""`/ui/oidc`: signing in with an OpenID Connect provider, when one is configured.

Knows: the two addresses, the cookie between them, the session that follows. Does not know: the protocol
(`gateway.oidc`), how sessions are kept.
"""

from litestar import Response, get
from litestar.datastructures import Cookie
from litestar.types import ControllerRouterHandler

from gateway.audit import Change, said_by
from gateway.call import Principal
from gateway.errors import GatewayError, NotFound
from gateway.oidc import LIFETIME, Person, SignOn
from gateway.routes.access import AnyRequest, Connection, peer, services_of
from gateway.routes.visitor import base_url, html, page_router, secure, session_cookie, sign_in_page, within_pages
from gateway.web.pages import HEADERS, render
from gateway.web.sessions import Sessions

_BACK = "/ui/oidc/back"
_COOKIE = "nearhit-oidc"


def _login_cookie(connection: Connection, sealed: str) -> Cookie:
    """`lax`, because the provider's page leads back here; it opens nothing by itself."""
    return Cookie(
        key=_COOKIE,
        value=sealed,
        path="/ui/oidc",
        max_age=int(LIFETIME) if sealed else 0,
        httponly=True,
        secure=secure(connection),
        samesite="lax",
    )


def _sign_on(connection: Connection) -> SignOn:
    if (found := services_of(connection).sign_on) is None:
        raise NotFound("No sign-in provider is configured here.", code="not_found")
    return found


def _redirect(connection: Connection, sign_on: SignOn) -> str:
    return sign_on.settings.redirect_url or base_url(connection) + _BACK


@get("/oidc", opt={"role": "anyone"})
async def begin(request: AnyRequest) -> Response[bytes]:
    """On to the provider."""
    sign_on = _sign_on(request)
    back = within_pages(request.query_params.get("next", ""))
    address, sealed = await sign_on.begin(back=back, redirect=_redirect(request, sign_on))
    headers = {**HEADERS, "location": address}
    return Response(b"", status_code=303, headers=headers, cookies=[_login_cookie(request, sealed)])


@get("/oidc/back", opt={"role": "anyone"})
async def back(request: AnyRequest) -> Response[bytes]:
    """From the provider: a session, or why not."""
    sign_on = _sign_on(request)
    query = {name: value for name, value in request.query_params.items() if isinstance(value, str)}
    try:
        person = await sign_on.finish(request.cookies.get(_COOKIE, ""), query, _redirect(request, sign_on))
    except GatewayError as error:
        return sign_in_page(request, problem=error.message, status=error.http_status)
    return await _opened(request, person)


async def _opened(request: AnyRequest, person: Person) -> Response[bytes]:
    """The session's cookie is `strict`: it is not sent along a chain of redirects that began at the provider, so this
    is a page of ours that leads on by itself."""
    services = services_of(request)
    principal = Principal(key_id=person.actor, team=person.team, project="", role=person.role)
    after: dict[str, object] = {"role": person.role, "team": person.team or None}
    said = said_by(services, principal, Change("session.open", person.actor, after=after), peer(request))
    token = await Sessions(services).open(principal, said, person=True)
    answer = html(render("onward.html", title="Signed in", back=person.back))
    answer.cookies.extend([session_cookie(request, token), _login_cookie(request, "")])
    return answer


def route_handlers() -> list[ControllerRouterHandler]:
    return [page_router("/ui", [begin, back])]
