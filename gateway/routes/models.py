"""GET /v1/models and /v1/models/{id}: the names this key may ask for, in OpenAI's shape or in Anthropic's.

Does not know where they lead.
"""

from datetime import UTC, datetime
from typing import Any

from litestar import get
from litestar.params import FromPath

from gateway.auth import Keyring
from gateway.catalog import Catalog
from gateway.errors import NotAllowed
from gateway.routes.asker import AnyRequest, identified
from gateway.routes.desks import desk

_ANTHROPIC = "anthropic-version"
# Their client's type has these always: what a name may lead to says nothing of one model's limits or end.
_UNTOLD = dict.fromkeys(("capabilities", "deprecated_at", "line", "max_input_tokens", "max_tokens", "retires_at"))


class Listing:
    """`created`: seconds since the epoch of this process's start; both shapes want one.

    A client that names an `anthropic-version` gets Anthropic's shape, in one page.
    """

    def __init__(self, catalog: Catalog, keyring: Keyring, created: int) -> None:
        self._catalog = catalog
        self._keyring = keyring
        self._created = created

    async def all(self, request: AnyRequest) -> dict[str, object]:
        principal = await identified(self._keyring, request.scope)
        names = [name for name in self._catalog.names() if principal.models is None or name in principal.models]
        rows = [self._model(name, request) for name in names]
        if _ANTHROPIC not in request.headers:
            return {"object": "list", "data": rows}
        first, last = (names[0], names[-1]) if names else (None, None)
        return {"data": rows, "has_more": False, "first_id": first, "last_id": last}

    async def one(self, request: AnyRequest, name: str) -> dict[str, object]:
        principal = await identified(self._keyring, request.scope)
        self._catalog.resolve(name)
        if principal.models is not None and name not in principal.models:
            raise NotAllowed(f"This key may not use the model `{name}`.", param="model")
        return self._model(name, request)

    def _model(self, name: str, request: AnyRequest) -> dict[str, object]:
        if _ANTHROPIC in request.headers:
            at = datetime.fromtimestamp(self._created, UTC).isoformat().replace("+00:00", "Z")
            told = {"type": "model", "id": name, "display_name": name, "created_at": at}
            return {**told, "lifecycle": "active", **_UNTOLD}  # a name that is gone is not listed
        provider = name.partition("/")[0] if "/" in name else "nearhit"
        return {"id": name, "object": "model", "created": self._created, "owned_by": provider}


def route_handlers() -> list[Any]:
    """With and without `/v1`; ids may contain slashes."""

    @get(["/v1/models", "/models"])
    async def list_models(request: AnyRequest) -> dict[str, object]:
        return await desk(Listing, request).all(request)

    @get(["/v1/models/{name:path}", "/models/{name:path}"])
    async def get_model(request: AnyRequest, name: FromPath[str]) -> dict[str, object]:
        return await desk(Listing, request).one(request, name.removeprefix("/"))

    return [list_models, get_model]
