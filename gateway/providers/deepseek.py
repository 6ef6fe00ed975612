"""DeepSeek. No choices beside the first; cached tokens come as `prompt_cache_hit_tokens`, which is read anyway.

Does not know: the language (`gateway.upstream.openai_http`), prices, retries.
It has no rate limits to tell of (api-docs.deepseek.com/quick_start/rate_limit): a busy service lets requests wait.
"""

from gateway.upstream.compatible import Builder, Service
from gateway.upstream.openai_http import Manner
from gateway.upstream.openai_http import SpokenConfig as Config
from gateway.upstream.quirks import OPENAIS_OWN, Quirks

__all__ = ["Config", "build"]

_QUIRKS = Quirks(
    renamed={"max_completion_tokens": "max_tokens"},
    dropped=OPENAIS_OWN | {"user"},
    refused=frozenset({"logit_bias", "seed", "functions", "audio", "prediction"}),
    one_choice=True,
    operations=frozenset({"chat"}),
    developer=False,
    broken=frozenset({"insufficient_system_resource"}),
)
build = Builder(Service(base="https://api.deepseek.com/v1", manner=Manner(quirks=_QUIRKS, limits=())))
