"""An answer of one chunk in the form of a stream, without the machinery of a generator that would be resumed once.

Knows: that the chunk is made when it is first asked for. Does not know: what makes it.
"""

from collections.abc import AsyncGenerator, Callable, Coroutine
from types import TracebackType
from typing import Any

from gateway.call import Chunk


class Once(AsyncGenerator[Chunk, None]):
    """`work` makes the one chunk, or raises why there is none; it is not called before it is waited for."""

    __slots__ = ("_work",)

    def __init__(self, work: Callable[[], Coroutine[Any, Any, Chunk]]) -> None:
        self._work: Callable[[], Coroutine[Any, Any, Chunk]] | None = work

    def __anext__(self) -> Coroutine[Any, Any, Chunk]:
        work, self._work = self._work, None
        return _over() if work is None else work()

    def asend(self, value: None) -> Coroutine[Any, Any, Chunk]:  # noqa: ARG002 - nothing can be said to it
        return self.__anext__()

    async def athrow(
        self,
        typ: type[BaseException] | BaseException,
        val: BaseException | object = None,
        tb: TracebackType | None = None,
    ) -> Chunk:
        """Ends it: between its chunk and its end there is nothing that could be interrupted."""
        del val, tb
        self._work = None
        raise typ

    async def aclose(self) -> None:
        self._work = None


async def _over() -> Chunk:
    raise StopAsyncIteration
