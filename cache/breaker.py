"""A circuit breaker: after failures, do not even try for a moment, then let one probe through.

Knows only successes, failures and a monotonic clock. Does not know what it protects.
"""

from collections.abc import Callable


class Breaker:
    """Closed while all is well; open for `pause` seconds after `tolerance` failures in a row; then one probe.

    A refused connection should count as `tolerance` failures at once (`fail(outright=True)`): it will not heal by
    trying again, while a single time-out may just be a busy machine.
    """

    def __init__(self, *, monotonic: Callable[[], float], tolerance: int = 2, pause: float = 1.0) -> None:
        self._monotonic = monotonic
        self._tolerance = tolerance
        self._pause = pause
        self._failures = 0
        self._open_until = 0.0
        self._probe_until = 0.0

    @property
    def is_open(self) -> bool:
        return self._failures >= self._tolerance

    def allows(self) -> bool:
        """Whether to try now. While open, one caller per `pause` is told yes: the probe."""
        if not self.is_open:
            return True
        moment = self._monotonic()
        if moment < self._open_until or moment < self._probe_until:
            return False
        # A probe that is cancelled and never reports back must not keep the circuit open for ever.
        self._probe_until = moment + self._pause
        return True

    def succeed(self) -> None:
        self._failures = 0

    def fail(self, *, outright: bool = False) -> None:
        self._failures = self._tolerance if outright else self._failures + 1
        if self.is_open:
            self._open_until = self._monotonic() + self._pause
            self._probe_until = 0.0
