"""Fireworks. Tenants are kept apart in its prompt cache by `prompt_cache_isolation_key`.

Does not know: the language (`gateway.upstream.openai_http`), prices, retries.
Source of the limits: docs.fireworks.ai/serverless/rate-limits; all are limits of a minute and none tells its reset.
"""

from gateway.allowance import x_ratelimit
from gateway.upstream.compatible import Builder, Service
from gateway.upstream.openai_http import Manner
from gateway.upstream.openai_http import SpokenConfig as Config
from gateway.upstream.quirks import Quirks

__all__ = ["Config", "build"]

_QUIRKS = Quirks(
    renamed={"max_completion_tokens": "max_tokens"},
    dropped=frozenset({"store", "service_tier", "safety_identifier", "prompt_cache_key", "verbosity"}),
    refused=frozenset({"audio", "functions"}),
    developer=False,
)
_LIMITS = tuple(
    x_ratelimit(what, name, within=60.0)
    for what, name in (
        ("requests", "requests"),
        ("input-tokens", "tokens-prompt"),
        ("uncached-input-tokens", "tokens-cache-adjusted-prompt"),
        ("output-tokens", "tokens-generated"),
    )
)
_MANNER = Manner(quirks=_QUIRKS, limits=_LIMITS, isolation="prompt_cache_isolation_key")
build = Builder(Service(base="https://api.fireworks.ai/inference/v1", manner=_MANNER))
