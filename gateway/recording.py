"""One HTTP answer while it is being made, for whoever wants to hear it: from its beginning, now or later.

Knows ASGI's messages of a response. Does not know: who asked, how it is made, where it is kept.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from gateway.headers import Pairs

Message = dict[str, Any]
Send = Callable[[Any], Awaitable[None]]
LARGEST = 16 << 20  # bytes of an answer that is kept; a longer one is only told to those who wait for it
_OWN = frozenset((b"x-request-id", b"request-id"))
_COSTS = frozenset((b"x-nearhit-cost-usd", b"x-nearhit-saved-usd", b"x-nearhit-budget-remaining-usd", b"server-timing"))


class Recording:
    """Written by `send`, as ASGI's; `end` closes it. `size`: bytes of the body so far.

    `passing`: it will not be kept, so who comes from now on is to try anew.
    """

    def __init__(self, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        self.messages: list[Message] = []
        self.size = 0
        self.done = False
        self.passing = False
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def status(self) -> int:
        return self.messages[0]["status"] if self.messages else 0

    @property
    def headers(self) -> Pairs:
        return list(self.messages[0]["headers"])

    @property
    def body(self) -> bytes:
        return b"".join([message.get("body", b"") for message in self.messages[1:]])

    async def send(self, message: Any) -> None:
        self.messages.append(message)
        self.size += len(message.get("body", b""))
        self._wake()

    def end(self) -> None:
        self.done = True
        self._wake()

    async def ended(self) -> None:
        while not self.done:
            await self._news()

    async def play(self, send: Send, *, again: str | None = None) -> bool:
        """Everything from the beginning to the end. `again`: the id of the request that hears it, for a later one.

        False where the recording ended without an answer, and nothing has been sent.
        """
        position = 0
        while True:
            while position < len(self.messages):
                message = self.messages[position]
                await send(message if position or again is None else retold(message, again))
                position += 1
            if self.done:
                return position > 0
            await self._news()

    async def _news(self) -> None:
        mine = asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        await mine

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():  # its reader was cancelled
                future.set_result(None)


def retold(start: Message, request_id: str) -> Message:
    """The beginning of an answer told once more: it has an id of its own, and costs nothing."""
    told = [pair for pair in start["headers"] if pair[0] not in _OWN and pair[0] not in _COSTS]
    name = request_id.encode()
    told += [(header, name) for header, _ in start["headers"] if header in _OWN]
    told += [(b"idempotent-replayed", b"true"), (b"x-nearhit-cost-usd", b"0")]
    return {**start, "headers": told}
