"""What an attempt is charged by: the price before it is sent, what to hold, and which price its answer was made at.

Knows: service tiers, regions and models that an answer names as having made it, models that a request names for the
service to ask besides, and whether a key is for those. Does not know: budgets, how a charge is posted
(`gateway.ledger`), where prices come from (`gateway.prices`).
"""

from collections.abc import Iterable

from msgspec import Struct

from gateway import errors
from gateway.auth import may_ask
from gateway.call import Body, Call, Principal, tier_in
from gateway.catalog import Route, Target
from gateway.estimate import Bound, named_beside, substitutes
from gateway.ledger import AttemptPlan
from gateway.prices import PriceBook
from gateway.upstreams import Upstreams
from policies.money import Price, bound_nano

_ADAPTERS = ("lora_path", "lora")  # SGLang's and llama.cpp's, which elsewhere are models with names of their own
FREE = Price(id="free", input=0, output=0, cached_input=0, cache_write=0, status="free")


class Charging(Struct, frozen=True):
    """One per worker."""

    upstreams: Upstreams
    prices: PriceBook

    def price(self, call: Call, route: Route, target: Target) -> Price | None:
        if route.free:
            return FREE
        tier, _ = self.tier(call, target)
        kind = self.upstreams.kind(target.provider)
        return self.prices.price(target.provider, kind, target.model, call.at, tier=tier)

    def priced(self, call: Call, route: Route, target: Target) -> Price:
        """The same. Raises NotPriced where nobody knows."""
        if (price := self.price(call, route, target)) is not None:
            return price
        raise errors.NotPriced(
            f"There is no price for {target}. Set one with `nearhit prices set {target} INPUT-USD OUTPUT-USD` "
            f"(per million tokens), or mark the model `free: true` in nearhit.yaml."
        )

    def tier(self, call: Call, target: Target) -> tuple[str, bool]:
        """The service tier it is charged by, and whether the upstream is to be told so by us."""
        tier, told = call.tier, False
        if call.given is not None:
            tier = "batch"
        elif _waits_for_nobody(call):
            kind = self.upstreams.kind(target.provider)
            tier, told = self.prices.background_tier(target.provider, kind, target.model, call.at)
        region = call.region  # named by hardly anybody
        return (tier if region is None or not self._speaks_messages(target) else tier_in(tier, region)), told

    def _speaks_messages(self, target: Target) -> bool:
        """Elsewhere nobody heeds Anthropic's words: a client could choose its price with them."""
        return getattr(self.upstreams.of(target), "speaks", None) == "messages"

    def reserve(self, call: Call, route: Route, target: Target, price: Price, limits: Bound) -> int:
        """Nano-USD: the most that the model asked may cost, or one that the service is to ask in its place.

        Raises NotPriced where one of those has no price.
        """
        most = worst(limits, price)
        for other in self.in_its_place(call, target):
            most = max(most, worst(limits, self.priced(call, route, other)))
        return most

    def in_its_place(self, call: Call, target: Target) -> list[Target]:
        """The models that the service is to ask where the one that is asked for declines."""
        if call.native is None or not self._speaks_messages(target):
            return []
        return [Target(target.provider, model) for model in substitutes(call)]

    def admit(self, call: Call, route: Route) -> None:
        """Raises NotAllowed where its key is not for the model it asks for, or not for one that may answer instead."""
        may_ask(call.principal, call.model)
        self.check_key(call, route.targets)

    def check_key(self, call: Call, targets: Iterable[Target]) -> None:
        """Whether this key may have what other models answer that the request names for the service to ask.

        Raises NotAllowed, or InvalidRequest where it cannot be told which they are.
        """
        principal = call.principal
        if principal.models is None and call.native is None:
            return
        providers = dict.fromkeys(target.provider for target in targets if self._speaks_messages(target))
        named = named_beside(call) if providers else []
        if principal.models is None:
            return
        for provider in providers:
            for param, model in named:
                if not self._may_ask(principal, f"{provider}/{model}"):
                    raise errors.NotAllowed(
                        f"This key may not use the model `{provider}/{model}`, which `{param}` names.", param=param
                    )
        if adapter := next((name for name in _ADAPTERS if call.body.get(name)), ""):
            raise errors.NotAllowed(
                f"This key is for certain models alone, and `{adapter}` makes another of the one that is asked for.",
                param=adapter,
            )

    def _may_ask(self, principal: Principal, target: str) -> bool:
        """By its own name, or by one of the configuration that leads there."""
        models, names = self.upstreams.settings.models, principal.models or frozenset()
        routes = (models[name].route for name in names if name in models)
        return target in names or any(entry.to == target for route in routes for entry in route)

    def told(self, call: Call, plan: AttemptPlan, data: Body, until_now: Price) -> Price:
        """That of the service tier, region and model which answered, where an event or a body names them.

        A provider may choose others than were asked for. `until_now`: where this one says nothing.
        """
        if plan.price.status == "free" or _TELLING.isdisjoint(data):
            return until_now
        target = Target(plan.provider, plan.model)
        asked, _ = self.tier(call, target)
        tier = data.get("service_tier")
        if call.given is not None or _waits_for_nobody(call) or not isinstance(tier, str):
            # Of a tier that is the operator's own the provider knows nothing.
            mine = asked.partition("+")[0]
            tier = mine if not isinstance(tier, str) or mine in ("batch", "default") else tier
        region = data.get("inference_geo") or asked.partition("+")[2]
        tier, model = tier_in(tier, region), data.get("native_model") or plan.model
        if tier == asked and model == plan.model:
            return plan.price
        kind = self.upstreams.kind(plan.provider)
        found = self.prices.peek(plan.provider, kind, str(model), call.at, tier=tier)
        return plan.price if found is None or found.id == plan.price.id else found


_TELLING = frozenset(("service_tier", "inference_geo", "native_model"))


def _waits_for_nobody(call: Call) -> bool:
    return call.background and not call.tier.startswith("fast") and call.body.get("service_tier") in (None, "auto")


def worst(limits: Bound, price: Price) -> int:
    """The most that an attempt within such limits can cost, nano-USD."""
    return bound_nano(limits.input, limits.output, price, limits.searches)
