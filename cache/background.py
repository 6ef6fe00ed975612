"""Tasks that close() waits for: the cache's own, since it may not know the gateway's.

Not an asyncio.TaskGroup: these tasks outlive the coroutine that starts them, and one that fails must not cancel it.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger("nearhit.cache")


class Background:
    """Holds every task it started; one that dies of an error is logged, never lost."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("cache task %s failed: %r", task.get_name(), error, exc_info=error)

    async def close(self) -> None:
        """Cancel what runs and wait until it has ended."""
        running = set(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
