"""Google's Gemini API, natively.

Knows: its addresses, its header, its list of models. Does not know: how requests and answers are translated
(`gateway.upstream.gemini_*`), prices, retries.
"""

import re
import time
from collections.abc import Callable

import msgspec

from gateway.call import Body, Chunk
from gateway.errors import GatewayError, NotFound
from gateway.providers import Sending
from gateway.settings import ProviderSettings
from gateway.stream import StreamGarbage
from gateway.tasks import Tasks
from gateway.transport import Transport
from gateway.transport.credential import Credential
from gateway.upstream.exchanges import Asked, config_of
from gateway.upstream.fields import objects, words
from gateway.upstream.gemini_answers import Events, body_of, refusal
from gateway.upstream.gemini_batches import GeminiBatches
from gateway.upstream.gemini_embeddings import embedded
from gateway.upstream.gemini_requests import cannot, translated
from gateway.upstream.native import Answered, Means, NativeConfig, NativeProvider

_DEFAULT_BASE = "https://generativelanguage.googleapis.com/v1beta"
# A model's name becomes a part of the address: nothing that could lead elsewhere on that host.
_MODEL = re.compile(r"(?:(?:models|tunedModels)/)?[A-Za-z0-9][A-Za-z0-9._-]*")
_encode = msgspec.json.Encoder().encode


class Config(NativeConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nothing of its own. The key travels in a header, never in the address, where logs would keep it."""


class GeminiProvider(NativeProvider):
    """Obeys gateway.providers.Provider; chat and embeddings."""

    cannot = staticmethod(cannot)

    def __init__(self, name: str, settings: ProviderSettings, means: Means) -> None:
        """Raises ValueError for settings that cannot work."""
        config = config_of(name, settings, Config)
        base = (settings.base_url or _DEFAULT_BASE).rstrip("/")
        super().__init__(name, settings, config, Credential(settings.api_key, base, "x-goog-api-key"), base, means)

    async def _whole(self, sending: Sending) -> Chunk:
        if sending.operation != "embedding":
            return await super()._whole(sending)
        model, headers = self._path(sending), {**self._headers, **sending.headers}
        deadline = self._monotonic() + sending.timeout  # of all questions together

        async def ask(method: str, body: Body) -> Body:
            asked = Asked(f"{self._base}/{model}:{method}", headers, _encode(body))
            return await self._said(asked, max(0.001, deadline - self._monotonic()))

        return await embedded(sending, model, ask)

    def _path(self, sending: Sending) -> str:
        """Raises NotFound for a name that cannot be a part of an address."""
        if not _MODEL.fullmatch(sending.model):
            raise NotFound(f"{self.name} has no model called {sending.model!r:.200}.", param="model")
        return sending.model if "/" in sending.model else f"models/{sending.model}"

    def _asked(self, sending: Sending) -> Asked:
        self._only_chat(sending)
        path = self._path(sending)
        method = "streamGenerateContent?alt=sse" if sending.stream else "generateContent"
        headers = {**self._headers, **sending.headers}
        return Asked(f"{self._base}/{path}:{method}", headers, _encode(translated(sending)))

    def batching(self) -> GeminiBatches:
        return GeminiBatches(self._line(), self._base, self._path, self._alone)

    def _alone(self, sending: Sending) -> Body:
        self._only_chat(sending)
        return translated(sending)

    def _translator(self, sending: Sending) -> Events:
        return Events(sending.model, self._now())

    def _told(self, body: Body, sending: Sending) -> Chunk:
        return body_of(body, sending.model, self._now())

    def _refusal(self, answered: Answered) -> GatewayError:
        return refusal(self.name, answered)

    def _models_url(self) -> str:
        return f"{self._base}/models?pageSize=1000"

    def _listed(self, body: Body) -> list[str]:
        if not isinstance(body.get("models"), list):
            raise StreamGarbage("sent no list")
        rows = [row for row in objects(body["models"]) if _answers(row.get("supportedGenerationMethods"))]
        return [name.removeprefix("models/") for row in rows if (name := words(row.get("name")))]


def _answers(methods: object) -> bool:
    return not isinstance(methods, list) or "generateContent" in methods or "embedContent" in methods


def build(
    name: str,
    settings: ProviderSettings,
    *,
    transport: Transport,
    tasks: Tasks,
    monotonic: Callable[[], float] = time.monotonic,
    now: Callable[[], float] = time.time,
) -> GeminiProvider:
    """Raises ValueError for settings that cannot work."""
    means = Means(transport=transport, tasks=tasks, monotonic=monotonic, now=now)
    return GeminiProvider(name, settings, means)
