"""Uses of entries, noted at once and written later with others.

Bounded: where nothing has been written for long, the oldest notes are worth least. Does not know what a use is worth.
"""

from typing import NamedTuple


class Used(NamedTuple):
    """How often since the last writing, and when last (seconds since the epoch)."""

    times: int
    at: float


class Touches:
    """Notes by exact digest; `is_due` once there are `enough` for one writing."""

    def __init__(self, *, enough: int, most: int) -> None:
        self._enough = enough
        self._most = most
        self._noted: dict[bytes, Used] = {}

    @property
    def is_due(self) -> bool:
        return len(self._noted) >= self._enough

    def note(self, exact: bytes, now: float) -> None:
        before = self._noted.get(exact)
        self._noted[exact] = Used(1 if before is None else before.times + 1, now)
        if len(self._noted) > self._most:
            del self._noted[next(iter(self._noted))]

    def take(self) -> dict[bytes, Used]:
        """All notes; from here on there are none."""
        noted, self._noted = self._noted, {}
        return noted
