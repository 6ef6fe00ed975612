"""One call to an upstream over a transport: opened, refused, drained; and what its settings must not be.

Knows: the three ways an exchange breaks as the gateway's errors, credentials that would leak. Does not know: any
language.
"""

from collections.abc import Mapping
from typing import TypeVar

import msgspec
from msgspec import Struct

from gateway.errors import UpstreamFailed, UpstreamTimeout
from gateway.settings import ProviderSettings
from gateway.transport import ConnectFailed, Exchange, TimedOut, Transport, TransportError
from gateway.transport.credential import Credential, is_loopback, origin
from gateway.transport.refusal import in_doubt

LARGEST_BODY = 64 << 20
LISTING_TIMEOUT = 5.0  # seconds, for a list of models and for the words of a refusal
_DRAIN_TIMEOUT = 1.0
_LARGEST_DRAIN = 64 << 10
_OURS = frozenset({"authorization", "content-length", "content-type", "host", "transfer-encoding", "x-request-id"})

Settings = TypeVar("Settings", bound=Struct)


class Asked(Struct, frozen=True):
    """A request as it goes out: POST `content` to `url`."""

    url: str
    headers: Mapping[str, str]
    content: bytes


async def opened(transport: Transport, name: str, asked: Asked, timeout: float) -> Exchange:
    """Raises UpstreamTimeout and UpstreamFailed, the latter doubtful once the request may have been read."""
    try:
        return await transport.open("POST", asked.url, asked.headers, asked.content, timeout)
    except TimedOut as error:
        raise UpstreamTimeout(f"{name} sent nothing within {timeout:g} s") from error
    except ConnectFailed as error:
        raise UpstreamFailed(f"{name} cannot be reached: {error}") from error
    except TransportError as error:
        raise in_doubt(f"{name} broke off before it answered: {error}") from error


async def drained(exchange: Exchange) -> None:
    """Read the end mark of HTTP itself, which may come after that of the answer, so the connection can be reused."""
    try:
        await exchange.whole(_LARGEST_DRAIN, _DRAIN_TIMEOUT)
    except TransportError:
        # The connection is lost for reuse, the answer is not.
        return
    finally:
        exchange.close()


def config_of(name: str, settings: ProviderSettings, kind: type[Settings]) -> Settings:
    """What stands beside `kind` in the settings. Raises ValueError that names the key."""
    try:
        return msgspec.convert(settings.model_extra or {}, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"providers.{name}: {error}") from error


def check_secrecy(name: str, base: str, credential: Credential, headers: Mapping[str, str], plain_http: bool) -> None:
    """Raises ValueError where a credential would travel in the clear or be replaced by a configured header."""
    scheme, host, _ = origin(base)
    if scheme == "http" and credential and not is_loopback(host) and not plain_http:
        raise ValueError(
            f"providers.{name}: the api_key would cross the network unencrypted (set plain_http: true to allow)"
        )
    if taken := sorted(header for header in headers if header.lower() in _OURS | {credential.header.lower()}):
        raise ValueError(f"providers.{name}: these headers are set by the gateway: {', '.join(taken)}")
