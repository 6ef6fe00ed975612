"""Rows of requests and their sums, in one transaction: what is counted is what was really inserted.

Knows: SQL of both dialects and the order of locks: rows of requests, combinations, hours, days, eights and more of
days, keys, each in order of its key; so writers that count the same hour at once wait for each other and never in a
circle.
Does not know: when anything is written, how requests add up (`gateway.db.sums`), who reads.

Everything here is blocking code that runs inside `Database.transact`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import structlog
from sqlalchemy import bindparam, delete, func, insert, select, update
from sqlalchemy.engine import Connection

from gateway.db.models import (
    ApiKey,
    RequestRow,
    SavingCorrection,
    UsageDay,
    UsageDays8,
    UsageDays64,
    UsageHour,
    UsageWho,
)
from gateway.db.session import Dialect
from gateway.db.sums import (
    BLOCKS_TO,
    COLUMNS,
    COSTS,
    DAYS_TO,
    HOUR,
    HOURS,
    LABELS_TO,
    LATE,
    NAMES_GONE,
    ROWS_FROM,
    SUMMED,
    Row,
    Sums,
    blocks,
    by_hour,
    by_label,
    made,
    who_id,
)
from gateway.db.sums import correction as corrected
from gateway.ledger.balances import chunks, parameters, table
from gateway.ledger.inserts import Inserts

log = structlog.get_logger("nearhit.ledger")

_MOST_KNOWN = 50_000
_MOST_ROWS = 500
_USED_SECONDS = 60.0
_KEY = COLUMNS.index("key_id")
_THERE = "SELECT id FROM request WHERE id IN (SELECT value FROM json_each(?))"
_NAMED = select(*table(UsageWho).columns).where(UsageWho.id.in_(parameters("names")))
_FLOOR = f"SELECT value FROM setting WHERE name = '{ROWS_FROM}'"  # noqa: S608 - a name of our own
_MADE = f"SELECT name, value FROM setting WHERE name IN ('{DAYS_TO}', '{LABELS_TO}', '{BLOCKS_TO}')"  # noqa: S608 - the same
_AGAIN = f"UPDATE setting SET value = CAST(CAST(value AS bigint) + 1 AS text) WHERE name = '{LATE}'"  # noqa: S608 - the same
_USE = (
    update(ApiKey)
    .where(ApiKey.id == bindparam("key"), func.coalesce(ApiKey.last_used, 0.0) < bindparam("used"))
    .values(last_used=bindparam("used"))
)
_GONE = f"SELECT value FROM setting WHERE name = '{NAMES_GONE}'"  # noqa: S608 - the same
_encode = msgspec.json.Encoder().encode


Summed = type[UsageHour] | type[UsageDay] | type[UsageDays8] | type[UsageDays64]


class Made(NamedTuple):
    """How far sums are made: the first day, the first hour by owner and label, the first day of no sum of eight, that
    are not. `days * 24 <= labels`, and `blocks <= days`.
    """

    days: int
    labels: int
    blocks: int


class RequestRows:
    """Handle to the rows of a database of that dialect; for one transaction at a time."""

    def __init__(self, dialect: str) -> None:
        self._dialect: Dialect = "sqlite" if dialect == "sqlite" else "postgresql"
        self._known: dict[tuple[Any, ...], int] = {}
        self._fresh: dict[tuple[Any, ...], int] = {}
        self._gone: str | None = None
        self._used: dict[str, float] = {}
        self._just_used: dict[str, float] = {}
        self._requests = Inserts(self._dialect, RequestRow)
        self._combinations = Inserts(self._dialect, UsageWho)
        self._sums: dict[Summed, Inserts] = {
            of: Inserts(self._dialect, of, SUMMED) for of in (UsageHour, UsageDays8, UsageDays64)
        }
        self._sums[UsageDay] = Inserts(self._dialect, UsageDay, (*SUMMED, *COSTS), (HOURS,))

    def add(self, connection: Connection, rows: Sequence[Row], *, new: bool = False) -> int:
        """Insert the rows that are not there yet and count exactly those; answers how many. At most 500 at once.

        `new`: nobody should have written any of them before, which saves a look on SQLite; raises Repeated, for the
        transaction to be taken back, if somebody has.
        """
        assert len(rows) <= _MOST_ROWS
        self._fresh, self._just_used = {}, {}  # of a transaction that was taken back
        by_id: dict[str, Row] = {}
        for row in rows:
            by_id.setdefault(row[0], row)
        names = self._insert_new(connection, by_id, new) if by_id else set[str]()
        kept = self._kept(connection, [row for name, row in by_id.items() if name in names])
        if kept:
            self._count(connection, by_hour(kept), lambda hour: by_label(row for row in kept if row[1] < hour * HOUR))
            self._use(connection, kept)
        return len(kept)

    def correct(self, connection: Connection, request_id: str, correction: dict[str, Any]) -> None:
        """Insert a `SavingCorrection` and count it where its request was counted.

        Raises LookupError when the request's row is not kept any more.
        """
        found = connection.execute(select(*table(RequestRow).columns).where(RequestRow.id == request_id)).first()
        if found is None:
            raise LookupError(request_id)
        connection.execute(insert(table(SavingCorrection)).values(correction))
        hours, labels = corrected(plain(found), correction["amount_nano"])
        self._count(connection, hours, lambda hour: labels if found.at < hour * HOUR else {})

    def _count(self, connection: Connection, hours: Sums, labels: Callable[[int], Sums]) -> None:
        """Add to the hours, and to the days and blocks of days that are made already.

        The hours come first: whoever makes a day locks them for its last look, so that every request is either seen
        there or finds the day made here.
        """
        self.put(connection, UsageHour, hours)
        so_far = made_so_far(connection)
        if min(hour for _, hour, _ in hours) >= so_far.labels:
            return
        late = made(hours, labels(so_far.labels), so_far.days, so_far.labels)
        self.put(connection, UsageDay, late)
        if any(day < so_far.days for _, day, _ in late):
            self.put(connection, UsageDays8, blocks(late, 8, so_far.blocks))
            self.put(connection, UsageDays64, blocks(late, 64, so_far.blocks))
            note_late(connection)

    def name(self, connection: Connection, sums: Sums) -> dict[tuple[Any, ...], int]:
        """Make the combinations that are new; done before, and `committed`, it leaves `put` that much less to do."""
        if self._gone is None:
            self._gone = _names_gone(connection)
        missing = {key[2] for key in sums if key[2] not in self._known}
        return self._made(connection, missing) if missing else {}

    def put(self, connection: Connection, of: Summed, sums: Sums) -> None:
        """Add to the stored sums, in order of their keys."""
        if not sums:
            return
        known, found = self._known, self.name(connection, sums)
        named = {key[2]: known[key[2]] if key[2] in known else found[key[2]] for key in sums}
        width = None if of is UsageDay else len(SUMMED)
        lines = [(facet, starts, named[who], *numbers[:width]) for (facet, starts, who), numbers in sums.items()]
        lines.sort()
        for some in chunks(lines):
            self._sums[of].put(connection, some)
        if (gone := _names_gone(connection)) != self._gone:
            self._gone = gone
            self._name_again(connection, named)

    def _name_again(self, connection: Connection, used: dict[tuple[Any, ...], int]) -> None:
        """Some combination may have been pruned since it was looked up: those that were counted just now are put back.

        Whoever prunes locks the sums first, so nobody does between the sums above and the end of this transaction.
        """
        self._combinations.put(connection, sorted((name, *who) for who, name in used.items()))
        self._known.clear()

    def committed(self) -> None:
        """The last transaction holds: the combinations that it made need not be looked up again."""
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        if len(self._used) > _MOST_KNOWN:
            self._used.clear()
        self._known |= self._fresh
        self._used |= self._just_used
        self._fresh, self._just_used = {}, {}

    def _use(self, connection: Connection, rows: list[Row]) -> None:
        """When each key was last used, to a minute: knowing more is not worth a write in every batch."""
        newest: dict[str, float] = {}
        for row in rows:
            newest[row[_KEY]] = max(row[1], newest.get(row[_KEY], row[1]))
        due = {key: at for key, at in newest.items() if at >= self._used.get(key, 0.0) + _USED_SECONDS}
        if due:
            connection.execute(_USE, [{"key": key, "used": at} for key, at in sorted(due.items())])
            self._just_used = due

    def _kept(self, connection: Connection, new: list[Row]) -> list[Row]:
        """Without those of a time whose rows were pruned: nobody could tell whether they were counted before.

        Looked at after they were inserted: had a row of the same id been pruned just now, so was the floor set before.
        """
        floor = rows_from(connection)
        late = [row[0] for row in new if row[1] < floor]
        if late:
            log.error("requests of a time that is pruned already are left out", requests=len(late), first=late[0])
            connection.execute(delete(table(RequestRow)).where(RequestRow.id.in_(late)))
        return [row for row in new if row[1] >= floor] if late else new

    def _insert_new(self, connection: Connection, rows: dict[str, Row], new: bool) -> set[str]:
        """Insert what is not there; answers which that was.

        SQLite's driver tells only how many were; but there nobody else writes meanwhile, so looking first is as good.
        """
        names = list(rows)
        if self._dialect == "sqlite" and not new:
            there = {row[0] for row in connection.exec_driver_sql(_THERE, (_encode(names).decode(),))}
            names = [name for name in names if name not in there]
        return self._requests.add(connection, [rows[name] for name in sorted(names)])

    def _made(self, connection: Connection, missing: set[tuple[Any, ...]]) -> dict[tuple[Any, ...], int]:
        """The id of each combination, made where it is new; remembered when the caller says that it was committed."""
        found: dict[tuple[Any, ...], int] = {}
        left, salt = sorted(missing), 0
        while left:
            named = {who_id(who, salt): who for who in left}
            self._combinations.put(connection, sorted((name, *who) for name, who in named.items()))
            pages = (connection.execute(_NAMED, {"names": list(some)}) for some in chunks(list(named)))
            stored = {tuple(row[1:]): row[0] for page in pages for row in page}
            found |= {who: stored[who] for who in left if who in stored}
            left, salt = [who for who in left if who not in stored], salt + 1
        self._fresh |= found
        return found


def _names_gone(connection: Connection) -> str:
    """Changes whenever combinations were pruned."""
    return str(connection.exec_driver_sql(_GONE).scalar() or "")


def note_late(connection: Connection) -> None:
    """Something was changed in a day that is made: whoever makes a block of it right now begins again."""
    connection.exec_driver_sql(_AGAIN)


def rows_from(connection: Connection) -> float:
    """The instant from which on rows are kept."""
    return float(connection.exec_driver_sql(_FLOOR).scalar() or 0)


def made_so_far(connection: Connection) -> Made:
    """Looked at anew: another process may have made more."""
    found = {str(name): int(value) for name, value in connection.exec_driver_sql(_MADE)}
    days = found.get(DAYS_TO, 0)
    return Made(days, max(found.get(LABELS_TO, 0), days * 24), found.get(BLOCKS_TO, 0))


def plain(found: Iterable[Any]) -> Row:
    """A row that was read, in the form in which rows are written and counted: its tags as JSON."""
    return tuple(_encode(value).decode() if isinstance(value, dict) else value for value in found)
