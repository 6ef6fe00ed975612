"""Whether a place may take over requests that failed elsewhere: proven, being found out, or failing as well.

When the first place of a route dies under many requests at once, all of them turn to the next one. If that one is well
they should go there; if it is down too, every one of them is a call for nothing. So one goes first and the others pay
(`policies.retry`) or wait for news: each answer doubles how many may be under way, a failure takes that back to one.
Silence is news as well: what is down mostly says so soon. Where there is nobody else to ask, it doubles them too.

Time is handed in, in monotonic seconds. Does not know: what a failure is, who waits, what a retry costs.
The doubling is slow start as in TCP (RFC 5681); a half-open circuit finds out in the same way, for a place by itself.
"""

from math import inf
from typing import Literal

from msgspec import Struct

QUIET = 10.0  # a place that has done well for so long after its last failure has recovered
FRESH = 10.0  # for so long an answer proves something
_MOST = 1 << 16
_FIRST = 3  # steps of silence before it says anything

Verdict = Literal["proven", "slow", "crowded", "unknown", "asked", "unheard", "failed"]


class Takeover(Struct):
    """What is known of one place. `under_way`: requests there that failed elsewhere, of which `may` be at most.

    `failing_since`: its first failure since it did well for a while. `proven_at`: when the newest request that it
    answered was sent, so that what was sent before an outage proves nothing about it. `quiet_may`: of which so many
    may be because nothing is heard, since `quiet_at`. `asked_at`: when the newest of them came.
    """

    failing_since: float | None = None
    failed_at: float = -inf
    proven_at: float = -inf
    may: int = 1
    under_way: int = 0
    quiet_may: int = 0
    quiet_at: float = -inf
    asked_at: float = -inf

    def verdict(self, since: float, now: float) -> Verdict:
        """What is known of this place, for a request whose own place has been failing `since`.

        proven: it has answered meanwhile, and there is room. slow: nobody knows, and it has been silent for so long
        that there is room. crowded: proven, without room before the next answer. unknown: nobody has asked since.
        asked: somebody is finding out. unheard: somebody did and left without news. failed: its last news were bad.
        """
        proven = self.proven_at >= since and now - self.proven_at < FRESH
        if not proven:
            self.may = 1
            if self.failed_at >= since and self.failed_at > self.proven_at:
                return "failed"
            if not self.under_way and self.asked_at < since:
                return "unknown"
        if self.under_way < max(self.may if proven else 0, self.quiet_may):
            return "proven" if proven else "slow"
        if proven:
            return "crowded"
        return "asked" if self.under_way else "unheard"

    def came(self, now: float) -> None:
        """A request that failed elsewhere goes there; `left` once it is over."""
        if not self.under_way:
            self.quiet_at, self.quiet_may = now, 0
        self.asked_at = now
        self.under_way += 1

    def is_quiet(self, now: float, step: float) -> None:
        """Who waits has heard nothing: after three steps of so many seconds, and then after each, as many again as are
        there may go in, or one.
        """
        if now - self.quiet_at >= (step if self.quiet_may else _FIRST * step):
            self.quiet_at, self.quiet_may = now, max(1, min(_MOST, self.under_way * 2))

    def left(self) -> None:
        self.under_way -= 1

    def answered(self, sent: float, now: float) -> None:
        """A request sent there at `sent`, from elsewhere or not, was answered."""
        self.proven_at = max(self.proven_at, sent)
        self.may = min(_MOST, self.may * 2)
        if now - self.failed_at >= QUIET:
            self.failing_since = None

    def failed(self, now: float) -> None:
        self.failed_at = self.quiet_at = now
        self.may, self.quiet_may = 1, 0
        if self.failing_since is None:
            self.failing_since = now
