"""Together. Ends with `eos` where others say `stop`; reasoning comes as `reasoning`.

Does not know: the language (`gateway.upstream.openai_http`), prices, retries.
"""

from gateway.upstream.compatible import Builder, Service
from gateway.upstream.openai_http import Manner
from gateway.upstream.openai_http import SpokenConfig as Config
from gateway.upstream.quirks import Quirks

__all__ = ["Config", "build"]

_QUIRKS = Quirks(
    renamed={"max_completion_tokens": "max_tokens"},
    dropped=frozenset({"store", "metadata", "service_tier", "safety_identifier", "user"}),
    refused=frozenset({"audio", "prediction", "functions"}),
    developer=False,
    finishes={"eos": "stop"},
    reasoning="reasoning",
    empties=True,
)
build = Builder(Service(base="https://api.together.xyz/v1", manner=Manner(quirks=_QUIRKS)))
