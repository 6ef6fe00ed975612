"""When a place that fails is left alone, for how long, and how it is tried again.

Closed until five failures in a row, or more than half of at least twenty requests within ten seconds; then open for a
second, twice as long each time a probe fails, half a minute at most; after that a single request at a time finds out.
A place that says itself that it has come back is tried at once.
Time is handed in. Does not know: what a failure is, who is asked instead.
The numbers in a row are Envoy's (consecutive_5xx), the share is the rule of Hystrix.
"""

from typing import Literal

from msgspec import Struct

IN_A_ROW = 5
SHARE, LEAST, WITHIN = 0.5, 20, 10.0
FIRST_OPEN, LONGEST_OPEN = 1.0, 30.0
PROBE_PATIENCE = 60.0  # a probe that nobody has heard of for so long counts as lost

State = Literal["closed", "open", "half-open"]


class Circuit(Struct):
    """Seconds are monotonic ones. `open_until` is 0.0 while it is closed."""

    open_until: float = 0.0
    times_open: int = 0
    probe_since: float = 0.0
    in_a_row: int = 0
    window: float = 0.0
    asked: int = 0
    failed_in_window: int = 0

    def state(self, now: float) -> State:
        if not self.open_until:
            return "closed"
        return "open" if now < self.open_until else "half-open"

    def allows(self, now: float) -> bool:
        """Whether a request may be sent; while half open only one at a time."""
        if not self.open_until:
            return True
        return now >= self.open_until and not self.is_probing(now)

    def is_probing(self, now: float) -> bool:
        return bool(self.probe_since) and now - self.probe_since < PROBE_PATIENCE

    def sent(self, now: float) -> None:
        """A request is being sent; on a circuit that was open it is the probe."""
        if self.open_until and now >= self.open_until:
            self.probe_since = now

    def unknown(self) -> None:
        """A request ended without telling anything about the place: given up, refused for what it asked."""
        self.probe_since = 0.0

    def came_back(self, now: float) -> None:
        """It was away and says that it is there again: what failed meanwhile says nothing any more."""
        if self.open_until:
            self.open_until, self.times_open, self.probe_since = min(self.open_until, now), 0, 0.0

    def succeeded(self, now: float) -> None:
        self._count(now)
        self.in_a_row = 0
        if self.open_until and now >= self.open_until:
            self.open_until, self.times_open, self.probe_since = 0.0, 0, 0.0
            self.asked = self.failed_in_window = 0

    def failed(self, now: float) -> None:
        self._count(now)
        self.failed_in_window += 1
        self.in_a_row += 1
        was_probe = bool(self.open_until) and now >= self.open_until
        often = self.asked >= LEAST and self.failed_in_window > SHARE * self.asked
        if was_probe or (not self.open_until and (self.in_a_row >= IN_A_ROW or often)):
            self.open_until = now + min(LONGEST_OPEN, FIRST_OPEN * 2.0 ** min(self.times_open, 16))
            self.times_open += 1
            self.probe_since = 0.0
            self.asked = self.failed_in_window = 0

    def _count(self, now: float) -> None:
        if now - self.window >= WITHIN:
            self.window, self.asked, self.failed_in_window = now, 0, 0
        self.asked += 1
