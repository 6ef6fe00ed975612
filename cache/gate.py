"""Many may look at once, one may change alone: for work done in threads on something that is not locked by itself.

Belongs to one event loop. A change that waits lets nobody new in, so it waits for the looks under way and no longer.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

T = TypeVar("T")


class Gate:
    """`look` and `alone`; at most one task may ask to be alone."""

    def __init__(self) -> None:
        self._looking = 0
        self._free = asyncio.Event()
        self._free.set()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def is_quiet(self) -> bool:
        """Nobody looks and nobody is, or waits to be, alone."""
        return not self._looking and self._free.is_set()

    async def look(self, work: Callable[[], T]) -> T:
        """`work` in a thread. Were the caller cancelled, changes would still wait until the thread has ended."""
        while not self._free.is_set():
            await self._free.wait()
        self._looking += 1
        self._idle.clear()
        try:
            future = asyncio.get_running_loop().run_in_executor(None, work)
        except RuntimeError:  # the interpreter is going down
            self._leave()
            raise
        future.add_done_callback(lambda _: self._leave())
        return await asyncio.shield(future)

    @asynccontextmanager
    async def alone(self) -> AsyncGenerator[None, None]:
        self._free.clear()
        try:
            await self._idle.wait()
            yield
        finally:
            self._free.set()

    def _leave(self) -> None:
        self._looking -= 1
        if not self._looking:
            self._idle.set()
