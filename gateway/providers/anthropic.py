"""Anthropic's Messages API, natively.

Knows: its address, its headers, its list of models. Does not know: how requests and answers are translated
(`gateway.upstream.anthropic_*`), prices, retries.
Source of the limits: docs.claude.com/en/api/rate-limits (response headers).
"""

import time
from collections.abc import Callable

import msgspec

from gateway.allowance import Limit
from gateway.call import Body, Chunk, Native
from gateway.errors import GatewayError, UpstreamFailed
from gateway.providers import Sending
from gateway.settings import ProviderSettings
from gateway.stream import StreamGarbage
from gateway.tasks import Tasks
from gateway.transport import Transport
from gateway.transport.credential import Credential
from gateway.upstream import other_models
from gateway.upstream.anthropic_answers import Events, body_of, refusal
from gateway.upstream.anthropic_batches import AnthropicBatches
from gateway.upstream.anthropic_requests import cannot, translated
from gateway.upstream.anthropic_requests import native as cleared
from gateway.upstream.exchanges import Asked, config_of
from gateway.upstream.fields import objects, whole_number, words
from gateway.upstream.native import Answered, Means, NativeConfig, NativeProvider

_DEFAULT_BASE = "https://api.anthropic.com/v1"
_LIMITS = tuple(
    Limit(
        what=what,
        remaining=f"anthropic-ratelimit-{what}-remaining",
        limit=f"anthropic-ratelimit-{what}-limit",
        reset=f"anthropic-ratelimit-{what}-reset",
        moment="date",
    )
    for what in ("requests", "tokens", "input-tokens", "output-tokens")
)
# What a count of tokens is asked with; the service refuses all else.
_COUNTED = frozenset(
    (
        *("model", "messages", "system", "tools", "tool_choice", "thinking", "output_config", "output_format"),
        *("cache_control", "context_management", "mcp_servers", "speed"),
    )
)
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, object]).decode


class Config(NativeConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`version`: sent as `anthropic-version`. `beta`: features to switch on, sent as `anthropic-beta`."""

    version: str = "2023-06-01"
    beta: tuple[str, ...] = ()


class AnthropicProvider(NativeProvider):
    """Obeys gateway.providers.Provider; chat only."""

    speaks = "messages"
    cannot = staticmethod(cannot)
    limits = _LIMITS

    def __init__(self, name: str, settings: ProviderSettings, means: Means) -> None:
        """Raises ValueError for settings that cannot work."""
        config = config_of(name, settings, Config)
        base = (settings.base_url or _DEFAULT_BASE).rstrip("/")
        super().__init__(name, settings, config, Credential(settings.api_key, base, "x-api-key"), base, means)
        self._headers["anthropic-version"] = config.version
        self._beta = config.beta
        if config.beta:
            self._headers["anthropic-beta"] = ",".join(config.beta)

    def _asked(self, sending: Sending) -> Asked:
        self._only_chat(sending)
        headers = {**self._headers, **sending.headers}
        native = self._natively(sending)
        if native is None:
            return Asked(f"{self._base}/messages", headers, _encode(translated(sending)))
        other_models.refuse(native.body, but="fallbacks")
        # As the client wrote it, with its cache marks, thinking and betas, which no translation could carry.
        betas = [*self._beta, *native.headers.get("anthropic-beta", "").split(",")]
        if told := ",".join(dict.fromkeys(name for beta in betas if (name := beta.strip()))):
            headers["anthropic-beta"] = told
        headers["anthropic-version"] = native.headers.get("anthropic-version") or headers["anthropic-version"]
        body = {**cleared(native.body), "model": sending.model, "stream": sending.stream}
        return Asked(f"{self._base}/messages", headers, _encode(body))

    async def prompt_tokens(self, sending: Sending) -> int:
        """What the service itself counts, which costs nothing. Raises GatewayError."""
        asked = self._asked(sending)
        body = {name: value for name, value in _decode(asked.content).items() if name in _COUNTED}
        counting = Asked(f"{self._base}/messages/count_tokens", asked.headers, _encode(body))
        told = whole_number((await self._said(counting, sending.timeout)).get("input_tokens"))
        if told is None:
            raise UpstreamFailed(f"{self.name} did not say how many tokens there are.")
        return told

    def batching(self) -> AnthropicBatches:
        return AnthropicBatches(self._line(), f"{self._base}/messages/batches", self._alone)

    def _alone(self, sending: Sending) -> Body:
        self._only_chat(sending)
        return translated(sending)

    def _natively(self, sending: Sending) -> Native | None:
        """The client's request, where it speaks this language."""
        return sending.native if sending.native is not None and sending.native.dialect == self.speaks else None

    def _translator(self, sending: Sending) -> Events:
        return Events(sending.model, self._now(), native=self._natively(sending) is not None)

    def _told(self, body: Body, sending: Sending) -> Chunk:
        return body_of(body, sending.model, self._now(), native=self._natively(sending) is not None)

    def _refusal(self, answered: Answered) -> GatewayError:
        return refusal(self.name, answered)

    def _models_url(self) -> str:
        return f"{self._base}/models?limit=1000"

    def _listed(self, body: Body) -> list[str]:
        if not isinstance(body.get("data"), list):
            raise StreamGarbage("sent no list")
        return [name for row in objects(body["data"]) if (name := words(row.get("id")))]


def build(
    name: str,
    settings: ProviderSettings,
    *,
    transport: Transport,
    tasks: Tasks,
    monotonic: Callable[[], float] = time.monotonic,
    now: Callable[[], float] = time.time,
) -> AnthropicProvider:
    """Raises ValueError for settings that cannot work."""
    means = Means(transport=transport, tasks=tasks, monotonic=monotonic, now=now)
    return AnthropicProvider(name, settings, means)
