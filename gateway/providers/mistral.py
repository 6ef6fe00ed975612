"""Mistral's platform. Fields, ids and finish reasons of its own; it refuses what it does not know.

Does not know: the language (`gateway.upstream.openai_http`), prices, retries.
The names of its limits are those of a recorded answer (github.com/mistralai/client-ts/issues/169); nothing says when
they are filled again but that they are limits of a minute.
"""

from gateway.allowance import x_ratelimit
from gateway.upstream.compatible import Builder, Service
from gateway.upstream.mistral_batches import MistralBatches
from gateway.upstream.openai_http import Manner
from gateway.upstream.openai_http import SpokenConfig as Config
from gateway.upstream.quirks import Quirks

__all__ = ["Config", "build"]

_QUIRKS = Quirks(
    renamed={"max_completion_tokens": "max_tokens", "seed": "random_seed"},
    dropped=frozenset(
        {
            "user",
            "store",
            "service_tier",
            "safety_identifier",
            "prompt_cache_retention",
            "verbosity",
            "modalities",
            "prompt_cache_options",
        }
    ),
    refused=frozenset({"logit_bias", "logprobs", "top_logprobs", "functions", "audio"}),
    operations=frozenset({"chat", "embedding", "moderation", "transcription"}),
    developer=False,
    message_fields=frozenset({"role", "content", "tool_calls", "tool_call_id", "prefix"}),
    short_ids=True,
    finishes={"model_length": "length"},
    broken=frozenset({"error"}),
    parts=True,
    bare_calls=True,
    empties=True,
)
_LIMITS = (x_ratelimit("requests", "req-minute", within=60.0), x_ratelimit("tokens", "tokens-minute", within=60.0))
# It sends usage with the last event unasked, and refuses stream_options.
_MANNER = Manner(quirks=_QUIRKS, limits=_LIMITS, usage_in_streams=False, batches=MistralBatches)
build = Builder(Service(base="https://api.mistral.ai/v1", manner=_MANNER))
