"""How many tokens a request would send to a model: exactly where the model runs here, else at most.

Knows: who can count. Does not know: prices, budgets, dialects; nothing is sent, held or recorded.
"""

from collections.abc import Mapping

from msgspec import Struct

from gateway.call import Call
from gateway.catalog import Catalog
from gateway.errors import NotAllowed
from gateway.estimate import bound
from gateway.providers import Provider, Sending


class Counted(Struct, frozen=True):
    """`exact` False: an upper bound, one token for each byte and a template's share for each message."""

    tokens: int
    exact: bool


class Counter:
    """One per worker."""

    def __init__(self, catalog: Catalog, providers: Mapping[str, Provider]) -> None:
        self._catalog = catalog
        self._providers = providers

    async def count(self, call: Call) -> Counted:
        """Raises NotFound, NotAllowed, and what the model here would refuse. The first target of a route counts."""
        allowed = call.principal.models
        route = self._catalog.resolve(call.model)
        if allowed is not None and call.model not in allowed:
            raise NotAllowed(f"This key may not use the model `{call.model}`.", param="model")
        target = route.targets[0]
        exactly = getattr(self._providers[target.provider], "prompt_tokens", None)
        if exactly is None:
            return Counted(bound(call, 0).input, exact=False)
        sending = Sending(
            id=call.id,
            operation=call.operation,
            model=target.model,
            body={**call.body, "model": target.model},
            stream=False,
            tenant="",
            timeout=1.0,
            idle=1.0,
        )
        return Counted(await exactly(sending), exact=True)
