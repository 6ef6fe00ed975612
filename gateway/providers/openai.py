"""OpenAI and every server that speaks its language, over HTTP.

Knows: OpenAI's address and its own headers. Does not know: the language itself (`gateway.upstream.openai_http`),
prices, retries, other providers.
"""

from gateway.settings import ProviderSettings
from gateway.upstream.base import Means
from gateway.upstream.compatible import Builder, CompatibleProvider, Service
from gateway.upstream.exchanges import config_of
from gateway.upstream.openai_batches import OpenAIBatches
from gateway.upstream.openai_http import Manner, SpokenConfig
from gateway.upstream.quirks import Quirks

# OpenAI itself tells no reasoning in chat completions; half of those who imitate it do, under the shorter name.
_MANNER = Manner(quirks=Quirks(reasoning="reasoning"), batches=OpenAIBatches)


class Config(SpokenConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`organization`, `project`: OpenAI's own."""

    organization: str | None = None
    project: str | None = None


class OpenAIProvider(CompatibleProvider):
    """Obeys gateway.providers.Provider."""

    def __init__(self, name: str, settings: ProviderSettings, service: Service, means: Means) -> None:
        """Raises ValueError when the configuration cannot work or would give the credential away."""
        config = config_of(name, settings, Config)
        super().__init__(name, settings, service, means, config)
        if config.organization:
            self._headers["OpenAI-Organization"] = config.organization
        if config.project:
            self._headers["OpenAI-Project"] = config.project


build = Builder(Service(base="https://api.openai.com/v1", manner=_MANNER), OpenAIProvider)
