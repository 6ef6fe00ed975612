"""What is posted for a month that is closed: it is booked in the first open month, in the transaction that posts it.

Knows: the lock that keeps closing and posting apart, the rows that say where a late entry is booked.
Does not know: how a month is closed (`gateway.ledger.closing`). Blocking code inside `Database.transact`.

Whoever posts for an earlier month holds the lock shared while it looks and until it commits; whoever closes a month
takes it alone. So an entry is either seen by the sums of the seal or knows that the month is closed, never neither.
Entries of the running month need no look at all, which is nearly every entry there is.
"""

from collections.abc import Sequence

from sqlalchemy import func, insert, select
from sqlalchemy.engine import Connection

from gateway.db.models import LateEntry, MonthSeal
from policies.months import booked_in, may_be_late, month_of

_TURN = 7_236_583_493  # any fixed number: PostgreSQL's advisory lock between posting and closing


def book(connection: Connection, entries: Sequence[tuple[str, float]], now: float) -> None:
    """Note where entries (id, admitted) are booked that were just added, if their month is closed already."""
    if not entries or not may_be_late(min(admitted for _, admitted in entries), now):
        return
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock_shared(_TURN)))
    sealed = last_closed(connection)
    rows = [
        {"entry_id": name, "month": booked, "belongs": month_of(admitted), "at": now}
        for name, admitted in entries
        if (booked := booked_in(admitted, sealed)) != month_of(admitted)
    ]
    if rows:
        connection.execute(insert(LateEntry), rows)


def take_turn(connection: Connection) -> None:
    """Wait until nobody posts for an earlier month; from the commit on, whoever does sees what was written."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_TURN)))


def last_closed(connection: Connection) -> str | None:
    """The newest month that is closed or being closed."""
    return connection.scalar(select(func.max(MonthSeal.month)))
