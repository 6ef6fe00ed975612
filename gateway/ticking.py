"""A sign of life in a stream that stands still: what stands between us and the client must not take it for dead.

A comment of the event stream format, which every client skips. Knows: a way to write, whether anything was written.
Does not know: whose stream it is, why it stands still, how long it may (`gateway.stream_reader`).
"""

import asyncio
from collections.abc import Callable

EVERY = 15.0  # seconds; load balancers cut after 60, or after 30
COMMENT = b": waiting\n\n"


class Ticking:
    """From now on until `close`. `write` as in `Connection.push`; `moved` counts what has been written besides."""

    def __init__(self, write: Callable[[bytes], bool], moved: Callable[[], int]) -> None:
        self._write = write
        self._moved = moved
        self._seen = moved()
        self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_later(EVERY, self._tick)

    def _tick(self) -> None:
        now = self._moved()
        if now == self._seen:
            self._write(COMMENT)
        self._seen = now
        self._handle = self._loop.call_later(EVERY, self._tick)

    def close(self) -> None:
        self._handle.cancel()
