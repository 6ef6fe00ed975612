"""Rows of windows and leases inside a transaction: make, lock, read, change.

Knows: SQL and the order of locks: the boot, then windows by id, then leases. Does not know: why anything changes.
Everything here is blocking code that runs inside `Database.transact`. A transaction that inserts missing windows has
not locked any other yet, so the order holds for those as well.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from sqlalchemy import BindParameter, Table, bindparam, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from gateway.db.models import Base, BudgetRow, BudgetWindow, Lease
from gateway.db.session import Dialect
from policies.budget import parse_window_id

CHUNK = 500
T = TypeVar("T")
_MOST_KNOWN = 100_000


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
    """What a posting adds to a window, nano-USD. `taken`: the part that the lease had held."""

    window: str
    spent: int
    estimated: int
    taken: int


def table(model: type[Base]) -> Table:
    return cast("Table", model.__table__)


def insert_once(dialect: Dialect, model: type[Base]) -> Any:
    """INSERT … ON CONFLICT DO NOTHING: a repeat is a no-op."""
    insert = sqlite.insert if dialect == "sqlite" else postgresql.insert
    return insert(table(model)).on_conflict_do_nothing()


def parameters(name: str) -> BindParameter[Any]:
    """A list of values for IN."""
    return bindparam(name, expanding=True)


def chunks(those: Sequence[T]) -> Iterator[Sequence[T]]:
    """Pieces small enough for one statement's parameters."""
    for start in range(0, len(those), CHUNK):
        yield those[start : start + CHUNK]


class Windows:
    """Makes and locks window rows. Remembers which exist, so that the usual case is one statement."""

    def __init__(self, dialect: Dialect) -> None:
        self._insert = insert_once(dialect, BudgetWindow)
        self._known: set[str] = set()

    def lock(self, connection: Connection, names: Iterable[str]) -> dict[str, Balance]:
        """The windows of these ids, made where they are missing, locked in order of id until the transaction ends."""
        wanted = sorted(set(names))
        if not wanted:
            return {}
        if not self._known.issuperset(wanted):
            self._make_missing(connection, wanted)
        found = _locked(connection, wanted)
        if len(found) < len(wanted):  # one was made in a transaction that was rolled back
            self._make_missing(connection, wanted)
            found = _locked(connection, wanted)
        return found

    def _make_missing(self, connection: Connection, names: Sequence[str]) -> None:
        pages = (connection.execute(_EXISTING, {"names": list(some)}) for some in chunks(names))
        missing = sorted(set(names) - {row[0] for page in pages for row in page})
        if missing:
            limits = _limits(connection, missing)
            connection.execute(self._insert, [_new_window(name, limits) for name in missing])
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        self._known.update(names)


def _locked(connection: Connection, names: Sequence[str]) -> dict[str, Balance]:
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
    drawn = [{"of_boot": boot, "name": c.window, "taken": c.taken} for c in changes if c.taken]
    if drawn:
        connection.execute(_ADD_CONSUMED, drawn)


def _limits(connection: Connection, missing: Sequence[str]) -> dict[str, int]:
    scopes = sorted({parse_window_id(name)[0] for name in missing})
    pages = (connection.execute(_SCOPE_LIMITS, {"scopes": list(some)}) for some in chunks(scopes))
    return {row[0]: row[1] for page in pages for row in page}


def _new_window(name: str, limits: dict[str, int]) -> dict[str, Any]:
    scope, kind, span = parse_window_id(name)
    return {
        "id": name,
        "scope": scope,
        "window": kind,
        "starts": span.start,
        "ends": span.end,
        "limit_nano": limits.get(scope, 0),
        "spent_nano": 0,
        "estimated_nano": 0,
        "held_nano": 0,
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
_SCOPE_LIMITS = select(BudgetRow.scope, BudgetRow.limit_nano).where(BudgetRow.scope.in_(parameters("scopes")))
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
_ADD_CONSUMED = (
    update(Lease)
    .where(Lease.boot == bindparam("of_boot"), Lease.window_id == bindparam("name"))
    .values(consumed_nano=Lease.consumed_nano + bindparam("taken"))
)
