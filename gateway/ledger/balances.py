"""Rows of windows and leases inside a transaction: make, lock, read, change.

Knows: SQL and the order of locks: the boot, then windows by id, then leases. Does not know: why anything changes.
Everything here is blocking code that runs inside `Database.transact`. A transaction that inserts missing windows has
not locked any other yet, so the order holds for those as well.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import msgspec
from sqlalchemy import BindParameter, Table, bindparam, select, update
from sqlalchemy.engine import Connection

from gateway.db.models import Base, BudgetRow, BudgetWindow, Lease
from gateway.db.session import Dialect
from gateway.ledger.openings import Opening, Openings, open_turn, opening, scopes_of_row
from policies.budget import parse_window_id

CHUNK = 500
_strings = msgspec.json.Decoder(list[str]).decode
T = TypeVar("T")
_MOST_KNOWN = 100_000
_HEARD_SECONDS = 86_400.0  # after a day every process has heard of a budget, or is no longer one of ours


class Balance(NamedTuple):
    """A window as the database has it, nano-USD."""

    limit: int
    spent: int
    held: int


class LeaseRow(NamedTuple):
    """One boot's lease on one window, nano-USD. `consumed` has been posted against it."""

    granted: int
    consumed: int
    closed: bool


NO_LEASE = LeaseRow(0, 0, True)


class Standing(NamedTuple):
    """A window and one boot's lease on it, after a transaction."""

    window: str
    balance: Balance
    lease: LeaseRow


class Spending(NamedTuple):
    """What a posting adds to a window, nano-USD. `taken`: what the lease had held; `opening`: see `openings`."""

    window: str
    spent: int
    estimated: int
    taken: int
    opening: int = 0


def table(model: type[Base]) -> Table:
    return cast("Table", model.__table__)


def insert_once(dialect: Dialect, model: type[Base]) -> Any:
    """INSERT … ON CONFLICT DO NOTHING: a repeat is a no-op."""
    if dialect == "sqlite":
        from sqlalchemy.dialects.sqlite import insert
    else:  # 2.5 MB that a worker on SQLite does without
        from sqlalchemy.dialects.postgresql import insert
    return insert(table(model)).on_conflict_do_nothing()


def parameters(name: str) -> BindParameter[Any]:
    """A list of values for IN."""
    return bindparam(name, expanding=True)


def chunks(those: Sequence[T]) -> Iterator[Sequence[T]]:
    """Pieces small enough for one statement's parameters."""
    for start in range(0, len(those), CHUNK):
        yield those[start : start + CHUNK]


class Windows:
    """Makes and locks window rows. Remembers which exist for good, so that the usual case is one statement."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect: Dialect = dialect
        self._insert = insert_once(dialect, BudgetWindow)
        self._known: set[str] = set()

    def lock(self, connection: Connection, names: Iterable[str]) -> dict[str, Balance]:
        """The windows of these ids, made where they are missing, locked in order of id until the transaction ends."""
        wanted = sorted(set(names))
        if not wanted:
            return {}
        self.make(connection, wanted)
        return locked(connection, wanted)

    def make(self, connection: Connection, names: Iterable[str]) -> None:
        """See to it that these windows exist; a new one begins with its opening. Before any row is locked.

        At most once in a transaction: a second time, what the first has made would be taken for what others have.
        """
        unknown = sorted(set(names) - self._known)
        if not unknown:
            return
        there = self._existing(connection, unknown)
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        self._known.update(there)  # not those made now: this transaction may still be rolled back
        missing = [name for name in unknown if name not in there]
        if not missing:
            return
        number = open_turn(connection, self._dialect)
        there = self._existing(connection, missing)  # others may have made them while this one waited
        missing = [name for name in missing if name not in there]
        if missing:
            budgets = _budgets(connection, missing)
            rows = [self._new_window(connection, name, budgets, number) for name in missing]
            connection.execute(self._insert, rows)

    def limit(self, connection: Connection, name: str, now: float) -> None:
        """Give a window, made where it is missing, and the others of its scope that have not ended, the limit in force.

        Making comes first: whoever makes windows waits for those who post, and these wait for rows.
        """
        self.make(connection, [name])
        scope = parse_window_id(name)[0]
        limit = select(BudgetRow.limit_nano).where(BudgetRow.scope == scope).scalar_subquery()
        running = BudgetWindow.scope == scope, BudgetWindow.ends > now
        # In the order in which everybody locks them: there are several once the kind of window was changed.
        connection.execute(select(BudgetWindow.id).where(*running).order_by(BudgetWindow.id).with_for_update()).all()
        connection.execute(update(BudgetWindow).where(*running).values(limit_nano=limit))

    def unnamed(self, connection: Connection, entry: Any, now: float) -> list[str]:
        """The windows that count this row of `entry` though it does not name them. Before any row is locked."""
        opened = Openings(self._dialect).enter(connection, now)
        return opened.of(connection, scopes_of_row(entry), entry.admitted, _strings(entry.windows))

    def _new_window(
        self, connection: Connection, name: str, budgets: "dict[str, _Budget]", number: int
    ) -> dict[str, Any]:
        scope, kind, span = parse_window_id(name)
        budget = budgets.get(scope, _Budget(0, math.inf))
        # Where everybody has known the budget since before the window began, nobody has spent in it without naming it.
        begins = Opening() if span.start >= budget.since else opening(connection, self._dialect, name)
        return {
            "id": name,
            "scope": scope,
            "window": kind,
            "starts": span.start,
            "ends": span.end,
            "limit_nano": budget.limit,
            "spent_nano": begins.spent,
            "estimated_nano": begins.estimated,
            "held_nano": 0,
            "opening_nano": begins.spent,
            "opened": number,
        }

    @staticmethod
    def _existing(connection: Connection, names: Sequence[str]) -> set[str]:
        pages = (connection.execute(_EXISTING, {"names": list(some)}) for some in chunks(names))
        return {row[0] for page in pages for row in page}


def locked(connection: Connection, names: Sequence[str]) -> dict[str, Balance]:
    """Windows that exist, locked; `names` in order."""
    pages = (connection.execute(_LOCK, {"names": list(some)}) for some in chunks(names))
    return {row[0]: Balance(row[1], row[2], row[3]) for page in pages for row in page}


def leases_of(connection: Connection, boot: str, names: Sequence[str]) -> dict[str, LeaseRow]:
    """This boot's leases on these windows, as far as there are any."""
    pages = (connection.execute(_LEASES, {"boot": boot, "names": list(some)}) for some in chunks(names))
    return {row[0]: LeaseRow(row[1], row[2], row[3]) for page in pages for row in page}


def resize(connection: Connection, boot: str, changes: Sequence[tuple[str, int]]) -> None:
    """Enlarge leases, or make them smaller by a negative amount: (window, amount)."""
    if changes:
        rows = [{"of_boot": boot, "name": name, "amount": amount} for name, amount in changes]
        connection.execute(_ADD_GRANTED, rows)
        connection.execute(_ADD_HELD, [{"name": row["name"], "amount": row["amount"]} for row in rows])


def give_up(connection: Connection, boot: str, leases: dict[str, LeaseRow]) -> None:
    """Close every lease of a boot; what it had not consumed is free again."""
    rows = [{"name": name, "amount": lease.consumed - lease.granted} for name, lease in sorted(leases.items())]
    if rows:
        connection.execute(_ADD_HELD, rows)
        connection.execute(update(Lease).where(Lease.boot == boot).values(closed=True))


def spend(connection: Connection, boot: str, changes: Sequence[Spending]) -> None:
    """Spending arrives in its windows, out of this boot's leases as far as they held it."""
    if changes:
        connection.execute(
            _ADD_SPENT,
            [{"name": c.window, "spent": c.spent, "estimated": c.estimated, "taken": c.taken} for c in changes],
        )
    late = [{"name": c.window, "amount": c.opening} for c in changes if c.opening]
    if late:
        connection.execute(_ADD_OPENING, late)
    drawn = [{"of_boot": boot, "name": c.window, "taken": c.taken} for c in changes if c.taken]
    if drawn:
        connection.execute(_ADD_CONSUMED, drawn)


class _Budget(NamedTuple):
    """What a new window has to know. `since`: from when on everybody has known the budget, infinity if they do not."""

    limit: int
    since: float


def _budgets(connection: Connection, missing: Sequence[str]) -> dict[str, _Budget]:
    scopes = sorted({parse_window_id(name)[0] for name in missing})
    pages = (connection.execute(_SCOPE_LIMITS, {"scopes": list(some)}) for some in chunks(scopes))
    return {
        row[0]: _Budget(row[1], row[2] + _HEARD_SECONDS if row[3] is None else math.inf)
        for page in pages
        for row in page
    }


_NAMES = parameters("names")
_EXISTING = select(BudgetWindow.id).where(BudgetWindow.id.in_(_NAMES))
BALANCES = select(BudgetWindow.id, BudgetWindow.limit_nano, BudgetWindow.spent_nano, BudgetWindow.held_nano).where(
    BudgetWindow.id.in_(_NAMES)
)
_LOCK = BALANCES.order_by(BudgetWindow.id).with_for_update()
_LEASES = select(Lease.window_id, Lease.granted_nano, Lease.consumed_nano, Lease.closed).where(
    Lease.boot == bindparam("boot"), Lease.window_id.in_(_NAMES)
)
_SCOPE_LIMITS = select(BudgetRow.scope, BudgetRow.limit_nano, BudgetRow.updated, BudgetRow.retired).where(
    BudgetRow.scope.in_(parameters("scopes"))
)
_ADD_HELD = (
    update(BudgetWindow)
    .where(BudgetWindow.id == bindparam("name"))
    .values(held_nano=BudgetWindow.held_nano + bindparam("amount"))
)
_ADD_GRANTED = (
    update(Lease)
    .where(Lease.boot == bindparam("of_boot"), Lease.window_id == bindparam("name"))
    .values(granted_nano=Lease.granted_nano + bindparam("amount"))
)
_ADD_SPENT = (
    update(BudgetWindow)
    .where(BudgetWindow.id == bindparam("name"))
    .values(
        spent_nano=BudgetWindow.spent_nano + bindparam("spent"),
        estimated_nano=BudgetWindow.estimated_nano + bindparam("estimated"),
        held_nano=BudgetWindow.held_nano - bindparam("taken"),
    )
)
_ADD_OPENING = (
    update(BudgetWindow)
    .where(BudgetWindow.id == bindparam("name"))
    .values(opening_nano=BudgetWindow.opening_nano + bindparam("amount"))
)
_ADD_CONSUMED = (
    update(Lease)
    .where(Lease.boot == bindparam("of_boot"), Lease.window_id == bindparam("name"))
    .values(consumed_nano=Lease.consumed_nano + bindparam("taken"))
)
