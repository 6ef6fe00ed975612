"""Which prompts may have brought an engine's process down, and which surely did.

Everybody who was there when a process ended is suspected, and suspects run one at a time (that is for the caller to
see to). So whoever is there at the next end as a suspect did it, and everybody else is innocent of it; who is answered
is cleared. Time is handed in, in monotonic seconds. Does not know: prompts (only their digests), engines, what waits.
"""

from collections import OrderedDict
from typing import Literal

SHUT_FOR = 3_600.0  # seconds; for so long a suspicion lasts, too
_TOGETHER = 1.0  # seconds within which all who were there hear of one end
_MOST = 4_096

Standing = Literal["clear", "suspect", "shut"]


class Quarantine:
    """Of one engine."""

    def __init__(self) -> None:
        self._seen: OrderedDict[bytes, tuple[Standing, float]] = OrderedDict()  # and until when
        self._found_at = float("-inf")

    def __bool__(self) -> bool:
        """Whether there is anybody to look for at all."""
        return bool(self._seen)

    def standing(self, digest: bytes, now: float) -> Standing:
        standing, until = self._seen.get(digest, ("clear", 0.0))
        if now < until:
            return standing
        self._seen.pop(digest, None)
        return "clear"

    def was_there(self, digest: bytes, now: float, *, alone: bool) -> Standing:
        """The process ended with it inside; how it stands from now on. `alone`: it ran as a suspect."""
        if alone:
            self._found_at = now
            return self._set(digest, "shut", now)
        if self.standing(digest, now) == "clear" and now - self._found_at >= _TOGETHER:
            return self._set(digest, "suspect", now)
        return self.standing(digest, now)

    def answered(self, digest: bytes) -> None:
        self._seen.pop(digest, None)

    def _set(self, digest: bytes, standing: Standing, now: float) -> Standing:
        self._seen[digest] = (standing, now + SHUT_FOR)
        self._seen.move_to_end(digest)
        if len(self._seen) > _MOST:
            self._seen.popitem(last=False)
        return standing
