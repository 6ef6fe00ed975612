"""The ledger's transactions about boots and leases: begin, live, lease out, take back, close.

Knows: what may be repeated when a reply was lost. Does not know: memory, journals, when any of this is called.
A lease is changed only while it still is what the caller believes (compare and set on the granted amount); every
answer says how things stand now, so a caller whose last reply was lost simply learns what had happened.
"""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct
from sqlalchemy import Select, bindparam, func, select, text, update
from sqlalchemy.engine import Connection

from gateway.db.models import Boot, BudgetWindow, Lease
from gateway.db.session import Database
from gateway.ledger.balances import (
    BALANCES,
    NO_LEASE,
    Balance,
    Standing,
    Windows,
    chunks,
    give_up,
    insert_once,
    leases_of,
    parameters,
    resize,
)
from policies.budget import lease_amount

_ALIVE_SECONDS = 90.0
APART_SECONDS = 30.0  # between two clocks that are called different: many times a question and its answer


class BootClosed(Exception):
    """This boot's leases were taken over; it must not spend any more."""


class Ask(Struct, frozen=True, kw_only=True):
    """A wish for a larger lease. `granted`: what the asker believes it has; the rest as in `lease_amount`."""

    window: str
    granted: int
    demand: int
    least: int
    appetite: int


class Return(Struct, frozen=True, kw_only=True):
    """A part of a lease handed back. `granted`: what the owner believes it has."""

    window: str
    granted: int
    amount: int


class Book:
    """Handle to the leases of one database. Each method is one short transaction."""

    def __init__(self, database: Database, windows: Windows) -> None:
        self._database = database
        self._windows = windows
        self._add_leases = insert_once(database.dialect, Lease)
        self._add_boot = insert_once(database.dialect, Boot)

    async def open_boot(self, boot: str, host: str, now: float, *, journalled: bool) -> float:
        """A boot begins; answers the database's clock."""
        return await self._database.transact(self._open_boot, {"id": boot, "host": host, "journalled": journalled}, now)

    def _open_boot(self, connection: Connection, row: dict[str, object], now: float) -> float:
        instant = clock(connection, now)
        connection.execute(self._add_boot, [row | {"started": instant, "seen": instant}])
        return instant

    async def beat(self, boot: str, now: float, oldest: float | None = None) -> tuple[float, int]:
        """Note that `boot` lives, and since when its oldest attempt waits to be posted.

        Answers the database's clock and how many boots live. Raises BootClosed.
        """
        return await self._database.transact(self._beat, boot, now, oldest)

    def _beat(self, connection: Connection, boot: str, now: float, oldest: float | None) -> tuple[float, int]:
        instant = clock(connection, now)
        alive = update(Boot).where(Boot.id == boot, Boot.closed.is_(None)).values(seen=instant, oldest=oldest)
        if connection.execute(alive).rowcount == 0:
            raise BootClosed(boot)
        return instant, max(1, int(connection.scalar(_living(instant)) or 1))

    async def living(self, now: float) -> int:
        """How many boots live, `now` by the database's clock."""
        async with self._database.read() as connection:
            return max(1, int(await connection.scalar(_living(now)) or 1))

    async def close_boot(self, boot: str, now: float) -> None:
        """Give back everything `boot` had leased and not spent. After this it can lease nothing more."""
        await self._database.transact(self._close_boot, boot, now)

    def _close_boot(self, connection: Connection, boot: str, now: float) -> None:
        connection.execute(update(Boot).where(Boot.id == boot, Boot.closed.is_(None)).values(closed=now, seen=now))
        held = select(Lease.window_id).where(Lease.boot == boot, Lease.closed.is_(False))
        names = [row[0] for row in connection.execute(held)]
        self._windows.lock(connection, names)
        give_up(connection, boot, leases_of(connection, boot, names))

    async def close_silent(self, now: float) -> None:
        """Close boots that are gone and kept no journal: nobody will ever learn what they had in flight."""
        async with self._database.read() as connection:
            instant = await connection.run_sync(clock, now)
            gone = select(Boot.id).where(
                Boot.closed.is_(None), Boot.journalled.is_(False), Boot.seen <= instant - _ALIVE_SECONDS
            )
            names = [row[0] for row in await connection.execute(gone)]
        for name in names:
            await self.close_boot(name, now)

    async def balances(self, names: Sequence[str]) -> dict[str, Balance]:
        """The windows that exist already, not locked."""
        found: dict[str, Balance] = {}
        async with self._database.read() as connection:
            for some in chunks(names):
                rows = await connection.execute(BALANCES, {"names": list(some)})
                found |= {row[0]: Balance(row[1], row[2], row[3]) for row in rows}
        return found

    async def grant(self, boot: str, asks: Sequence[Ask], now: float, processes: int) -> list[Standing]:
        """Lease out as much as the limits allow; a window with too little for any need keeps its lease as it is.

        Raises BootClosed.
        """
        return await self._database.transact(self._grant, boot, asks, now, processes)

    def _grant(
        self, connection: Connection, boot: str, asks: Sequence[Ask], now: float, processes: int
    ) -> list[Standing]:
        if connection.execute(_OPEN_BOOT, {"boot": boot}).first() is None:
            raise BootClosed(boot)
        names = sorted({ask.window for ask in asks})
        balances = self._windows.lock(connection, names)
        connection.execute(self._add_leases, [_new_lease(boot, name) for name in names])
        leases = leases_of(connection, boot, names)
        found: list[Standing] = []
        grown: list[tuple[str, int]] = []
        wanted: list[str] = []
        for ask in asks:
            balance, lease = balances[ask.window], leases[ask.window]
            more = 0
            if lease.granted == ask.granted:  # else an earlier reply was lost: what it granted is told now
                free = balance.limit - balance.spent - balance.held
                more = lease_amount(balance.limit, free, ask.demand, ask.least, ask.appetite, processes)
                if more < ask.least:
                    wanted.append(ask.window)
            if more:
                grown.append((ask.window, more))
            balance, lease = balance._replace(held=balance.held + more), lease._replace(granted=lease.granted + more)
            found.append(Standing(ask.window, balance, lease))
        resize(connection, boot, grown)
        if wanted and processes > 1:
            connection.execute(_WANT, [{"name": name, "at": now} for name in wanted])
        return found

    async def release(self, boot: str, back: Sequence[Return]) -> list[Standing]:
        """Take back parts of leases."""
        return await self._database.transact(self._release, boot, back)

    def _release(self, connection: Connection, boot: str, back: Sequence[Return]) -> list[Standing]:
        names = [part.window for part in back]
        balances = self._windows.lock(connection, names)
        leases = leases_of(connection, boot, names)
        found: list[Standing] = []
        shrunk: list[tuple[str, int]] = []
        for part in back:
            balance, lease = balances[part.window], leases.get(part.window, NO_LEASE)
            if lease.granted == part.granted and not lease.closed:
                shrunk.append((part.window, -part.amount))
                balance = balance._replace(held=balance.held - part.amount)
                lease = lease._replace(granted=lease.granted - part.amount)
            found.append(Standing(part.window, balance, lease))
        resize(connection, boot, shrunk)
        return found

    async def wanted(self, names: Sequence[str], since: float) -> list[str]:
        """Those of the windows that some process was refused on after `since`."""
        async with self._database.read() as connection:
            rows = await connection.execute(_WANTED, {"names": list(names), "since": since})
            return [row[0] for row in rows]


async def ahead(url: str, now: Callable[[], float]) -> float:
    """How many seconds this host's clock, `now`, is ahead of that of a database. Raises UNREACHABLE."""
    database = Database(url)
    try:
        async with database.read() as connection:
            asked = now()
            return asked - await connection.run_sync(clock, asked)
    finally:
        await database.close()


def clock(connection: Connection, now: float) -> float:
    """The database's: who is gone may not depend on which host looks. SQLite has none but this host's."""
    return now if connection.dialect.name == "sqlite" else float(connection.scalar(_CLOCK) or now)


def _new_lease(boot: str, name: str) -> dict[str, object]:
    return {"boot": boot, "window_id": name, "granted_nano": 0, "consumed_nano": 0, "closed": False}


def _living(now: float) -> Select[Any]:
    return select(func.count()).where(Boot.closed.is_(None), Boot.seen > now - _ALIVE_SECONDS)


_CLOCK = text("SELECT extract(epoch FROM clock_timestamp())")
_OPEN_BOOT = (
    select(Boot.id).where(Boot.id == bindparam("boot"), Boot.closed.is_(None)).with_for_update(read=True)
)  # FOR SHARE: whoever closes this boot waits until this grant is done, and sees its lease
_WANT = update(BudgetWindow).where(BudgetWindow.id == bindparam("name")).values(wanted=bindparam("at"))
_WANTED = select(BudgetWindow.id).where(
    BudgetWindow.id.in_(parameters("names")), BudgetWindow.wanted > bindparam("since")
)
