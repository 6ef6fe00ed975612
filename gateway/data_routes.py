"""Every route of the data plane, its pages and probes as one ASGI application over one worker's desks.

Knows: that registering seventy routes takes a tenth of a second, so a process does it once, whoever's desks answer.
Does not know: what any route does, the control plane's.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, cast

from litestar import Litestar
from litestar.handlers import asgi
from litestar.types import HTTPScope, Receive, Scope, Send

from gateway.routes import batches, conversations, files, health, messages, models, responses, tokens
from gateway.routes.access import EXCEPTION_HANDLERS
from gateway.routes.admin import openapi_config
from gateway.routes.desks import Desks, desk_in, with_desks
from gateway.routes.openai import Endpoint

_PARTS = (messages, responses, conversations, files, batches, tokens, models, health)


class Asking(dict[str, Endpoint]):
    """What models are asked by: endpoints by path, without `/v1`."""


class DataRoutes:
    """`largest`: bytes of a body, None: any. `beside`: whose routes the description at `/docs` tells as well."""

    def __init__(
        self, endpoints: Mapping[str, Endpoint], desks: Desks, *, largest: int | None, beside: Litestar
    ) -> None:
        self._desks = {**desks, Asking: Asking(endpoints)}
        self.router = _registered(tuple(endpoints), largest, beside)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI, without a lifespan: whoever made the desks starts and stops what is behind them."""
        await self.router(with_desks(scope, self._desks), receive, send)


@cache
def _registered(paths: tuple[str, ...], largest: int | None, beside: Litestar) -> Litestar:
    return Litestar(
        [*map(_asking, paths), *(handler for part in _PARTS for handler in part.route_handlers())],
        exception_handlers=EXCEPTION_HANDLERS,
        openapi_config=openapi_config(beside=beside),
        logging_config=None,
        request_max_body_size=largest,
    )


def _asking(path: str) -> Any:
    """What answers at `path`, with and without `/v1` (people paste either base URL)."""

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        await desk_in(scope, Asking)[path].serve(cast("HTTPScope", scope), receive, send)

    return asgi([path, f"/v1{path}"], name=path.strip("/").replace("/", "-"), copy_scope=False)(handle)
