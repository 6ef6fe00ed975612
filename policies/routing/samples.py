"""How fast a place has been of late: percentiles over its last answers, none older than five minutes.

Time is handed in. Does not know: what is measured.
"""

from collections import deque

MOST = 64
OLDEST = 300.0  # seconds


class Samples:
    """A sliding window of measured times, in milliseconds."""

    def __init__(self, *, most: int = MOST, oldest: float = OLDEST) -> None:
        self._kept: deque[tuple[float, float]] = deque(maxlen=most)
        self._oldest = oldest

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, value: float, now: float) -> None:
        self._kept.append((now, value))

    def percentiles(self, now: float, *shares: float) -> list[float]:
        """The nearest-rank percentile for each share; -1.0 for all where nothing has been measured of late."""
        while self._kept and now - self._kept[0][0] > self._oldest:
            self._kept.popleft()
        values = sorted(value for _, value in self._kept)
        if not values:
            return [-1.0 for _ in shares]
        return [values[min(len(values) - 1, int(share * len(values)))] for share in shares]
