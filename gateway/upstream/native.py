"""A provider that speaks a language of its own: its events are translated one by one.

Knows: that a stream is framed and translated. Does not know: any language, how a call goes (`gateway.upstream.base`).
"""

from abc import abstractmethod

from gateway.providers import Sending
from gateway.settings import ProviderSettings
from gateway.stream import EventParser
from gateway.transport import Exchange
from gateway.transport.credential import Credential
from gateway.upstream.base import Answered, Means, Upstream, UpstreamConfig
from gateway.upstream.reader import EventReader, Framing, Translator, Waits

__all__ = ["Answered", "Means", "NativeConfig", "NativeProvider"]


class NativeConfig(UpstreamConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nothing beyond what every kind may have."""


class NativeProvider(Upstream):
    """Obeys gateway.providers.Provider."""

    def __init__(
        self,
        name: str,
        settings: ProviderSettings,
        config: NativeConfig,
        credential: Credential,
        base: str,
        means: Means,
    ) -> None:
        """Raises ValueError when the configuration cannot work or would give the credential away."""
        if settings.base_url is None and not credential:
            raise ValueError(f"providers.{name}: api_key is missing")
        super().__init__(name, settings, config, credential, base, means)

    @abstractmethod
    def _translator(self, sending: Sending) -> Translator: ...

    def _framing(self) -> Framing:
        return EventParser()

    def _reader(self, exchange: Exchange, sending: Sending, deadline: float) -> EventReader:
        waits = Waits.of(sending, deadline, self._monotonic)
        translator = self._translator(sending)
        return EventReader(self.name, exchange, waits, self._framing(), translator, self._credential.redacted)
