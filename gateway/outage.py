"""What is said of something that is away: when that begins, once a minute while it lasts, and when it is over.

Whoever tries again every second would otherwise fill the log of an outage with nothing else.
Knows: since when, when it was last said. Does not know: what is away, how often somebody tries.
"""

import time
from collections.abc import Callable
from typing import Any

_QUIET_SECONDS = 60.0


class Outage:
    """`log`: structlog's. `what`: said while it lasts; `then`: said once when it is over. `monotonic`: seconds."""

    def __init__(self, log: Any, what: str, then: str, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._what = what
        self._then = then
        self._monotonic = monotonic
        self._since: float | None = None
        self._quiet_until = 0.0

    def goes_on(self, error: BaseException, **told: object) -> None:
        """One more try in vain."""
        now = self._monotonic()
        if self._since is None:
            self._since = now
        elif now < self._quiet_until:
            return
        self._quiet_until = now + _QUIET_SECONDS
        self._log.warning(self._what, **told, seconds=round(now - self._since), error=repr(error)[:300])

    def over(self) -> None:
        """A try that was not in vain."""
        if self._since is not None:
            self._log.info(self._then, seconds=round(self._monotonic() - self._since))
            self._since = None
