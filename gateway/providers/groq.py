"""Groq. What it refuses is in its page on OpenAI compatibility; its reasoning comes as `reasoning`, and the tools that
it runs itself (compound models, browser search) as `executed_tools`, which are charged by their number.

Does not know: the language (`gateway.upstream.openai_http`), prices, retries.
"""

from gateway.upstream.compatible import Builder, Service
from gateway.upstream.openai_batches import OpenAIBatches
from gateway.upstream.openai_http import Manner
from gateway.upstream.openai_http import SpokenConfig as Config
from gateway.upstream.quirks import Quirks

__all__ = ["Config", "build"]

_QUIRKS = Quirks(
    dropped=frozenset(
        {"store", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"}
    ),
    refused=frozenset({"logprobs", "top_logprobs", "logit_bias", "audio", "prediction"}),
    one_choice=True,
    operations=frozenset({"chat", "speech", "transcription", "translation"}),
    message_fields=frozenset({"role", "content", "tool_calls", "tool_call_id"}),
    reasoning="reasoning",
    runs_tools=True,
)
build = Builder(Service(base="https://api.groq.com/openai/v1", manner=Manner(quirks=_QUIRKS, batches=OpenAIBatches)))
