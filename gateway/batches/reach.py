"""Which models lie at a provider with a batch service of its own that is to be used, and what such requests may cost.

Knows: where a name leads, the setting `batch: own`. Does not know: lines, files, SQL, any service's protocol.
"""

from msgspec import Struct

from gateway.attempts import Attempts
from gateway.call import Call
from gateway.catalog import Catalog, Target
from gateway.errors import GatewayError, InvalidRequest
from gateway.ledger import AttemptPlan, Ledger
from gateway.providers import Sending
from gateway.upstream.batching import Batching, batching_of
from gateway.upstreams import Upstreams
from policies.money import usd


class Reach(Struct, frozen=True, kw_only=True):
    """One per worker."""

    catalog: Catalog
    upstreams: Upstreams
    attempts: Attempts
    ledger: Ledger

    @property
    def is_any(self) -> bool:
        """Whether any provider is set to it."""
        return any(chosen.batch == "own" for chosen in self.upstreams.settings.providers.values())

    def where(self, model: str) -> Target | None:
        """The one place this name leads to, where batches are to go to its own service."""
        try:
            targets = self.catalog.resolve(model).targets
        except GatewayError:
            return None  # told when the line is run
        chosen = self.upstreams.settings.providers.get(targets[0].provider)
        return targets[0] if len(targets) == 1 and chosen is not None and chosen.batch == "own" else None

    def service(self, provider: str) -> Batching | None:
        """None: it is no longer configured."""
        return batching_of(self.upstreams.providers.get(provider))

    def quote(self, call: Call, target: Target) -> tuple[AttemptPlan, Sending]:
        """The most it can cost in a batch, and the request. Raises GatewayError for what cannot be sent."""
        if call.need is not None:
            raise call.need.refusal()
        plan, sending = self.attempts.apart(call, self.catalog.resolve(call.model), target)
        cannot = getattr(self.upstreams.of(target), "cannot", None)
        if cannot is not None and (what := cannot(call.operation, call.body, call.native)):
            raise InvalidRequest(f"{target} would refuse `{what}`.", param=what, code="unsupported_parameter")
        most = call.directives.max_cost_nano
        if most is not None and plan.reserve_nano > most:
            could = usd(plan.reserve_nano)
            raise InvalidRequest(
                f"This request could cost up to {could} USD; x-nearhit-max-cost-usd allows {usd(most)}.",
                param="x-nearhit-max-cost-usd",
                code="max_cost_exceeded",
            )
        return plan, sending
