"""One client connection during one request: its body, and whether the client has gone while we wait for others.

A request that is answered at once never pays for this: `watch` starts the watching, and only then does a disconnect
cancel the task that handles the request. Our own server hands over a body that is there and calls back when the client
goes; under any other, ASGI's `receive` tells. Knows nothing of what the task is doing.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, cast

from gateway.tasks import Tasks

Receive = Callable[[], Awaitable[Any]]


class Direct(Protocol):
    """What our own server offers beyond ASGI."""

    def when_gone(self, act: Callable[[], None] | None) -> None:
        """Call `act` once, when the client goes; None takes that back."""
        ...

    def taken(self) -> bytes | None:
        """The whole body if it has arrived."""
        ...

    def answered(self, lines: str, payload: bytes) -> bool:
        """Write a whole answer in one piece, unless something stands against it."""
        ...

    def pushed(self, piece: bytes) -> bool:
        """Write a piece of a body that has begun; False when no more should be written now."""
        ...


class Client(Protocol):
    """Who waits for an answer. `gone`: has left; `watch`: from now on leaving cancels the task that answers."""

    @property
    def gone(self) -> bool: ...

    def watch(self) -> None: ...


class Detached:
    """Nobody is connected: batches and the background. What is cancelled, whoever asked has taken back."""

    gone = True

    def watch(self) -> None:
        """There is no connection that could break."""


class Connection:
    """`gone` turns true when the client has closed the connection. `raw`: the body as it was read, once it was.

    `begun`: set by who answers, once a stream of events has begun.
    """

    __slots__ = ("_direct", "_handler", "_receive", "_tasks", "_watcher", "begun", "gone", "raw")

    def __init__(self, receive: Receive, tasks: Tasks) -> None:
        self.begun = self.gone = False
        self.raw = b""
        self._receive = receive
        self._tasks = tasks
        self._handler = asyncio.current_task()
        self._watcher: asyncio.Task[None] | None = None
        server = getattr(receive, "__self__", None)
        self._direct = cast("Direct", server) if hasattr(server, "when_gone") else None

    def body(self) -> bytes | None:
        """The whole body if it is here already; else it must be received."""
        return None if self._direct is None else self._direct.taken()

    def answer(self, lines: str, payload: bytes) -> bool:
        """Send a whole answer with status 200 at once; False where that cannot be done: then `send` it.

        `lines`: the headers, each with its line end; the content's length is added.
        """
        return self._direct is not None and self._direct.answered(lines, payload)

    @property
    def push(self) -> Callable[[bytes], bool] | None:
        """Writes a further piece of a body that has begun; False when the client is slow: then wait for `send`.

        None where there is nothing but `send`.
        """
        return None if self._direct is None else self._direct.pushed

    def watch(self) -> None:
        """From now on a disconnect cancels the task that made this object."""
        if self._direct is not None:
            self._direct.when_gone(self._gone)
        elif self._watcher is None:
            self._watcher = self._tasks.spawn(self._wait(), "watch for a disconnect")

    def close(self) -> None:
        if self._direct is not None:
            self._direct.when_gone(None)
        elif self._watcher is not None:
            self._watcher.cancel()

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone()

    def _gone(self) -> None:
        self.gone = True
        if self._handler is not None:
            self._handler.cancel()
