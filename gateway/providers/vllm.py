"""vLLM's server. Tenants are kept apart in its prefix cache by `cache_salt`; an aborted request ends with `abort`.

It stops within a step of the connection's end, and counts in every event of a stream what it has used so far.

Does not know: the language (`gateway.upstream.openai_http`), prices, retries, its load (`gateway.fleet_load`).
"""

from gateway.upstream.compatible import Builder, Service
from gateway.upstream.openai_http import Manner
from gateway.upstream.openai_http import SpokenConfig as Config
from gateway.upstream.quirks import Quirks

__all__ = ["Config", "build"]

_QUIRKS = Quirks(
    refused=frozenset({"functions", "audio", "web_search_options"}),  # it answers as if they were not there
    empties=True,
    reasoning="reasoning",
    broken=frozenset({"abort", "error"}),
)
_MANNER = Manner(quirks=_QUIRKS, isolation="cache_salt", counts_along="each")
build = Builder(
    Service(base="http://127.0.0.1:8000/v1", keyed=False, manner=_MANNER, billing="stops-on-close", tokenizes=True)
)
