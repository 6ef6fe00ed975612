"""OpenAI and every server that speaks its language, over HTTP.

Knows: OpenAI's addresses, its own headers, which of its models take an output limit under the newer name alone. Does
not know: the language itself (`gateway.upstream.openai_http`), prices, retries, other providers.
"""

import re
from urllib.parse import urlsplit

from msgspec.structs import replace

from gateway.call import Body
from gateway.providers import Sending
from gateway.settings import ProviderSettings
from gateway.upstream.base import Means
from gateway.upstream.compatible import Builder, CompatibleProvider, Service
from gateway.upstream.exchanges import config_of
from gateway.upstream.openai_batches import OpenAIBatches
from gateway.upstream.openai_http import Manner, SpokenConfig, renewed
from gateway.upstream.quirks import Quirks

# Where others answer, the older name of an output limit is the one that all honour: one that is ignored is overspent.
_HOSTS = ("openai.com", "openai.azure.com")
_REASONING = re.compile(r"(?:^|/)(?:o\d|gpt-[5-9])")
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
        host = urlsplit(self._base).hostname or ""
        self._own = any(host == known or host.endswith(f".{known}") for known in _HOSTS)
        if self._own:
            quirks = replace(self.manner.quirks, chooses_among=True)
            self.manner = replace(self.manner, quirks=quirks, responses=config.responses is not False)
        if config.organization:
            self._headers["OpenAI-Organization"] = config.organization
        if config.project:
            self._headers["OpenAI-Project"] = config.project

    def _prepared(self, sending: Sending) -> Body:
        body = super()._prepared(sending)
        return renewed(body, sending.operation) if self._own or _REASONING.search(sending.model) else body


build = Builder(Service(base="https://api.openai.com/v1", manner=_MANNER), OpenAIProvider)
