"""What a window had spent before its budget was known, and what is spent without naming it.

Knows: which entries fall under a scope, in SQL and from a record; the turn that openers and posters take.
Does not know: who sets budgets, what limits are for, when anything is called.

The windows an entry draws on are fixed when it is admitted. A window that is made later therefore begins with an
opening: all entries that fall under its scope, were admitted between its bounds, and do not name it. An entry that is
posted afterwards and still does not name it (it was admitted before, or by a worker that had not heard of the budget)
adds to the opening in the same transaction. So the opening never depends on when it was taken: it can be recomputed
from the entries at any time, to the nano-USD.
"""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import BigInteger, ColumnElement, and_, case, cast, false, func, or_, select, text, true
from sqlalchemy.engine import Connection

from gateway.db.models import BudgetWindow, Entry
from gateway.db.session import Dialect
from gateway.ledger.records import Dispatch
from policies.budget import Period, parse_window_id, scopes_of

UNCONFIRMED = ("estimated", "upper_bound")
_TURN = 7_236_583_494  # any fixed number: PostgreSQL's advisory lock between those who open windows and those who post
_PATIENCE_MS = 60_000
_KEPT = 2 * 86_400.0  # how long a window that has ended is remembered; older entries look it up
_AGAIN = 86_400.0
_encode = msgspec.json.Encoder().encode
_strings = msgspec.json.Decoder(list[str]).decode


class Opening(NamedTuple):
    """Nano-USD. `estimated` is the part no provider confirmed."""

    spent: int = 0
    estimated: int = 0


class _Window(NamedTuple):
    id: str
    starts: int
    ends: int


def scopes(begun: Dispatch) -> list[str]:
    """Every scope an attempt falls under, as it does when it is admitted."""
    models = (begun.asked, begun.model, f"{begun.provider}/{begun.model}")
    tags = [(name, value) for name, _, value in (tag.partition("=") for tag in begun.tags)]
    if not begun.charged:
        return scopes_of("", "", "", None, models, tags)
    return scopes_of(begun.team, begun.project, begun.key_id, begun.user, models, tags)


def scopes_of_row(row: Any) -> list[str]:
    """The same from a row of `entry`."""
    models = tuple(name for name in (row.asked, row.model, f"{row.provider}/{row.model}") if name is not None)
    tags = [(name, value) for name, _, value in (tag.partition("=") for tag in _strings(row.tags or "[]"))]
    if not row.charged:
        return scopes_of("", "", "", None, models, tags)
    return scopes_of(row.team, row.project, row.key_id, row.user, models, tags)


def told(tags: Sequence[str]) -> str | None:
    """What stands in `entry.tags`."""
    return _encode(tags).decode() if tags else None


# -- opening a window ------------------------------------------------------------------------------------------------


def open_turn(connection: Connection, dialect: Dialect) -> int:
    """Wait until nobody posts; answers the number of the windows that are opened now. Before any row is locked.

    Numbers only grow, and by chance, so that one that was rolled back is not given again.
    """
    if dialect == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_TURN)))
    return (connection.scalar(_NEWEST) or 0) + 1 + secrets.randbelow(1 << 30)


def opening(connection: Connection, dialect: Dialect, name: str) -> Opening:
    """What falls under a window that does not exist yet. May take long: all entries of the window are looked at."""
    if dialect == "postgresql":
        connection.execute(text(f"SET LOCAL statement_timeout = {_PATIENCE_MS}"))
    scope, _, span = parse_window_id(name)
    unconfirmed = case((Entry.source.in_(UNCONFIRMED), Entry.amount_nano), else_=0)
    wanted = select(
        cast(func.coalesce(func.sum(Entry.amount_nano), 0), BigInteger),
        cast(func.coalesce(func.sum(unconfirmed), 0), BigInteger),
    ).where(_admitted_in(span), falls_under(dialect, scope), _find(dialect, Entry.windows, _quoted(name)) == 0)
    row = connection.execute(wanted).one()
    return Opening(int(row[0]), int(row[1]))


def _admitted_in(span: Period) -> ColumnElement[bool]:
    return and_(Entry.admitted >= span.start, Entry.admitted < span.end)


def falls_under(dialect: Dialect, scope: str) -> ColumnElement[bool]:
    """The entries of a scope, as `policies.budget.scopes_of` tells them."""
    kind, _, name = scope.partition(":")
    if kind == "model":
        provider, slash, model = name.partition("/")
        direct = and_(Entry.provider == provider, Entry.model == model) if slash else false()
        return or_(Entry.asked == name, Entry.model == name, direct)
    if kind == "tag":
        return func.coalesce(_find(dialect, Entry.tags, _quoted(name)), 0) > 0
    charged = Entry.charged.is_(True)
    if kind == "project":
        team, _, project = name.partition("/")
        return and_(charged, or_(Entry.project == name, and_(Entry.team == team, Entry.project == project)))
    if kind in _COLUMN:
        return and_(charged, _COLUMN[kind] == name)
    return true()


_COLUMN: dict[str, Any] = {"team": Entry.team, "key": Entry.key_id, "user": Entry.user}


def _find(dialect: Dialect, column: Any, piece: str) -> ColumnElement[int]:
    """Where a string stands in another, 0: nowhere. Case counts, and nothing is a wildcard."""
    return func.instr(column, piece) if dialect == "sqlite" else func.strpos(column, piece)


def _quoted(text: str) -> str:
    return _encode(text).decode()


# -- entries that come late ------------------------------------------------------------------------------------------


class Opened(NamedTuple):
    """The windows that were opened up to the number `newest` and end after `since`, as of `loaded`; by scope."""

    newest: int
    loaded: float
    since: float
    by_scope: Mapping[str, Sequence[_Window]]

    def unnamed(self, connection: Connection, batch: Sequence[Dispatch]) -> dict[str, list[str]]:
        """The windows that attempts fall under and do not name, by attempt; without those that name them all."""
        if not self.by_scope and all(begun.admitted >= self.since for begun in batch):
            return {}
        under: dict[tuple[Any, ...], list[str]] = {}  # many requests of a batch fall under the same
        found: dict[str, list[str]] = {}
        for begun in batch:
            asker = begun.team, begun.project, begun.key_id, begun.user, begun.asked, begun.tags, begun.charged
            key = (*asker, begun.provider, begun.model)
            if key not in under:
                under[key] = scopes(begun)
            if windows := self.of(connection, under[key], begun.admitted, begun.windows):
                found[begun.id] = windows
        return found

    def of(self, connection: Connection, under: Iterable[str], admitted: float, named: Sequence[str]) -> list[str]:
        """The same for anything else that counts as an entry."""
        if admitted < self.since:
            wanted = _WINDOWS.where(BudgetWindow.opened.is_not(None), BudgetWindow.scope.in_(list(under)))
            found = [_Window(row.id, row.starts, row.ends) for row in connection.execute(wanted)]
        else:
            found = [window for scope in under for window in self.by_scope.get(scope, ())]
        return [one.id for one in found if one.starts <= admitted < one.ends and one.id not in named]


class Openings:
    """The windows that count what does not name them, as one poster knows them.

    What a transaction has read belongs to it alone until it has been committed: it may have opened windows itself, and
    those of one that is taken back never were. Several transactions may run at once.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect: Dialect = dialect
        self._known = Opened(0, float("-inf"), 0.0, {})

    def enter(self, connection: Connection, now: float) -> Opened:
        """Begin to post: from here to the end of the transaction no window is opened. Before any row is locked."""
        if self._dialect == "postgresql":
            connection.execute(select(func.pg_advisory_xact_lock_shared(_TURN)))
        newest, known = connection.scalar(_NEWEST) or 0, self._known
        if now > known.loaded + _AGAIN:
            known = Opened(0, now, now - _KEPT, {})
        if newest <= known.newest:
            return known
        by_scope = dict(known.by_scope)
        fresh = _WINDOWS.where(BudgetWindow.opened > known.newest, BudgetWindow.ends > known.since)
        for row in connection.execute(fresh):
            by_scope[row.scope] = (*by_scope.get(row.scope, ()), _Window(row.id, row.starts, row.ends))
        return Opened(newest, known.loaded, known.since, by_scope)

    def committed(self, known: Opened) -> None:
        """The transaction that `enter` answered this to holds."""
        self._known = known


_NEWEST = select(func.max(BudgetWindow.opened))
_WINDOWS = select(BudgetWindow.id, BudgetWindow.scope, BudgetWindow.starts, BudgetWindow.ends)
