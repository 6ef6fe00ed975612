"""OpenAI and every server that speaks its language, over HTTP.

Knows: OpenAI's paths and its own headers. Does not know: the language itself (`gateway.upstream.openai_http`), prices,
retries, other providers.
"""

import time
from collections.abc import Callable

from gateway.providers import Sending
from gateway.settings import ProviderSettings
from gateway.tasks import Tasks
from gateway.transport import Transport
from gateway.transport.credential import Credential
from gateway.upstream.base import Means
from gateway.upstream.exchanges import config_of
from gateway.upstream.openai_http import PATHS, Manner, OpenAISpeaker, SpokenConfig
from gateway.upstream.quirks import Quirks

_DEFAULT_BASE = "https://api.openai.com/v1"
# OpenAI itself tells no reasoning in chat completions; half of those who imitate it do, under the shorter name.
_MANNER = Manner(quirks=Quirks(reasoning="reasoning"), batches=True)


class Config(SpokenConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`organization`, `project`: OpenAI's own."""

    organization: str | None = None
    project: str | None = None


class OpenAIProvider(OpenAISpeaker):
    """Obeys gateway.providers.Provider."""

    def __init__(self, name: str, settings: ProviderSettings, means: Means) -> None:
        """Raises ValueError when the configuration cannot work or would give the credential away."""
        config = config_of(name, settings, Config)
        base = (settings.base_url or _DEFAULT_BASE).rstrip("/")
        credential = Credential(settings.api_key, base)
        if settings.base_url is None and not credential:
            raise ValueError(
                f"providers.{name}: api_key is missing (write `api_key: none` for a server that wants none)"
            )
        super().__init__(name, settings, config, credential, base, means, _MANNER)
        self._urls = {operation: f"{base}/{path}" for operation, path in PATHS.items()}
        if config.organization:
            self._headers["OpenAI-Organization"] = config.organization
        if config.project:
            self._headers["OpenAI-Project"] = config.project

    def _url(self, sending: Sending) -> str:
        return self._urls[sending.operation]

    def _models_url(self) -> str:
        return f"{self._base}/models"


def build(
    name: str,
    settings: ProviderSettings,
    *,
    transport: Transport,
    tasks: Tasks,
    monotonic: Callable[[], float] = time.monotonic,
) -> OpenAIProvider:
    """Raises ValueError for settings that cannot work."""
    return OpenAIProvider(name, settings, Means(transport=transport, tasks=tasks, monotonic=monotonic))
