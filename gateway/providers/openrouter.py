"""OpenRouter. Reasoning comes as `reasoning`, its signed parts stay where they are; errors may come as a finish.

Does not know: the language (`gateway.upstream.openai_http`), prices, retries.
Its own limit (of free models) is told in headers, in refusals inside the error at `metadata.headers`, and ends at an
instant in milliseconds; what a service behind it has left is not told. Source: openrouter.ai/docs/api-reference/limits.
"""

from gateway.allowance import Limit
from gateway.upstream.compatible import Builder, Service
from gateway.upstream.openai_http import Manner
from gateway.upstream.openai_http import SpokenConfig as Config
from gateway.upstream.quirks import Quirks

__all__ = ["Config", "build"]

_ROUTE = "other models stand in the route of a name in nearhit.yaml."
_INSTEAD = {
    "models": f"`models` is not sent to OpenRouter: {_ROUTE}",
    "route": f"`route` is not sent to OpenRouter, which would choose a model by it: {_ROUTE}",
    "preset": f"`preset` is not sent to OpenRouter, where it may name models: {_ROUTE}",
}
_QUIRKS = Quirks(
    reasoning="reasoning",
    broken=frozenset({"error"}),
    # It would answer by another model than the key may ask for, at another price than is held and charged.
    refused=frozenset(_INSTEAD),
    instead=_INSTEAD,
    bare_calls=True,
    operations=frozenset({"chat", "completion"}),
)
_LIMITS = (
    Limit(
        what="requests",
        remaining="x-ratelimit-remaining",
        limit="x-ratelimit-limit",
        reset="x-ratelimit-reset",
        moment="epoch_ms",
    ),
)
_MANNER = Manner(quirks=_QUIRKS, limits=_LIMITS, limits_in_errors=True)
build = Builder(Service(base="https://openrouter.ai/api/v1", manner=_MANNER))
