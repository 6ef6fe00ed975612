"""OpenRouter. Reasoning comes as `reasoning`, its signed parts stay where they are; errors may come as a finish.

Does not know: the language (`gateway.upstream.openai_http`), prices, retries.
"""

from gateway.upstream.compatible import Builder, Service
from gateway.upstream.openai_http import Manner
from gateway.upstream.openai_http import SpokenConfig as Config
from gateway.upstream.quirks import Quirks

__all__ = ["Config", "build"]

_QUIRKS = Quirks(reasoning="reasoning", broken=frozenset({"error"}), operations=frozenset({"chat", "completion"}))
build = Builder(Service(base="https://openrouter.ai/api/v1", manner=Manner(quirks=_QUIRKS)))
