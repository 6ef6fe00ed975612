"""Time for what must agree with others after this host has slept.

Python's monotonic clock stands still on Linux while the host is suspended; a lease that others count on does not.
"""

import time
from collections.abc import Callable
from functools import partial

_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # Linux has the former; elsewhere sleep counts
# Seconds that never go back and go on while the host sleeps. A request asks nine times, so no function of ours.
steady: Callable[[], float] = partial(time.clock_gettime, _CLOCK)
