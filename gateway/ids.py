"""Identifiers: UUIDv7 (RFC 9562), so that ids sort by time. The one place that draws randomness for ids."""

import os
import re
import time

_BYTES = 10
_TOGETHER = 128  # ids for which the system is asked at once: a call for each would give other threads a turn every time
_TOLD = re.compile(r"(?:chatcmpl-|cmpl-|resp_|msg_)([0-9a-f]{8})([0-9a-f]{4})(7[0-9a-f]{3})([0-9a-f]{4})([0-9a-f]{12})")
_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
# Random parts that nobody has been given. `pop` is one step of the interpreter: no two threads get the same.
_ready: list[str] = []
os.register_at_fork(after_in_child=_ready.clear)


def uuid7() -> str:
    """Canonical text form, 48 bits of milliseconds, 74 random bits."""
    while True:
        try:
            random = _ready.pop()
            break
        except IndexError:
            _draw()
    at = f"{time.time_ns() // 1_000_000:012x}"
    return f"{at[:8]}-{at[8:]}-7{random}"


def moment(name: str) -> float:
    """When a `uuid7` was made, Unix seconds."""
    return int(name[:8] + name[9:13], 16) / 1_000


def request_of(name: str) -> str:
    """The request that made an answer whose own id is `name`; any other name as it is.

    Clients often keep a body and no headers.
    """
    read = _TOLD.fullmatch(name)
    return name if read is None else "-".join(read.groups())


def _draw() -> None:
    drawn = os.urandom(_TOGETHER * _BYTES).hex()
    _ready.extend(
        [
            f"{drawn[at : at + 3]}-{_VARIANT[drawn[at + 19]]}{drawn[at + 3 : at + 6]}-{drawn[at + 6 : at + 18]}"
            for at in range(0, len(drawn), 2 * _BYTES)
        ]
    )
