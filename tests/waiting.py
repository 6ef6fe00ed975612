"""Waiting for what comes true by itself: patient, because a machine may be busy, and over as soon as it holds."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

PATIENCE = 60.0  # seconds; only a failing test waits that long


async def until(holds: Callable[[], bool | Awaitable[bool]], patience: float = PATIENCE) -> None:
    """Returns when `holds()` does. Raises AssertionError after `patience` seconds."""
    end = time.monotonic() + patience
    while True:
        found = holds()
        if await found if inspect.isawaitable(found) else found:
            return
        assert time.monotonic() < end, "it never came true"
        await asyncio.sleep(0.01)
