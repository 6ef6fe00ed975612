"""xAI. Counts reasoning tokens beside the completion tokens, not among them; both are charged as output.

Does not know: the language (`gateway.upstream.openai_http`), prices, retries.
Its limits count by the minute (docs.x.ai/developers/rate-limits), which names no headers: OpenAI's are read.
"""

from gateway.allowance import x_ratelimit
from gateway.upstream.compatible import Builder, Service
from gateway.upstream.openai_http import Manner
from gateway.upstream.openai_http import SpokenConfig as Config
from gateway.upstream.quirks import OPENAIS_OWN, Quirks
from gateway.upstream.xai_batches import XAIBatches

__all__ = ["Config", "build"]

_QUIRKS = Quirks(
    dropped=OPENAIS_OWN,
    refused=frozenset({"logit_bias", "audio", "prediction"}),
    counts_apart=True,
)
_LIMITS = (x_ratelimit("requests", within=60.0), x_ratelimit("tokens", within=60.0))
_MANNER = Manner(quirks=_QUIRKS, limits=_LIMITS, batches=XAIBatches)
build = Builder(Service(base="https://api.x.ai/v1", manner=_MANNER))
