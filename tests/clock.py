"""A clock that moves only when a test says so."""


class FrozenClock:
    """Hand `clock.now` and `clock.monotonic` to whatever takes them; `advance` moves both by the same seconds."""

    def __init__(self, at: float = 1_790_000_000.0, monotonic: float = 1_000.0) -> None:
        self._at = at
        self._monotonic = monotonic

    def now(self) -> float:
        """Wall-clock seconds since the epoch."""
        return self._at

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        self._at += seconds
        self._monotonic += seconds

    def jump(self, seconds: float) -> None:
        """Only the wall clock moves, as when somebody sets it."""
        self._at += seconds
