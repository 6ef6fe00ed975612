"""HTTP/1 of clients that stay: a head that came before on a connection is compared instead of read.

Adds to `gateway.server_protocol` nothing that a client could see. Whatever is not plainly the same goes to the parser,
which stands between two requests all the while. Does not know when two heads are the same: `gateway.server_heads`.
"""

from typing import Any

from gateway.server_heads import Known, known_of
from gateway.server_protocol import LET_IN, Protocol

_TRIES = 3  # heads that may be remembered in vain: of a client that names each request, no two are the same


class Recalling(Protocol):
    """One connection, of which at most one head is remembered."""

    _known: Known | None = None
    _tries = _TRIES
    _heads: int = 0  # that the parser has read
    _stays: bool = False  # the client of that head
    _owed: int = 0  # bytes of the body, where it is not the parser that counts them

    def _feed(self, data: bytes) -> None:
        if self._owed:
            data = self._rest(data)
        elif self._known is not None and self._is_between() and (found := self._known.behind(data)) is not None:
            data = self._again(self._known, *found, data)
        if data:
            self._read(data)

    def _is_between(self) -> bool:
        """Whether what comes now begins a request, and nothing stands before it."""
        idle = self._running is None or self._running.response_complete
        return idle and not self._in_head and not self._in_body

    def _again(self, known: Known, behind: int, length: int, data: bytes) -> bytes:
        """Begin the request that `data` begins with; answers what follows it."""
        self._tries = _TRIES
        self._owed, self._body_size = length, 0
        self._in_body, self.expect_100_continue = True, False
        self.headers = known.told(length)
        self.scope: Any = {**known.scope, "headers": self.headers, "state": self.app_state.copy()}
        self._begin("1.1", keeps=True)
        if not length:
            self.on_message_complete()
        return self._rest(data[behind:])

    def _rest(self, data: bytes) -> bytes:
        """Take what of it is the body's; answers what follows."""
        body, left = (data, b"") if len(data) <= self._owed else (data[: self._owed], data[self._owed :])
        if body:
            self._owed -= len(body)
            self.on_body(body)
            if not self._owed:
                self.on_message_complete()
        return left

    def _read(self, data: bytes) -> None:
        """Have the parser read it, and remember its head where one request began with it."""
        between, before = self._tries > 0 and self._is_between(), self._heads
        super()._feed(data)
        if between and self._heads - before == 1 and self._stays and not self._in_head and not self._deaf:
            self._tries -= 1
            scope = dict[str, Any](self.scope)
            scope.pop(LET_IN, None)  # said of that request alone
            self._known = known_of(data, self.headers, scope)

    def on_headers_complete(self) -> None:
        self._heads += 1
        self._known = None
        super().on_headers_complete()
        scope: Any = self.scope
        self._stays = scope["method"] == "POST" and scope["http_version"] == "1.1" and self._parser.should_keep_alive()
