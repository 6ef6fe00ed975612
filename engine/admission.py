"""Whether one more request may wait, and when it is worth coming back.

Knows: what waits and runs, measured speeds. Does not know: clocks, blocks, who runs next.

Bounded in requests and in seconds of reading. A tenant may hold as many places as `_SHARE` times those still free
(dynamic thresholds, Choudhury and Hahne 1998): one alone may fill nearly all of the queue, and yet never so much that
another is refused for it.
"""

from engine.api import Overloaded
from engine.pacing import Pace
from engine.sequence import Sequence

_SHARE = 8
_RETRY = (1.0, 60.0)  # seconds: least and most that a client is told


class Admission:
    """`places`: how many requests may wait; `seconds`: how long it may take to read their prompts."""

    def __init__(self, places: int, seconds: float, pace: Pace) -> None:
        self._places, self._seconds, self._pace = places, seconds, pace

    def check(self, tenant: str, waiting: list[Sequence], running: list[Sequence]) -> None:
        """Raises Overloaded."""
        free = self._places - len(waiting)
        mine = sum(sequence.salt == tenant for sequence in waiting)
        if free <= 0 or mine >= _SHARE * free:
            what = "requests are waiting already" if free <= 0 else "requests of this client are waiting already"
            raise Overloaded(
                f"{len(waiting) if free <= 0 else mine} {what}.", retry_after=self._retry(waiting, running)
            )
        reading = self._pace.backlog(sum(sequence.pending for sequence in waiting), 0)
        if waiting and reading > self._seconds:
            message = f"Reading what waits already takes about {reading:.0f} s."
            raise Overloaded(message, retry_after=self._retry(waiting, running))

    def _retry(self, waiting: list[Sequence], running: list[Sequence]) -> float:
        """Seconds until a place is likely: everything that waits and runs, spread over the places it takes up."""
        live = [*waiting, *running]
        prompt = sum(max(sequence.prompt - sequence.computed, 0) for sequence in live)
        output = sum(sequence.sampling.max_tokens - sequence.completion for sequence in live)
        seconds = self._pace.backlog(prompt, output) / max(len(live), 1)
        return min(max(seconds, _RETRY[0]), _RETRY[1])
