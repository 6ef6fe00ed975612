"""Ray Serve LLM, and other applications behind Ray Serve that speak OpenAI's language.

A model of it is the id it lists, an adapter `base:adapter`. Serve LLM finds the replica that holds an adapter by that;
an application that multiplexes models itself wants the id in a header. What Serve drops for want of room is a 503 in
plain text. It stops when the connection ends, and counts in every event. Does not know: the language
(`gateway.upstream.openai_http`), prices, retries; Ray tells its load at a port of every node, not here.
Source: Ray's documentation of Serve LLM and of model multiplexing (2.5x).
"""

from msgspec.structs import replace

from gateway.providers import Sending
from gateway.settings import ProviderSettings
from gateway.upstream.base import Means
from gateway.upstream.compatible import Builder, CompatibleProvider, Service
from gateway.upstream.exchanges import Asked, config_of
from gateway.upstream.openai_http import Manner, SpokenConfig
from gateway.upstream.quirks import Quirks

_MULTIPLEXED = "serve_multiplexed_model_id"
_QUIRKS = Quirks(empties=True, reasoning="reasoning", broken=frozenset({"abort", "error"}))
_MANNER = Manner(quirks=_QUIRKS, isolation="cache_salt", counts_along="each")


class Config(SpokenConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`multiplexed`: the application behind it chooses its model by Serve's header, so each call carries it."""

    multiplexed: bool = False


class RayProvider(CompatibleProvider):
    """Obeys gateway.providers.Provider."""

    def __init__(self, name: str, settings: ProviderSettings, service: Service, means: Means) -> None:
        """Raises ValueError when the configuration cannot work or would give the credential away."""
        config = config_of(name, settings, Config)
        super().__init__(name, settings, service, means, config)
        self._multiplexed = config.multiplexed

    def _asked(self, sending: Sending) -> Asked:
        asked = super()._asked(sending)
        if not self._multiplexed:
            return asked
        return replace(asked, headers={**asked.headers, _MULTIPLEXED: sending.model})


_SERVICE = Service(base="http://127.0.0.1:8000/v1", keyed=False, manner=_MANNER, billing="stops-on-close")
build = Builder(_SERVICE, RayProvider)
