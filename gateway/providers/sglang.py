"""SGLang's server. An aborted request ends with `abort`.

Does not know: the language (`gateway.upstream.openai_http`), prices, retries, its load (`gateway.fleet_load`).
"""

from gateway.upstream.compatible import Builder, Service
from gateway.upstream.openai_http import Manner
from gateway.upstream.openai_http import SpokenConfig as Config
from gateway.upstream.quirks import Quirks

__all__ = ["Config", "build"]

_QUIRKS = Quirks(empties=True, broken=frozenset({"abort"}))
_MANNER = Manner(quirks=_QUIRKS, isolation="cache_salt")
build = Builder(Service(base="http://127.0.0.1:30000/v1", keyed=False, manner=_MANNER, tokenizes=True))
