"""Together. Ends with `eos` where others say `stop`; reasoning comes as `reasoning`.

Does not know: the language (`gateway.upstream.openai_http`), prices, retries.
Source of the limits: docs.together.ai/docs/rate-limits. They are counted by the second; `dynamic` is the rate that it
grants beyond what was promised, from what was asked of late.
"""

from gateway.allowance import Limit
from gateway.upstream.compatible import Builder, Service
from gateway.upstream.openai_http import Manner
from gateway.upstream.openai_http import SpokenConfig as Config
from gateway.upstream.quirks import Quirks
from gateway.upstream.together_batches import TogetherBatches

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
_LIMITS = tuple(
    Limit(
        what=f"{what}{which}",
        remaining=f"x-{counted}limit-remaining{which}",
        limit=f"x-{counted}limit-limit{which}",
        reset="x-ratelimit-reset" if what == "requests" else "",
        within=1.0,
    )
    for what, counted in (("requests", "rate"), ("tokens", "token"))
    for which in ("", "-dynamic")
)
_MANNER = Manner(quirks=_QUIRKS, limits=_LIMITS, batches=TogetherBatches)
build = Builder(Service(base="https://api.together.xyz/v1", manner=_MANNER))
