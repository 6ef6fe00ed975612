"""Identifiers: UUIDv7 (RFC 9562), so that ids sort by time. The one place that draws randomness for ids."""

import os
import threading
import time

_DRAWN = 4_096  # bytes asked of the system at once: a call for every id would give other threads a turn each time
_NEEDED = 10


class _Randomness(threading.local):
    """The system's random bytes, drawn ahead by each thread; a forked child begins with its own."""

    def __init__(self) -> None:
        self._bytes = b""
        self._at = 0
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._bytes, self._at = b"", 0

    def take(self) -> bytes:
        at = self._at
        if at + _NEEDED > len(self._bytes):
            self._bytes, at = os.urandom(_DRAWN), 0
        self._at = at + _NEEDED
        return self._bytes[at : self._at]


_randomness = _Randomness()


def uuid7() -> str:
    """Canonical text form, 48 bits of milliseconds, 74 random bits."""
    drawn = _randomness.take()
    at, bits, variant = f"{time.time_ns() // 1_000_000:012x}", drawn.hex(), "89ab"[drawn[9] & 3]
    return f"{at[:8]}-{at[8:]}-7{bits[:3]}-{variant}{bits[3:6]}-{bits[6:18]}"
