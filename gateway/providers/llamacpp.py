"""llama.cpp's server. Its own figures (`timings`) are passed on.

Of several answers it counts the first alone, so only one is asked for. Tenants are not kept apart in its prompt cache.
It stops when the connection ends. Does not know: the language (`gateway.upstream.openai_http`), prices, retries.
"""

from gateway.upstream.compatible import Builder, Service
from gateway.upstream.openai_http import Manner
from gateway.upstream.openai_http import SpokenConfig as Config
from gateway.upstream.quirks import Quirks

__all__ = ["Config", "build"]

_QUIRKS = Quirks(
    renamed={"max_completion_tokens": "max_tokens"},
    refused=frozenset({"functions", "audio", "prediction", "suffix", "echo"}),
    one_choice=True,
    one_prompt=True,
    names_tools=False,  # it takes `tool_choice` for `auto` where it is no text
    developer=False,
)
build = Builder(
    Service(base="http://127.0.0.1:8080/v1", keyed=False, manner=Manner(quirks=_QUIRKS), billing="stops-on-close")
)
