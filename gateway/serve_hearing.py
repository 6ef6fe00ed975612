"""What the supervisor hears of its workers: which of them serve, and which have fallen silent.

Every worker writes its process id into one pipe when it begins to serve and every `BEAT` seconds from then on, by its
event loop: a loop that stands still is silent, and so is a process that is stopped. Knows the pipe and when it heard of
whom. Does not know what is done about it.
"""

import asyncio
import os
from collections.abc import Iterable
from contextlib import suppress

BEAT = 1.0
# A supervisor that looks so late was itself stopped, or starved with everybody else: nobody was silent meanwhile.
_ABSENT = 5.0


class Hearing:
    """`born`: the reading end of the pipe. Times are monotonic seconds."""

    def __init__(self, born: int) -> None:
        os.set_blocking(born, False)
        self._born = born
        self._heard: dict[int, float] = {}
        self._looked: float | None = None

    def listen(self, now: float) -> None:
        """To be called often."""
        if self._looked is not None and now - self._looked > _ABSENT:
            absent = now - self._looked
            self._heard = {pid: at + absent for pid, at in self._heard.items()}
        self._looked = now
        with suppress(BlockingIOError):
            while told := os.read(self._born, 4_096):
                self._heard.update((int(pid), now) for pid in told.split())

    def serves(self, pid: int | None) -> bool:
        """Whether it has ever said so."""
        return pid in self._heard

    def silent(self, pid: int | None, now: float) -> float:
        """Seconds since it was heard of; 0.0 for one that has not begun to serve."""
        return 0.0 if pid is None else now - self._heard.get(pid, now)

    def excuse(self, pid: int | None, now: float) -> None:
        """Count its silence from now on."""
        if pid is not None:
            self._heard[pid] = now

    def forget_all_but(self, pids: Iterable[int]) -> None:
        """Process ids are used again."""
        kept = set(pids)
        self._heard = {pid: at for pid, at in self._heard.items() if pid in kept}


class Beating:
    """The worker's side, on the running loop until that ends. `born`: the writing end; it never waits for it."""

    def __init__(self, born: int) -> None:
        os.set_blocking(born, False)  # a supervisor that is stopped does not read, and must not stop its workers too
        self._born = born
        self._said = b"%d\n" % os.getpid()
        self._loop = asyncio.get_running_loop()
        self._beat()

    def _beat(self) -> None:
        with suppress(BlockingIOError, BrokenPipeError):  # nobody reads, or nobody is left who could
            os.write(self._born, self._said)
        self._loop.call_later(BEAT, self._beat)
