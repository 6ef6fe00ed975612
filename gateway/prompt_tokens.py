"""How many tokens a request would send to a model: exactly where it runs here or its service counts, else about.

Knows: who can count. Does not know: prices, budgets, dialects; nothing is sent, held or recorded.
"""

from collections.abc import Mapping

from msgspec import Struct

from gateway.call import Call
from gateway.catalog import Catalog
from gateway.errors import NotAllowed, Overloaded, UpstreamFailed, UpstreamRefused
from gateway.estimate import bound
from gateway.providers import Provider, Sending

_PATIENCE = 3.0  # seconds for a service that counts
_OF_THE_SERVICE = (401, 402, 403, 404, 429)  # refusals that say nothing of the request
_BYTES_PER_TOKEN = 3  # of code; of English it is four


class Counted(Struct, frozen=True):
    """`exact` False: estimated by bytes. Agents plan their context by it: rather too much than too little."""

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
            return _estimate(call)
        sending = Sending(
            id=call.id,
            operation=call.operation,
            model=target.model,
            body={**call.body, "model": target.model},
            stream=False,
            tenant="",
            timeout=_PATIENCE,
            idle=_PATIENCE,
            native=call.native,
        )
        try:
            return Counted(await exactly(sending), exact=True)
        except (UpstreamFailed, Overloaded) as failure:
            if isinstance(failure, UpstreamRefused) and failure.upstream_status not in _OF_THE_SERVICE:
                raise
            return _estimate(call)


def _estimate(call: Call) -> Counted:
    return Counted(-(-bound(call, 0, window=lambda: call.size).input // _BYTES_PER_TOKEN), exact=False)
