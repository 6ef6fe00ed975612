"""What is worth sending again, after how long, and how often at most.

Pure: the random number and the waits asked for come from the caller, and so does every "now". Does not know: who
failed, clocks, sleeping.

Full jitter after "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015); the budget is the deposit-and-withdraw
form of Finagle's and gRPC's retry budgets.
"""

FIRST_PAUSE = 0.25
LONGEST_PAUSE = 8.0
# Statuses of an upstream's own refusal that a later attempt may escape: it timed out, or it asks for patience.
_PATIENCE = frozenset({408, 429})
# 501 and 505 say "never", 507 and 508 are not ours.
_PASSING = frozenset({500, 502, 503, 504, 520, 521, 522, 523, 524, 529})


def worth_retrying(status: int, *, refused: bool) -> bool:
    """Whether another attempt may fare better. `refused`: the upstream understood the request and said no to it."""
    return status in (_PATIENCE if refused else _PASSING)


def pause(again: int, random: float, *, retry_after: float | None = None) -> float:
    """Seconds before repeat number `again` (from 0), given a random number in [0, 1).

    A wait that the upstream asked for is kept in full and spread upwards, so that all who were told the same do not
    come back at the same moment; without one the whole back-off is random.
    """
    longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(max(again, 0), 16))
    return random * longest + max(retry_after or 0.0, 0.0)


class RetryBudget:
    """Retries are at most a share of requests, or a small reserve; so an outage is never multiplied.

    Every request that begins deposits `share` of a retry, every retry withdraws one. What is saved up is at most that
    share of the requests under way, or `reserve`: a quiet day does not pay for a storm.
    """

    def __init__(self, *, share: float = 0.2, reserve: float = 3.0) -> None:
        self._share = share
        self._reserve = reserve
        self._balance = reserve
        self._active = 0

    @property
    def balance(self) -> float:
        return self._balance

    def began(self) -> None:
        """A request begins."""
        self._active += 1
        self._balance = min(self._balance + self._share, max(self._reserve, self._share * self._active))

    def ended(self) -> None:
        self._active = max(0, self._active - 1)

    def allows(self, spare: float = 0.0) -> bool:
        """Take one retry out of the budget, if there is one beside those to `spare`."""
        if self._balance < 1.0 + spare:
            return False
        self._balance -= 1.0
        return True

    def finds_out(self) -> bool:
        """Take one with which a place is asked that nobody has asked yet: on credit, where few are under way.

        What is lacking is paid by the requests that follow. Few are so many that the reserve is more than their share.
        """
        if not self.allows():
            if self._share * self._active >= self._reserve:
                return False
            self._balance = max(self._balance - 1.0, -self._reserve)
        return True

    def repay(self) -> None:
        """One that was taken made nothing worse."""
        self._balance += 1.0
