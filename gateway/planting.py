"""An answer somebody already has, kept as if it had been fetched: same scope, same price, same rules.

Knows: how a request becomes a query and what its model costs. Does not know: who may do this (routes do), files, HTTP.
Tokens are counted at four bytes each, because no upstream counted them: what a hit saves is an estimate here.
"""

from collections.abc import Callable

import msgspec
from msgspec import Struct

from cache.semantic import SemanticCache
from cache.types import Kept, Query
from gateway.asking import Asking
from gateway.call import Body, Call, Directives, Principal
from gateway.catalog import Catalog, Route
from gateway.charging import FREE
from gateway.errors import InvalidRequest, NotAllowed, NotPriced
from gateway.ids import uuid7
from gateway.prices import PriceBook
from gateway.settings import Settings
from gateway.wire import check_chat
from policies.money import Price, Usage, cost_nano

_BYTES_PER_TOKEN = 4
_encode = msgspec.json.Encoder().encode


class Ground(Struct, frozen=True, kw_only=True):
    """The parts of a worker that are needed."""

    settings: Settings
    catalog: Catalog
    asking: Asking
    cache: SemanticCache
    prices: PriceBook
    now: Callable[[], float]


class Planter:
    """One per worker."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground

    def query(self, principal: Principal, body: Body) -> Query | None:
        """How the cache would see this chat request if `principal` sent it; None where it would not look at it."""
        call = self._call(principal, body)
        found = self._ground.asking.query(call, self._ground.catalog.resolve(call.model))
        return found if isinstance(found, Query) else None

    def names(self) -> dict[str, str]:
        """A name to ask by for everywhere a model leads, as the cache tells them apart."""
        catalog = self._ground.catalog
        return {catalog.resolve(name).told: name for name in reversed(catalog.names())}

    async def plant(self, principal: Principal, body: Body, answer: str) -> int | None:
        """Keep `answer` for this chat request of `principal`; the entry's id, None when it was not kept.

        Raises InvalidRequest for a request the cache may not keep, NotAllowed, NotFound and NotPriced as a real one.
        """
        call = self._call(principal, body)
        route = self._ground.catalog.resolve(call.model)
        if principal.models is not None and call.model not in principal.models:
            raise NotAllowed(f"This key may not use the model `{call.model}`.", param="model")
        query = self._ground.asking.query(call, route)
        if not isinstance(query, Query):
            raise InvalidRequest(f"Such a request is never kept: {query.reason}.", code="not_kept")
        usage = Usage(prompt=_tokens(call.size), completion=_tokens(len(answer.encode("utf-8", "replace"))))
        kept = Kept(
            answer=_answer(answer, usage),
            prompt_tokens=usage.prompt,
            completion_tokens=usage.completion,
            cost_nano=cost_nano(usage, self._price(route)),
        )
        return await self._ground.cache.keep(query, kept)

    def _call(self, principal: Principal, body: Body) -> Call:
        check_chat(body)
        now = self._ground.now()
        return Call(
            id=uuid7(),
            operation="chat",
            principal=principal,
            body=body,
            model=str(body["model"]),
            stream=False,
            include_usage=False,
            directives=Directives(),
            received=0.0,
            at=now,
            deadline=0.0,
            size=len(_encode(body.get("messages"))),
        )

    def _price(self, route: Route) -> Price:
        if route.free:
            return FREE
        target, ground = route.targets[0], self._ground
        chosen = ground.settings.providers.get(target.provider)
        kind = chosen.kind if chosen is not None else "local"
        price = ground.prices.price(target.provider, kind, target.model, ground.now())
        if price is None:
            raise NotPriced(f"There is no price for {target}. Set one with `nearhit prices set {target} IN OUT`.")
        return price


def _tokens(size: int) -> int:
    return -(-size // _BYTES_PER_TOKEN)


def _answer(text: str, usage: Usage) -> bytes:
    """The canonical body, as `gateway.keeping` makes it of an upstream's answer."""
    message = {"role": "assistant", "content": text}
    body = {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": usage.prompt,
            "completion_tokens": usage.completion,
            "total_tokens": usage.total,
        },
    }
    return _encode(body)
