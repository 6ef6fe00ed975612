"""NVIDIA Dynamo's frontend. It answers 400 to fields it does not know; its own are in `nvext`, which is passed on.

What of OpenAI's fields it does not know and changes no answer is left out; what does and would be passed over in
silence, or told as a fault of the server (501), is refused here. Tenants are kept apart in the caches of its
workers by `cache_salt`. It stops, and stops its worker, when the connection ends, and counts in every event. Errors
are the object itself, with a status as `code` and more in `details`: 529 `Overloaded` (503 at older ones) is
told while all of its workers are busy. Does not know: the language (`gateway.upstream.openai_http`), prices, retries,
its load (`gateway.fleet_load`).
Sources: Dynamo's frontend guide, its metrics catalog, and of its source `lib/llm/src`: `http/service/openai.rs`,
`protocols/openai/validate.rs` (1.x).
"""

from gateway.upstream.compatible import Builder, Service
from gateway.upstream.openai_http import Manner
from gateway.upstream.openai_http import SpokenConfig as Config
from gateway.upstream.quirks import Quirks

__all__ = ["Config", "build"]

_QUIRKS = Quirks(
    dropped=frozenset({"prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "safety_identifier"}),
    refused=frozenset({"functions", "audio", "web_search_options", "verbosity", "suffix", "echo"}),
    operations=frozenset({"chat", "completion", "embedding"}),
    empties=True,
    broken=frozenset({"error"}),
)
_MANNER = Manner(quirks=_QUIRKS, isolation="cache_salt", counts_along="all")
build = Builder(Service(base="http://127.0.0.1:8000/v1", keyed=False, manner=_MANNER, billing="stops-on-close"))
