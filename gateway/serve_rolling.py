"""Every worker anew, one after another, without a broken stream: what `SIGUSR2` to `nearhit serve` does.

And every worker told to read its configuration again, for `SIGHUP`, once it can be told.

A worker is told to drain: it takes no new connection and finishes its answers, while the others, and the backlog of
the socket they share, take what comes. Its successor is started when it has ended, and the next worker's turn comes
when the successor serves. Knows: whose turn it is. Does not know: how a process is started or drained.
"""

import signal
from collections.abc import Sequence

from gateway.serve_child import Child
from gateway.serve_hearing import Hearing


class Rolling:
    """`hearing`: who serves. `longest`: seconds a worker may take to end before it is killed."""

    def __init__(self, workers: Sequence[Child], hearing: Hearing, *, longest: float) -> None:
        self._workers = list(workers)
        self._hearing = hearing
        self._longest = longest
        self._owed: set[Child] = set()
        self._left: list[Child] = []
        self._turn: Child | None = None
        self._old: int | None = None
        self._until = 0.0

    def begin(self) -> bool:
        """False where it is under way already."""
        if self._turn is not None or self._left:
            return False
        self._left = list(self._workers)
        return True

    def reread(self) -> None:
        """Every worker reads its configuration again, a starting one once it serves: until then SIGHUP ends it."""
        self._owed.update(self._workers)

    def step(self, now: float) -> str | None:
        """To be called often, after the children were looked after; what there is to tell."""
        self._hearing.listen(now)
        if self._turn is None:
            self._hearing.forget_all_but(worker.pid for worker in self._workers if worker.pid is not None)
        for worker in [owed for owed in self._owed if self._hearing.serves(owed.pid)]:
            self._owed.remove(worker)
            worker.signal(signal.SIGHUP)
        turn = self._turn
        if turn is None:
            if self._left:
                self._turn = turn = self._left.pop(0)
                self._old, self._until = turn.pid, now + self._longest
                turn.replace()
            return None
        if turn.failures:
            self._left, self._turn = [], None
            return f"the successor of {turn.plan.name} does not start; the others stay as they are"
        if turn.pid == self._old and self._old is not None and now >= self._until:
            turn.signal(signal.SIGKILL)
        elif self._hearing.serves(turn.pid) and turn.pid != self._old:
            self._turn = None
            return None if self._left else "every worker has been started anew"
        return None
