"""Fireworks. Tenants are kept apart in its prompt cache by `prompt_cache_isolation_key`.

Knows: that its batches are an account's, at an address beside that of its models.
Does not know: the language (`gateway.upstream.openai_http`), prices, retries.
Source of the limits: docs.fireworks.ai/serverless/rate-limits; all are limits of a minute and none tells its reset.
"""

import re

from gateway.allowance import x_ratelimit
from gateway.settings import ProviderSettings
from gateway.upstream.base import Means
from gateway.upstream.batching import Batching
from gateway.upstream.compatible import Builder, CompatibleProvider, Service
from gateway.upstream.exchanges import config_of
from gateway.upstream.fireworks_batches import FireworksBatches
from gateway.upstream.openai_http import Manner, SpokenConfig
from gateway.upstream.quirks import Quirks

_QUIRKS = Quirks(
    renamed={"max_completion_tokens": "max_tokens"},
    dropped=frozenset(
        {
            "store",
            "service_tier",
            "safety_identifier",
            "prompt_cache_key",
            "verbosity",
            "prompt_cache_retention",
            "prompt_cache_options",
        }
    ),
    refused=frozenset({"audio", "functions"}),
    developer=False,
)
_LIMITS = tuple(
    x_ratelimit(what, name, within=60.0)
    for what, name in (
        ("requests", "requests"),
        ("input-tokens", "tokens-prompt"),
        ("uncached-input-tokens", "tokens-cache-adjusted-prompt"),
        ("output-tokens", "tokens-generated"),
    )
)
_MANNER = Manner(quirks=_QUIRKS, limits=_LIMITS, isolation="prompt_cache_isolation_key")
_ACCOUNT = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]*")


class Config(SpokenConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`account`: whose batches `batch: own` makes; the name in `accounts/NAME`."""

    account: str = ""


class FireworksProvider(CompatibleProvider):
    """Obeys gateway.providers.Provider."""

    def __init__(self, name: str, settings: ProviderSettings, service: Service, means: Means) -> None:
        """Raises ValueError when the configuration cannot work or would give the credential away."""
        config = config_of(name, settings, Config)
        if settings.batch == "own" and not _ACCOUNT.fullmatch(config.account):
            raise ValueError(f"providers.{name}: `batch: own` needs `account`, the name of the Fireworks account")
        super().__init__(name, settings, service, means, config)
        self._account = config.account

    def batching(self) -> Batching | None:
        if not self._account:
            return None
        # Models answer under /inference/v1, everything else under /v1.
        base = self._base.removesuffix("/inference/v1").removesuffix("/v1")
        return FireworksBatches(self._line(), f"{base}/v1/accounts/{self._account}", self._prepared)


build = Builder(Service(base="https://api.fireworks.ai/inference/v1", manner=_MANNER), FireworksProvider)
