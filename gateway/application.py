"""The ASGI application of a worker: who answers a request, before any router looks at it.

Knows: the paths of the data plane and of the control plane, those under which clients made for other services ask for
the same. Does not know: how the parts are made (`gateway.app`), what they answer.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from litestar import Litestar

from gateway.control_plane import ControlPlane
from gateway.data_routes import DataRoutes
from gateway.routes.openai import DEPLOYMENT
from gateway.server_protocol import Door
from gateway.start_trouble import StartTrouble

# What clients of Groq, Azure, Google and Fireworks put before a path of OpenAI's, whatever their base URL is. A
# deployment's name may be `provider/model`; what is of none stands right below `/openai`.
_THEIRS = re.compile(
    r"/(?:openai/deployments/(?P<deployment>.+?)(?=/(?:chat/completions|completions|embeddings|audio/|images/))"
    r"|openai(?:/v1)?(?=/)|v1beta/openai(?=/)|inference/v1(?=/))"
)
_ELSEWHERE = ("/openai/", "/v1beta/", "/inference/")


class App(Litestar):
    """Litestar for the lifespan alone: requests go to what answers on their path, those to models before any router.

    The endpoints answer every failure themselves, so nothing that Litestar would add is lost; whatever else comes on
    their paths (another method) takes the usual way, to `routed`. `HEAD` is answered as `GET` is (RFC 9110 §9.3.2);
    the server leaves the body out, by its own copy of the scope. `data_plane`: endpoints by path. `doors`: who turns
    newcomers away before that, for a server that asks (`gateway.server_protocol`), and `sockets` what WebSockets are
    spoken on. `control`: what answers on all paths of its own. `drain`: lets go of those who would stay to the end of
    something that goes on without them; called when no request is let in any more.
    """

    data_plane: Mapping[str, Callable[[Any, Any, Any], Awaitable[None]]]
    sockets: Mapping[str, Callable[[Any, Any, Any], Awaitable[None]]]
    doors: Mapping[str, Door]
    control: ControlPlane
    routed: DataRoutes
    trouble: StartTrouble
    drain: Callable[[], None]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """ASGI."""
        path: str = scope.get("path", "")  # a lifespan has none
        method = scope.get("method")
        endpoint = self.data_plane.get(path) if method == "POST" else None
        if endpoint is not None:
            await endpoint(scope, receive, send)
            return
        if path.startswith(_ELSEWHERE):
            scope[DEPLOYMENT] = deployment_of(path)
            path = scope["path"] = as_openais(path)
        if scope["type"] == "websocket":
            await self.sockets[path](scope, receive, send)  # the server lets no other in
            return
        if scope["type"] == "lifespan":
            await super().__call__(scope, receive, self.trouble.told(send))
            return
        endpoint = self.data_plane.get(path) if method == "POST" else None
        if endpoint is None:
            if method == "HEAD":
                scope = {**scope, "method": "GET"}
            endpoint = self.control if self.control.owns(path) else self.routed
        await endpoint(scope, receive, send)


def as_openais(path: str) -> str:
    """The path of OpenAI's that is meant; the same where it is none of another service's."""
    theirs = _THEIRS.match(path)  # where it begins: to look for it anywhere takes the square of a path's length
    return path if theirs is None else "/v1" + path[theirs.end() :]


def deployment_of(path: str) -> str | None:
    """What Azure's clients ask for by the path; those that are not OpenAI's own leave it out of the body."""
    theirs = _THEIRS.match(path)
    return None if theirs is None else theirs["deployment"]
