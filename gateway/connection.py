"""One client connection during one request: notices that the client has gone while we wait for others.

A request that is answered at once never pays for this: `watch` starts the watching, and only then does a disconnect
cancel the task that handles the request. Knows ASGI's `receive`; knows nothing of what the task is doing.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from gateway.tasks import Tasks

Receive = Callable[[], Awaitable[Any]]


class Connection:
    """`gone` turns true when the client has closed the connection."""

    def __init__(self, receive: Receive, tasks: Tasks) -> None:
        self.gone = False
        self._receive = receive
        self._tasks = tasks
        self._handler = asyncio.current_task()
        self._watcher: asyncio.Task[None] | None = None

    def watch(self) -> None:
        """From now on a disconnect cancels the task that made this object."""
        if self._watcher is None:
            self._watcher = self._tasks.spawn(self._wait(), "watch for a disconnect")

    def close(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        if self._handler is not None:
            self._handler.cancel()
