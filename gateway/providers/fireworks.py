"""Fireworks. Tenants are kept apart in its prompt cache by `prompt_cache_isolation_key`.

Does not know: the language (`gateway.upstream.openai_http`), prices, retries.
"""

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
_MANNER = Manner(quirks=_QUIRKS, isolation="prompt_cache_isolation_key")
build = Builder(Service(base="https://api.fireworks.ai/inference/v1", manner=_MANNER))
