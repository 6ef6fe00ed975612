"""WebSockets beside HTTP on the same port: uvicorn's protocol with the bounds and the patience that it leaves open.

Adds: only on the paths that speak it; a peer that stops reading is cut; a stop waits for the turn that is being
answered. Does not know what is said: `gateway.routes.responses_socket` does.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from gateway.server_limits import Limits, Waiting
from gateway.server_protocol import Door, Protocol
from gateway.server_recalling import Recalling

# Beyond ASGI, from the server to the application: end with the turn that is being answered, then close.
DRAIN: Any = {"type": "nearhit.drain"}


class Socket(WebSocketsSansIOProtocol):
    """One WebSocket connection."""

    def keepalive_timeout(self) -> None:
        """What it was still to be sent would never leave: nobody reads it."""
        super().keepalive_timeout()
        self.transport.abort()

    def shutdown(self) -> None:
        """Begin to drain. uvicorn's own way cuts an answer in the middle."""
        if self.handshake_complete and not self.close_sent:
            self.queue.put_nowait(DRAIN)
        else:
            super().shutdown()


class Upgrading(Recalling):
    """HTTP/1 that becomes a WebSocket on `sockets`, the paths that speak it; elsewhere nobody is taken at that word."""

    sockets: frozenset[str] = frozenset()
    _upgrades = False

    def _is_taken(self, version: str, keeps: bool) -> bool:
        wanted = self.scope["path"] in self.sockets and self.scope["method"] == "GET" and self._should_upgrade()
        idle = self._running is None or self._running.response_complete
        self._upgrades = wanted and idle and version == "1.1" and not self._unix
        return self._upgrades or super()._is_taken(version, keeps)

    def on_message_complete(self) -> None:
        if self._upgrades:
            self._in_body = False  # there is no cycle that could be told
        else:
            super().on_message_complete()

    def _upgrade(self) -> None:
        if not self._upgrades:
            super()._upgrade()
            return
        self._deaf = True
        self._wait_for(Waiting.NOTHING)
        self.handle_websocket_upgrade()


def protocol(limits: Limits, doors: Mapping[str, Door] | None = None, sockets: Iterable[str] = ()) -> type[Protocol]:
    """The protocol class for these limits; `doors`: who turns newcomers away, by path; `sockets`: paths."""
    return type("Protocol", (Upgrading,), {"limits": limits, "doors": doors or {}, "sockets": frozenset(sockets)})
