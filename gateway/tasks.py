"""Background tasks that shutdown waits for. The only place that calls asyncio.create_task."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog

from gateway.errors import GatewayError

log = structlog.get_logger("nearhit.tasks")


class Tasks:
    """Keeps a reference to every task it spawned; a task that dies of an error is logged, never lost.

    A GatewayError is an answer that somebody gets or does without (an attempt beside another, one vote of three): it
    is told in a line. What it says may quote a request, so its kind and code stand there alone.
    """

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, GatewayError):
            log.info("task ended", task=task.get_name(), error=type(error).__name__, code=error.code)
        else:
            log.error("task failed", task=task.get_name(), error=type(error).__name__, exc_info=error)

    async def finish(self, grace: float) -> None:
        """Wait up to `grace` seconds for what runs, then cancel the rest and wait for it."""
        if self._running:
            await asyncio.wait(set(self._running), timeout=grace)
        for task in set(self._running):
            task.cancel()
        await asyncio.gather(*set(self._running), return_exceptions=True)
