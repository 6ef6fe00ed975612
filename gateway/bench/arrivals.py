"""Requests that arrive as from many clients who know nothing of each other: at random instants, through a socket.

`python -m gateway.bench.arrivals RATE SECONDS even|random` writes one byte to standard output for each request, at its
instant; `each` calls back for every byte. So the process that is measured waits in its event loop as a gateway does,
and pays nothing for the clock of whoever asks. Does not know: what a request is.
"""

import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Literal

Spacing = Literal["even", "random"]
_SEED = 20_261_121
_LEAD_SECONDS = 0.2  # until whoever listens is ready


async def each(rate: float, seconds: float, spacing: Spacing, begin: Callable[[], None]) -> int:
    """Call `begin` for each request of `seconds` at `rate` a second; answers how many there were."""
    loop, over, count = asyncio.get_running_loop(), asyncio.Event(), 0
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)

    def arrived() -> None:
        nonlocal count
        came = os.read(ours, 4_096)
        if not came:
            loop.remove_reader(ours)
            over.set()
        count += len(came)
        for _ in came:
            begin()

    command = [sys.executable, "-m", __name__, str(rate), str(seconds), spacing]
    asking = subprocess.Popen(command, stdout=theirs)  # noqa: S603, ASYNC220 - ourselves; started before anything is timed
    os.close(theirs)
    loop.add_reader(ours, arrived)
    await over.wait()
    os.close(ours)
    await asyncio.to_thread(asking.wait)
    return count


def _ask(rate: float, seconds: float, spacing: Spacing) -> None:
    chance = random.Random(_SEED)  # noqa: S311 - the same instants every time
    at = began = time.monotonic() + _LEAD_SECONDS
    while at < began + seconds:
        now = time.monotonic()
        if at > now:
            time.sleep(at - now)
            now = time.monotonic()
        due = 0
        while at <= now:
            due += 1
            at += 1.0 / rate if spacing == "even" else chance.expovariate(rate)
        os.write(sys.stdout.fileno(), b"." * due)


if __name__ == "__main__":
    _ask(float(sys.argv[1]), float(sys.argv[2]), "even" if sys.argv[3] == "even" else "random")
