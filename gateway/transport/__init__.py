"""How bytes go to an upstream and come back: the seam between providers and sockets.

Knows: one request, one response read piece by piece, the three ways it breaks. Does not know: JSON, events, tokens,
credentials (a provider binds its own to one host), retries.
"""

from collections.abc import Mapping
from typing import Protocol


class TransportError(Exception):
    """Base: the exchange with an upstream broke."""


class ConnectFailed(TransportError):
    """No connection: refused, name not found, TLS not trusted, no time left. Nothing was sent."""


class BrokenOff(TransportError):
    """The connection ended, or broke HTTP's rules, before the response was whole."""


class TimedOut(TransportError):
    """No byte came in time."""


class Exchange(Protocol):
    """A response whose head has arrived. `headers` are looked up in lower case."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def ended(self) -> bool:
        """Whether the whole body has arrived, so that `close` costs no connection."""
        ...

    async def piece(self, timeout: float) -> bytes:
        """The next bytes of the body, decoded from any transfer coding; `b""` at its end.

        Raises BrokenOff when the peer ended it early, TimedOut after `timeout` seconds without a byte.
        """
        ...

    async def whole(self, limit: int, timeout: float) -> bytes:
        """The whole body within `timeout` seconds. Raises BrokenOff also when it is longer than `limit` bytes."""
        ...

    def close(self) -> None:
        """Let go of it: the connection is reused when the body was read to its end, else closed. Never waits."""
        ...


class Transport(Protocol):
    """Opens exchanges. Never follows redirects, never reads credentials from the environment; a proxy is handed in."""

    async def open(self, method: str, url: str, headers: Mapping[str, str], content: bytes, timeout: float) -> Exchange:
        """Send, and wait up to `timeout` seconds in all for the response's head. Raises TransportError.

        Cancelling closes the connection.
        """
        ...

    def check(self, url: str) -> None:
        """Raises ValueError where the proxy that stands before an address cannot be used."""
        ...

    async def close(self) -> None: ...
