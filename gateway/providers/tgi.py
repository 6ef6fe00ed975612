"""Hugging Face's text-generation-inference (in maintenance). One choice, its own finish reasons, no legacy completions.

Does not know: the language (`gateway.upstream.openai_http`), prices, retries.
"""

from gateway.upstream.compatible import Builder, Service
from gateway.upstream.openai_http import Manner
from gateway.upstream.openai_http import SpokenConfig as Config
from gateway.upstream.quirks import Quirks

__all__ = ["Config", "build"]

_QUIRKS = Quirks(
    renamed={"max_completion_tokens": "max_tokens"},
    dropped=frozenset({"user", "store", "metadata", "service_tier", "safety_identifier", "parallel_tool_calls"}),
    refused=frozenset({"logit_bias", "functions", "audio", "prediction", "reasoning_effort"}),
    one_choice=True,
    operations=frozenset({"chat", "completion"}),
    developer=False,
    finishes={"eos_token": "stop", "stop_sequence": "stop"},
    bare_calls=True,
)
build = Builder(Service(base="http://127.0.0.1:3000/v1", keyed=False, manner=Manner(quirks=_QUIRKS)))
