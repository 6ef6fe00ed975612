"""OpenAI and every server that speaks its language, over HTTP.

Knows: OpenAI's paths and its own headers. Does not know: the language itself (`gateway.upstream.openai_http`), prices,
retries, other providers.
"""

import time
from collections.abc import Callable

from gateway.call import Operation
from gateway.providers import Sending
from gateway.settings import ProviderSettings
from gateway.tasks import Tasks
from gateway.transport import Transport
from gateway.transport.credential import Credential
from gateway.upstream.exchanges import config_of
from gateway.upstream.openai_http import OpenAISpeaker, SpokenConfig

_PATHS: dict[Operation, str] = {
    "chat": "chat/completions",
    "completion": "completions",
    "embedding": "embeddings",
    "moderation": "moderations",
    "image": "images/generations",
    "speech": "audio/speech",
    "transcription": "audio/transcriptions",
}
_DEFAULT_BASE = "https://api.openai.com/v1"


class Config(SpokenConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`organization`, `project`: OpenAI's own."""

    organization: str | None = None
    project: str | None = None


class OpenAIProvider(OpenAISpeaker):
    """Obeys gateway.providers.Provider."""

    def __init__(
        self,
        name: str,
        settings: ProviderSettings,
        *,
        transport: Transport,
        tasks: Tasks,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises ValueError when the configuration cannot work or would give the credential away."""
        config = config_of(name, settings, Config)
        base = (settings.base_url or _DEFAULT_BASE).rstrip("/")
        credential = Credential(settings.api_key, base)
        if settings.base_url is None and not credential:
            raise ValueError(
                f"providers.{name}: api_key is missing (write `api_key: none` for a server that wants none)"
            )
        super().__init__(
            name, settings, config, credential, base, transport=transport, tasks=tasks, monotonic=monotonic
        )
        self._base = base
        self._urls = {operation: f"{base}/{path}" for operation, path in _PATHS.items()}
        if config.organization:
            self._headers["OpenAI-Organization"] = config.organization
        if config.project:
            self._headers["OpenAI-Project"] = config.project

    def _url(self, sending: Sending) -> str:
        return self._urls[sending.operation]

    def _models_url(self) -> str:
        return f"{self._base}/models"


def build(name: str, settings: ProviderSettings, *, transport: Transport, tasks: Tasks) -> OpenAIProvider:
    """Raises ValueError for settings that cannot work."""
    return OpenAIProvider(name, settings, transport=transport, tasks=tasks)
