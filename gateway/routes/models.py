"""GET /v1/models and /v1/models/{id}: the names this key may ask for. Does not know where they lead."""

from typing import Any

from litestar import Request, get
from litestar.datastructures import State
from litestar.params import FromPath

from gateway.auth import Keyring
from gateway.catalog import Catalog
from gateway.errors import NotAllowed

_Asked = Request[Any, Any, State]


class Listing:
    """`created`: seconds since the epoch of this process's start; OpenAI's shape wants one."""

    def __init__(self, catalog: Catalog, keyring: Keyring, created: int) -> None:
        self._catalog = catalog
        self._keyring = keyring
        self._created = created

    async def all(self, request: _Asked) -> dict[str, object]:
        principal = await self._keyring.identify(request.scope["headers"])
        names = [name for name in self._catalog.names() if principal.models is None or name in principal.models]
        return {"object": "list", "data": [self._model(name) for name in names]}

    async def one(self, request: _Asked, name: str) -> dict[str, object]:
        principal = await self._keyring.identify(request.scope["headers"])
        self._catalog.resolve(name)
        if principal.models is not None and name not in principal.models:
            raise NotAllowed(f"This key may not use the model `{name}`.", param="model")
        return self._model(name)

    def _model(self, name: str) -> dict[str, object]:
        provider = name.partition("/")[0] if "/" in name else "nearhit"
        return {"id": name, "object": "model", "created": self._created, "owned_by": provider}


def route_handlers(catalog: Catalog, keyring: Keyring, created: int) -> list[Any]:
    """With and without `/v1`; ids may contain slashes."""
    listing = Listing(catalog, keyring, created)

    @get(["/v1/models", "/models"])
    async def list_models(request: _Asked) -> dict[str, object]:
        return await listing.all(request)

    @get(["/v1/models/{name:path}", "/models/{name:path}"])
    async def get_model(request: _Asked, name: FromPath[str]) -> dict[str, object]:
        return await listing.one(request, name.removeprefix("/"))

    return [list_models, get_model]
