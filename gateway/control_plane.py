"""The control plane and its pages as one ASGI application over one worker's services.

Knows: which paths are its own, and that registering a hundred routes takes a fifth of a second, so a process does it
once, whoever's services are asked. Does not know: what any route does, the data plane.
"""

from functools import cache

from litestar import Litestar
from litestar.types import Receive, Scope, Send

from gateway.routes.access import with_services
from gateway.routes.admin import control_plane, openapi_config, programs_plane
from gateway.routes.visitor import respond_anywhere
from gateway.services import Services

_PATHS = ("/api/v1/", "/ui", "/v1/organization/")


class ControlPlane:
    """`largest`: bytes of a body, None: any. Without `pages` only what programs ask."""

    def __init__(self, services: Services, *, largest: int | None, pages: bool = True) -> None:
        self.services = services
        self.router = _registered(largest, pages)

    @staticmethod
    def owns(path: str) -> bool:
        return path.startswith(_PATHS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI, without a lifespan: whoever made the services starts and stops them."""
        await self.router(with_services(scope, self.services), receive, send)


@cache
def _registered(largest: int | None, pages: bool) -> Litestar:
    return Litestar(
        control_plane() if pages else programs_plane(),
        exception_handlers={Exception: respond_anywhere},
        openapi_config=openapi_config() if pages else None,
        logging_config=None,
        request_max_body_size=largest,
    )
