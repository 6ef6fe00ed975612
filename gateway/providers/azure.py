"""Azure OpenAI: OpenAI's language under Azure's addresses.

Knows: deployments, API versions, the `api-key` header. Does not know: the language itself
(`gateway.upstream.openai_http`), Entra tokens (give one as a header), prices, retries.
Source: Microsoft's reference of the Azure OpenAI data plane (2024-10-21, and v1).
"""

import re
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from msgspec.structs import replace

from gateway.allowance import x_ratelimit
from gateway.call import Body, Chunk
from gateway.errors import NotFound
from gateway.providers import Sending
from gateway.settings import ProviderSettings
from gateway.tasks import Tasks
from gateway.transport import Transport
from gateway.transport.credential import Credential
from gateway.upstream.base import Means
from gateway.upstream.exchanges import config_of
from gateway.upstream.openai_batches import OpenAIBatches, Places
from gateway.upstream.openai_http import PATHS, Manner, OpenAISpeaker, SpokenConfig, renewed
from gateway.upstream.quirks import Quirks

# A deployment's name becomes a part of the address: nothing that could lead elsewhere on that host.
_DEPLOYMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ENVELOPE = frozenset({"id", "object", "created", "model", "choices"})
# Both are limits of a minute; older versions of the service tell what remains of them and not when it is renewed.
_MANNER = Manner(
    quirks=Quirks(chooses_among=True),
    limits=(x_ratelimit("requests", within=60.0), x_ratelimit("tokens", within=60.0)),
    batches=OpenAIBatches,
)
_RENEWED = "2024-09-01"  # since then an output limit has its newer name, the only one that models which reason take
_VERSION = re.compile(r"v1|\d{4}-\d\d-\d\d(?:-preview)?")


class Config(SpokenConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`api_version`: of the service, `v1` for the one without dates.

    `deployments`: the deployment of a model, where it is not called as the model is; a model that keeps its own name
    has a list price.
    """

    api_version: str = "2024-10-21"
    deployments: dict[str, str] = {}


class AzureProvider(OpenAISpeaker):
    """Obeys gateway.providers.Provider."""

    def __init__(self, name: str, settings: ProviderSettings, means: Means) -> None:
        """Raises ValueError when the configuration cannot work or would give the credential away."""
        config = config_of(name, settings, Config)
        if settings.base_url is None:
            raise ValueError(f"providers.{name}: base_url is missing (https://<resource>.openai.azure.com)")
        if not _VERSION.fullmatch(config.api_version):
            raise ValueError(f"providers.{name}: api_version must be v1 or a date such as 2024-10-21")
        base = settings.base_url.rstrip("/").removesuffix("/v1").removesuffix("/openai")
        credential = Credential(settings.api_key, base, "api-key")
        manner = replace(_MANNER, responses=config.api_version == "v1")
        super().__init__(name, settings, config, credential, base, means, manner)
        self._root = f"{base}/openai"
        self._version = config.api_version
        self._deployments = config.deployments

    def _url(self, sending: Sending) -> str:
        path = PATHS[sending.operation]
        if self._version == "v1":
            return f"{self._root}/v1/{path}"
        deployment = self._deployments.get(sending.model, sending.model)
        if not _DEPLOYMENT.fullmatch(deployment):
            raise NotFound(f"{self.name} has no deployment called {deployment!r:.200}.", param="model")
        return f"{self._root}/deployments/{deployment}/{path}?api-version={self._version}"

    def _responses_url(self) -> str:
        return f"{self._root}/v1/responses"

    def _named(self, model: str) -> str:
        return self._deployments.get(model, model)

    def _places(self) -> Places:
        if self._version == "v1":
            return Places(lambda path: f"{self._root}/v1/{path}", lambda operation: f"/v1/{PATHS[operation]}")
        # Dated versions name the operation alone, and take their version with every path.
        version = f"api-version={self._version}"
        return Places(
            lambda path: f"{self._root}/{path}{'&' if '?' in path else '?'}{version}",
            lambda operation: f"/{PATHS[operation]}",
        )

    def _prepared(self, sending: Sending) -> Body:
        body = super()._prepared(sending)
        if self._version == "v1" or self._version >= _RENEWED:
            body = renewed(body, sending.operation)
        deployment = self._named(sending.model)
        return body if deployment == sending.model else {**body, "model": deployment}

    def _models_url(self) -> str:
        return (
            f"{self._root}/v1/models" if self._version == "v1" else f"{self._root}/models?api-version={self._version}"
        )

    async def send(self, sending: Sending) -> AsyncGenerator[Chunk, None]:
        """What the filter says of the prompt comes in an event without a choice, which breaks clients that take the
        first one of each: it is told with the next event instead.
        """
        held: Body = {}
        async with aclosing(super().send(sending)) as chunks:
            async for chunk in chunks:
                apart = chunk.usage is None and chunk.native is None and chunk.data.get("choices") == []
                if apart and not chunk.final:
                    held |= {name: value for name, value in chunk.data.items() if value and name not in _ENVELOPE}
                    continue
                yield chunk._replace(data={**chunk.data, **held}) if held else chunk
                held = {}

    async def models(self) -> list[str]:
        """The service lists what could be deployed, not what is: configured names are the better answer."""
        return list(self._models) or sorted(self._deployments) or await super().models()


def build(
    name: str,
    settings: ProviderSettings,
    *,
    transport: Transport,
    tasks: Tasks,
    monotonic: Callable[[], float] = time.monotonic,
) -> AzureProvider:
    """Raises ValueError for settings that cannot work."""
    return AzureProvider(name, settings, Means(transport=transport, tasks=tasks, monotonic=monotonic))
