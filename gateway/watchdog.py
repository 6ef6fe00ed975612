"""Who holds the event loop up: a thread that looks at it from outside and writes down where it stands.

While the loop stands still nobody in it can say so, and afterwards the cause is gone. Logged are the calls, never their
variables, and how much of the time the loop's thread really worked: little of it means a call that waits, or a machine
that is busy with others. Knows: one loop and its thread. Does not know: what to do about it (`gateway.gate` turns
newcomers away).
"""

import asyncio
import math
import sys
import threading
import time
import traceback
from collections.abc import Callable

import structlog
from msgspec import Struct

log = structlog.get_logger("nearhit.loop")

_BEAT = 0.05  # seconds
_LATE = 0.25
_STANDS = 2.0  # so long is told even where the thread did not work: it waits for something, and everybody with it
_PAUSE = 60.0
_MOST_CALLS = 12


class Stall(Struct, frozen=True):
    """For so many seconds the loop has not turned, `worked` of them its thread computed; `calls`: the latest last."""

    seconds: float
    worked: float
    calls: str


def _logged(stall: Stall) -> None:
    seconds, worked = round(stall.seconds, 2), round(stall.worked, 2)
    log.warning("the event loop stands still", seconds=seconds, worked=worked, stack=stall.calls)


class Watchdog:
    """One per worker; from `start`, within the running loop, to `stop`. Tells of one stall a `pause` at most.

    On Linux; elsewhere nobody else can read what a thread has worked, and it does nothing.
    """

    def __init__(self, tell: Callable[[Stall], None] = _logged, *, pause: float = _PAUSE) -> None:
        self._tell = tell
        self._pause = pause
        self._stopping = threading.Event()
        self._beaten = (0.0, 0.0)  # monotonic seconds, and those of the processor that the loop's thread had used

    def start(self) -> None:
        if sys.platform != "linux":
            return
        loop = asyncio.get_running_loop()
        self._beat(loop)
        watched = threading.get_ident()
        threading.Thread(target=self._watch, args=(watched,), name="loop-watchdog", daemon=True).start()

    def stop(self) -> None:
        self._stopping.set()

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._beaten = (time.monotonic(), time.thread_time())
        if not self._stopping.is_set():
            loop.call_later(_BEAT, self._beat, loop)

    def _watch(self, thread: int) -> None:
        clock, told = time.pthread_getcpuclockid(thread), -math.inf
        while not self._stopping.wait(_LATE / 2):
            (at, used), now = self._beaten, time.monotonic()
            late = now - at
            if late < _LATE or now - told < self._pause:
                continue
            worked, frame = time.clock_gettime(clock) - used, sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage] - public in all but its name
            if frame is None or (worked < late / 2 and late < _STANDS):
                continue
            told = now
            self._tell(Stall(late, worked, "".join(traceback.format_stack(frame)[-_MOST_CALLS:])))
