"""Posting entries: insert by id, move balances only for rows that were new, keep contradictions aside.

Knows: the entry's row, idempotence, alerts. Does not know: journals, when it is called, where lines come from.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from sqlalchemy import select
from sqlalchemy.engine import Connection

from gateway.db.models import Entry, EntryConflict, PriceVersion
from gateway.db.session import Database
from gateway.ledger.alerting import Alerting, Moved
from gateway.ledger.balances import (
    NO_LEASE,
    Balance,
    LeaseRow,
    Spending,
    Standing,
    Windows,
    chunks,
    insert_once,
    leases_of,
    locked,
    parameters,
    spend,
)
from gateway.ledger.inserts import Inserts, Repeated
from gateway.ledger.late import book as book_late
from gateway.ledger.openings import UNCONFIRMED, Opened, Openings, told
from gateway.ledger.records import Dispatch, Rates, Settle

_MOST_PRICES = 10_000
_NONE: Mapping[str, Sequence[str]] = {}
_MAIN = 5  # token counts with a column of their own
_encode = msgspec.json.Encoder().encode


class Line(Struct, frozen=True, gc=False):
    """One attempt, begun and ended, ready to be posted."""

    dispatch: Dispatch
    settle: Settle

    @property
    def price(self) -> Rates:
        """What it was charged by."""
        return self.settle.price or self.dispatch.price


class Posts:
    """Handle to the entries of one database, whose clock `instant` answers: which months may be closed goes by it."""

    def __init__(
        self, database: Database, windows: Windows, alerting: Alerting, *, instant: Callable[[], float]
    ) -> None:
        self._database = database
        self._instant = instant
        self._windows = windows
        self._alerting = alerting
        self._openings = Openings(database.dialect)
        self._entries = Inserts(database.dialect, Entry)
        self._add_conflicts = insert_once(database.dialect, EntryConflict)
        self._add_prices = insert_once(database.dialect, PriceVersion)
        self._known_prices: set[str] = set()

    async def post(self, boot: str, lines: Sequence[Line], now: float) -> list[Standing]:
        """Add the entries of `boot` in one transaction; answers how each window and lease they touch stands now.

        An id that exists with the same content is a repeat and changes nothing; with other content it goes to
        `entry_conflict` and is not applied: the first writer wins.
        """
        try:
            standings, opened = await self._database.transact(self._post, boot, lines, now, new=True)
        except Repeated:  # the reply to an earlier try was lost, or a recovery repeats
            standings, opened = await self._database.transact(self._post, boot, lines, now)
        self._openings.committed(opened)
        if len(self._known_prices) > _MOST_PRICES:
            self._known_prices.clear()
        self._known_prices.update(line.price.id for line in lines)
        return standings

    def _post(
        self, connection: Connection, boot: str, lines: Sequence[Line], now: float, *, new: bool = False
    ) -> tuple[list[Standing], Opened]:
        """`new`: nobody should have posted any of them before, which saves a look on SQLite; raises Repeated if so."""
        by_id = {line.settle.id: line for line in lines}
        names = set[str]().union(*{line.dispatch.windows for line in lines})
        self._windows.make(connection, names)
        opened = self._openings.enter(connection, now)
        unnamed = opened.unnamed(connection, [line.dispatch for line in by_id.values()])
        balances = locked(connection, sorted(names.union(*unnamed.values())))
        leases = leases_of(connection, boot, list(balances))
        self._add_new_prices(connection, lines, now)
        added = self._insert(connection, boot, by_id, new)
        fresh = [line for name, line in by_id.items() if name in added]
        book_late(connection, [(line.settle.id, line.dispatch.admitted) for line in fresh], self._instant())
        if len(fresh) < len(by_id):
            self._keep_conflicts(connection, [line for name, line in by_id.items() if name not in added], now)
        changes = _spending(fresh, leases, unnamed)
        spend(connection, boot, changes)
        moved = [
            Moved(one.window, balances[one.window].limit, spent, spent + one.spent)
            for one in changes
            for spent in (balances[one.window].spent,)
        ]
        self._alerting.moved(connection, moved, now)
        return _after(balances, leases, changes), opened

    def _insert(self, connection: Connection, boot: str, lines: dict[str, Line], new: bool) -> set[str]:
        """Insert what is not there; answers which that was. SQLite has to look first unless all should be `new`."""
        names = set[str](lines)
        if self._database.dialect == "sqlite" and not new:
            for some in chunks(list(lines)):
                names.difference_update(row[0] for row in connection.execute(_DIGESTS, {"names": list(some)}))
        return self._entries.add(connection, [entry_row(boot, lines[name]) for name in sorted(names)])

    def _add_new_prices(self, connection: Connection, lines: Sequence[Line], now: float) -> None:
        prices = {line.price.id: line.price for line in lines}
        rows = [_price_row(price, now) for name, price in prices.items() if name not in self._known_prices]
        if rows:
            connection.execute(self._add_prices, rows)

    def _keep_conflicts(self, connection: Connection, again: Sequence[Line], now: float) -> None:
        known: dict[str, str] = {}
        for some in chunks([line.settle.id for line in again]):
            known |= {row[0]: row[1] for row in connection.execute(_DIGESTS, {"names": list(some)})}
        rows = [
            {
                "entry_id": line.settle.id,
                "digest": digest(line.settle),
                "at": now,
                "amount_nano": line.settle.amount,
                "source": line.settle.source,
            }
            for line in again
            if known.get(line.settle.id) != digest(line.settle)
        ]
        if rows:
            connection.execute(self._add_conflicts, rows)


def _spending(
    fresh: Iterable[Line], leases: dict[str, LeaseRow], unnamed: Mapping[str, Sequence[str]] = _NONE
) -> list[Spending]:
    """What new lines add to each window, how much of it this boot's lease holds, and the windows it does not name."""
    spent: Counter[str] = Counter()
    estimated: Counter[str] = Counter()
    opening: Counter[str] = Counter()
    together: Counter[tuple[tuple[str, ...], bool]] = Counter()  # most of a batch fall under the same windows
    for line in fresh:
        amount, confirmed = line.settle.amount, line.settle.source not in UNCONFIRMED
        together[line.dispatch.windows, confirmed] += amount
        if (also := unnamed.get(line.settle.id)) is not None:
            together[tuple(also), confirmed] += amount
            for name in also:
                opening[name] += amount
    for (names, confirmed), amount in together.items():
        for name in names:
            spent[name] += amount
            estimated[name] += 0 if confirmed else amount
    changes: list[Spending] = []
    for name in sorted(name for name, amount in spent.items() if amount):
        lease = leases.get(name, NO_LEASE)
        mine = spent[name] - opening[name]
        taken = 0 if lease.closed else max(0, min(mine, lease.granted - lease.consumed))
        changes.append(Spending(name, spent[name], estimated[name], taken, opening[name]))
    return changes


def _after(balances: dict[str, Balance], leases: dict[str, LeaseRow], changes: Sequence[Spending]) -> list[Standing]:
    moved = {change.window: change for change in changes}
    found: list[Standing] = []
    for name, balance in balances.items():
        lease = leases.get(name, NO_LEASE)
        if (change := moved.get(name)) is not None:
            balance = balance._replace(spent=balance.spent + change.spent, held=balance.held - change.taken)
            lease = lease._replace(consumed=lease.consumed + change.taken)
        found.append(Standing(name, balance, lease))
    return found


def digest(ended: Settle) -> str:
    """What makes two ends of one attempt the same."""
    return "/".join(map(str, (ended.amount, ended.source, ended.ended, *ended.tokens)))


def entry_row(boot: str, line: Line) -> tuple[Any, ...]:
    """The row of `entry` for one attempt, in the order of its columns."""
    begun, ended = line.dispatch, line.settle
    return (
        ended.id,
        begun.request_id,
        begun.admitted,
        ended.at,
        boot,
        _encode(begun.windows).decode(),
        begun.team,
        begun.project,
        begun.key_id,
        begun.user,
        begun.provider,
        begun.model,
        ended.provider_id,
        line.price.id,
        *ended.tokens[:_MAIN],
        ended.amount,
        begun.reserve,
        ended.source,
        ended.ended,
        ended.note,
        digest(ended),
        classes_text(ended.tokens[_MAIN:]),
        begun.asked,
        told(begun.tags),
        begun.charged,
    )


def classes_text(classes: Sequence[int]) -> str | None:
    """What stands in `entry.classes`: None when there are none."""
    return _encode(classes).decode() if classes else None


def _price_row(price: Rates, now: float) -> dict[str, Any]:
    return {
        "id": price.id,
        "input_pico": price.input,
        "output_pico": price.output,
        "cached_pico": price.cached,
        "cache_write_pico": price.cache_write,
        "request_pico": price.request,
        "tiers": [list(tier) for tier in price.tiers],
        "status": price.status,
        "first_used": now,
        "terms": None if price.terms is None else msgspec.to_builtins(price.terms),
    }


_DIGESTS = select(Entry.id, Entry.digest).where(Entry.id.in_(parameters("names")))
