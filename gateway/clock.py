"""Time for what must agree with others after this host has slept.

Python's monotonic clock stands still on Linux while the host is suspended; a lease that others count on does not.
"""

import time

_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # Linux has the former; elsewhere sleep counts


def steady() -> float:
    """Seconds that never go back and go on while the host sleeps."""
    return time.clock_gettime(_CLOCK)
