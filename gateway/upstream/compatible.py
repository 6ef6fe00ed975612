"""Services and servers that speak OpenAI's language, each with its own address and quirks.

Knows: what such a kind has to say of itself to be one: a `Service`. Does not know: any of them.
"""

import time
from collections.abc import Callable

import msgspec
from msgspec import Struct

from gateway.call import Body
from gateway.providers import Billing, Sending, TokenPath
from gateway.settings import ProviderSettings
from gateway.tasks import Tasks
from gateway.transport import Transport
from gateway.transport.credential import Credential
from gateway.upstream.base import Means
from gateway.upstream.exchanges import Asked, config_of
from gateway.upstream.openai_http import PATHS, Manner, OpenAISpeaker, SpokenConfig

_TOKENS_TIMEOUT = 10.0
_encode = msgspec.json.Encoder().encode


class Service(Struct, frozen=True, kw_only=True):
    """`base`: where it is, `/v1` included, unless the settings say otherwise. `keyed`: whether it wants a key.

    `billing`: what a connection that is closed early costs, unless the settings say otherwise. `tokenizes`: whether it
    has `/tokenize` and `/detokenize` beside `/v1`.
    """

    base: str
    keyed: bool = True
    billing: Billing = "bills-anyway"
    manner: Manner = Manner()
    tokenizes: bool = False


class CompatibleProvider(OpenAISpeaker):
    """Obeys gateway.providers.Provider. `config`: what stands beside `kind`, where a kind has settings of its own."""

    def __init__(
        self,
        name: str,
        settings: ProviderSettings,
        service: Service,
        means: Means,
        config: SpokenConfig | None = None,
    ) -> None:
        """Raises ValueError when the configuration cannot work or would give the credential away."""
        config = config or config_of(name, settings, SpokenConfig)
        base = (settings.base_url or service.base).rstrip("/")
        credential = Credential(settings.api_key, base)
        if service.keyed and settings.base_url is None and not credential:
            raise ValueError(f"providers.{name}: api_key is missing")
        super().__init__(name, settings, config, credential, base, means, service.manner)
        if "billing" not in settings.model_fields_set:
            self.billing: Billing = service.billing
        self._tokenizes = service.tokenizes
        self._urls = {operation: f"{base}/{path}" for operation, path in PATHS.items()}

    def _url(self, sending: Sending) -> str:
        return self._urls[sending.operation]

    def _models_url(self) -> str:
        return f"{self._base}/models"

    async def told_of_tokens(self, path: TokenPath, body: Body) -> Body | None:
        """Obeys gateway.providers.TellsTokens."""
        if not self._tokenizes:
            return None
        url = f"{self._base.removesuffix('/v1')}/{path}"
        return await self._said(Asked(url, self._headers, _encode(body)), _TOKENS_TIMEOUT)


class Builder:
    """The `build` of a kind that is a service like this: `build = Builder(Service(…))`.

    `provider`: its class, where it has settings or headers of its own.
    """

    def __init__(
        self,
        service: Service,
        provider: Callable[[str, ProviderSettings, Service, Means], CompatibleProvider] = CompatibleProvider,
    ) -> None:
        self.service = service
        self._provider = provider

    def __call__(
        self,
        name: str,
        settings: ProviderSettings,
        *,
        transport: Transport,
        tasks: Tasks,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> CompatibleProvider:
        """Raises ValueError for settings that cannot work."""
        means = Means(transport=transport, tasks=tasks, monotonic=monotonic, now=now)
        return self._provider(name, settings, self.service, means)
