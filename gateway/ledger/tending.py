"""What the ledger does by itself: show that it lives, hand back idle leases, recover dead journals, stay current.

Knows: how often. Does not know: SQL, files, requests.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from gateway.db.session import UNREACHABLE
from gateway.errors import Overloaded
from gateway.ledger.book import APART_SECONDS, Book, BootClosed
from gateway.ledger.leases import Leases
from gateway.ledger.recovery import Recovery
from gateway.ledger.shipper import set_within
from gateway.outage import Outage
from gateway.tasks import Tasks

log = structlog.get_logger("nearhit.ledger")

_TURN_SECONDS = 0.25
_BEAT_SECONDS = 8.0  # so that leases outlast an outage of a minute, whenever it begins
_RECOVER_SECONDS = 2.0
_REFRESH_SECONDS = 2.0
_QUIET_SECONDS = 60.0  # between two lines about the same failure, which may come four times a second for hours
_LEASE_SECONDS = 72.0  # four fifths of the time after which a silent boot counts as lost


class Pulse:
    """The life sign of one boot, and the database's clock as last heard.

    `oldest` answers the admission of its oldest attempt that is not in the database yet: a month is closed only when
    every process has said that it has none of that month left.
    """

    def __init__(
        self,
        book: Book,
        boot: str,
        oldest: Callable[[], float | None],
        *,
        now: Callable[[], float],
        monotonic: Callable[[], float],
        tasks: Tasks,
    ) -> None:
        self.processes = 1
        self._oldest = oldest
        self._book = book
        self._boot = boot
        self._now = now
        self._monotonic = monotonic
        self._there, self._heard = now(), monotonic()
        self._good_until = float("-inf")
        self._apart = False
        self._quiet_until = float("-inf")
        self._tasks = tasks
        self._renewing: asyncio.Task[bool] | None = None

    def instant(self) -> float:
        """The database's time, seconds since the epoch: all processes must agree on which window it is.

        Counted on from when it was last heard, so that nobody who sets this host's clock moves spending to another day.
        SQLite has no clock but this host's: there a change holds from the next beat on.
        """
        return self._there + self._monotonic() - self._heard

    async def begin(self, host: str, *, journalled: bool) -> None:
        """The boot's row is made, and the database's clock heard. Raises what an unreachable database raises."""
        asked, heard = self._now(), self._monotonic()
        self._there = await self._book.open_boot(self._boot, host, asked, journalled=journalled)
        self._heard = heard

    async def beat(self) -> None:
        """Raises BootClosed, and what an unreachable database raises."""
        asked, heard = self._now(), self._monotonic()
        self._there, self.processes = await self._book.beat(self._boot, asked, self._oldest())
        self._heard = heard
        self._good_until = self._monotonic() + _LEASE_SECONDS
        self._quiet_until = float("-inf")
        self._compare(asked)

    def _compare(self, asked: float) -> None:
        """Money goes by the database's clock; how old a kept answer is, and what logs say, by the host's."""
        ahead = asked - self._there
        apart = abs(ahead) > APART_SECONDS
        if apart and not self._apart:
            log.warning("this host's clock is not the database's: set both (NTP)", seconds_ahead=round(ahead))
        elif self._apart and not apart:
            log.warning("this host's clock is the database's again")
        self._apart = apart

    async def look_around(self) -> None:
        """Hear of processes that have begun since: with them, a refusal has to wait for what they can hand back."""
        self.processes = await self._book.living(self.instant())

    @property
    def is_fresh(self) -> bool:
        """Whether leases are still ours to spend: others may take a boot for lost that has been silent for long."""
        return self._monotonic() <= self._good_until

    async def require(self) -> None:
        """Make leases ours to spend again. Raises Overloaded."""
        if self._renewing is None or self._renewing.done():  # after a silence everybody asks at once, for one row
            self._renewing = self._tasks.spawn(self._renewed(), "ledger-beat")
        if not await asyncio.shield(self._renewing):
            raise Overloaded(
                "The budgets cannot be read at the moment.", code="budget_unavailable", headers=(("retry-after", "1"),)
            )

    async def _renewed(self) -> bool:
        try:
            await self.beat()
        except (BootClosed, *UNREACHABLE) as error:
            if self._monotonic() >= self._quiet_until:
                self._quiet_until = self._monotonic() + _QUIET_SECONDS
                log.warning("no life sign could be given: budgets cannot be spent", error=repr(error)[:300])
            return False
        return True


class Tender:
    """One loop over everything that is due. `refresh` reloads budgets when another process has changed them."""

    def __init__(
        self,
        pulse: Pulse,
        leases: Leases,
        recovery: Recovery,
        refresh: Callable[[], Awaitable[None]],
        *,
        monotonic: Callable[[], float],
    ) -> None:
        self._monotonic = monotonic
        self._pulse = pulse
        self._leases = leases
        started = monotonic()
        self._duties: list[tuple[float, Callable[[], Awaitable[object]]]] = [
            (_TURN_SECONDS, leases.tend),
            (_BEAT_SECONDS, self._beat),
            (_REFRESH_SECONDS, refresh),
            (_RECOVER_SECONDS, recovery.recover),
        ]
        self._due = [started + every for every, _ in self._duties]
        self._away = [self._outage() for _ in self._duties]

    def add(self, refresh: Callable[[], Awaitable[object]]) -> None:
        """One more duty of the kind that follows other processes."""
        self._duties.append((_REFRESH_SECONDS, refresh))
        self._due.append(self._monotonic() + _REFRESH_SECONDS)
        self._away.append(self._outage())

    async def turn(self) -> None:
        """Do what is due. A failure is logged, once a minute while it lasts, and tried again when it is due again."""
        for i, (every, duty) in enumerate(self._duties):
            if self._monotonic() < self._due[i]:
                continue
            self._due[i] = self._monotonic() + every
            try:
                await duty()
            except BootClosed:
                log.error("this process's leases were taken over by a recovery; it must be restarted")
            except UNREACHABLE as error:
                self._away[i].goes_on(error, duty=duty.__name__)
            else:
                self._away[i].over()

    def _outage(self) -> Outage:
        """Of one duty."""
        return Outage(log, "ledger upkeep failed", "ledger upkeep goes on", monotonic=self._monotonic)

    async def run(self, stopping: asyncio.Event) -> None:
        while not await set_within(stopping, _TURN_SECONDS):
            await self.turn()

    async def _beat(self) -> None:
        await self._pulse.beat()
        self._leases.processes = self._pulse.processes
