"""LM Studio's local server.

Does not know: the language (`gateway.upstream.openai_http`), prices, retries.
"""

from gateway.upstream.compatible import Builder, Service
from gateway.upstream.openai_http import Manner
from gateway.upstream.openai_http import SpokenConfig as Config
from gateway.upstream.quirks import OPENAIS_OWN, Quirks

__all__ = ["Config", "build"]

_QUIRKS = Quirks(
    renamed={"max_completion_tokens": "max_tokens"},
    dropped=OPENAIS_OWN | {"user"},
    refused=frozenset({"functions", "audio", "prediction", "logprobs", "top_logprobs"}),
    one_choice=True,
    developer=False,
    empties=True,
)
build = Builder(Service(base="http://127.0.0.1:1234/v1", keyed=False, manner=Manner(quirks=_QUIRKS)))
