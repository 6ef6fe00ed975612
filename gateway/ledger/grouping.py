"""Entries added up: by any of their columns, price and source, each group taken apart into its meters.

Knows: SQL for both dialects, which prices let the database add tokens up. Does not know: who asks, what groups become.
Only sums travel for plain prices; attempts at prices with tiers or classes of their own are read one by one, and so
are those that searched for a fee.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from sqlalchemy import BigInteger, ColumnElement, Select, case, cast, func, not_, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db.models import Entry, LateEntry
from gateway.ledger.balances import table
from gateway.ledger.checks import prices_by_id, usage_of
from gateway.ledger.openings import UNCONFIRMED
from policies.meters import is_plain, meters
from policies.money import Price, Usage
from policies.months import span

DAY = 86_400
_PAGE = 2_000
_MOST_GROUPS = 300_000
_TOKENS = ("prompt", "cached", "cache_write", "completion", "reasoning")


class Scope(Struct, frozen=True, kw_only=True):
    """Which entries of those booked in `month`: its own that were admitted in `[start, end)`, or the `late` ones.

    `team`, `provider`: of that one only.
    """

    month: str
    start: float
    end: float
    late: bool = False
    team: str | None = None
    provider: str | None = None


class Group(Struct):
    """What entries of one group add up to. `parts`: (meter, pico-USD each) -> quantity."""

    amount: int
    entries: int
    parts: dict[tuple[str, int], int]


class TooMany(ValueError):
    """There are more groups than fit in memory."""


def own(month: str, team: str | None = None) -> Scope:
    """The entries that were admitted in a month and are booked in it."""
    its = span(month)
    return Scope(month=month, start=its.start, end=its.end, team=team)


def late(month: str, team: str | None = None) -> Scope:
    """The entries of earlier months that are booked in this one."""
    return Scope(month=month, start=0.0, end=1e12, late=True, team=team)


async def grouped(connection: AsyncConnection, columns: Sequence[str], scope: Scope) -> dict[tuple[Any, ...], Group]:
    """Groups by `columns`, price id and source, in that order; the columns are those of `entry`, and for late entries
    `belongs`. `day`: whole days since the epoch.

    Entries that cost nothing for certain (`void`) are left out. Raises TooMany, ValueError for an unknown price.
    """
    prices = await prices_by_id(connection)
    apart = sorted(name for name, price in prices.items() if not is_plain(price))
    searching = sorted(name for name, price in prices.items() if is_plain(price) and price.searches_cost)
    special = or_(Entry.price.in_(apart), Entry.price.in_(searching) & Entry.classes.is_not(None))
    conditions = await conditions_of(connection, scope)
    keys = [_column(connection.dialect.name, name) for name in columns]
    found: dict[tuple[Any, ...], Group] = {}
    rows = (await connection.execute(_sums(keys, conditions, special, scope))).all()
    await asyncio.to_thread(_add_sums, found, rows, len(keys) + 2, prices)
    if apart or searching:
        await _singly(connection, keys, conditions, special, scope, prices, found)
    return found


async def _singly(  # noqa: PLR0913 - the same query, page by page
    connection: AsyncConnection,
    keys: list[Any],
    conditions: list[ColumnElement[bool]],
    special: ColumnElement[bool],
    scope: Scope,
    prices: dict[str, Price],
    found: dict[tuple[Any, ...], Group],
) -> None:
    place: tuple[float, str] | None = None
    while True:
        wanted = _from(select(*keys, Entry.price, Entry.source, *_SINGLE), scope)
        wanted = wanted.where(*conditions, special)
        if place is not None:
            after = or_(Entry.admitted > place[0], (Entry.admitted == place[0]) & (Entry.id > place[1]))
            wanted = wanted.where(Entry.admitted >= place[0], after)
        rows = (await connection.execute(wanted.order_by(Entry.admitted, Entry.id).limit(_PAGE))).all()
        for row in rows:
            group = tuple(row[: len(keys) + 2])
            _add(found, group, (row.amount_nano, 1), usage_of(row), _price(prices, row.price))
        if len(rows) < _PAGE:
            return
        place = (rows[-1].admitted, rows[-1].id)


def _add_sums(found: dict[tuple[Any, ...], Group], rows: Sequence[Any], width: int, prices: dict[str, Price]) -> None:
    """Away from the event loop: a month may have hundreds of thousands of groups, and requests must not wait."""
    for row in rows:
        usage = Usage(**{name: int(getattr(row, name)) for name in _TOKENS})
        _add(found, tuple(row[:width]), (int(row.amount), int(row.entries)), usage, _price(prices, row.price))


def _add(
    found: dict[tuple[Any, ...], Group],
    name: tuple[Any, ...],
    sums: tuple[int, int],
    usage: Usage,
    price: Price,
) -> None:
    group = found.get(name)
    if group is None:
        if len(found) >= _MOST_GROUPS:
            raise TooMany(f"more than {_MOST_GROUPS} combinations of team, project, key, user and model")
        group = found[name] = Group(0, 0, {})
    group.amount += sums[0]
    group.entries += sums[1]
    if name[-1] == "adjust":
        return
    for part in meters(usage, price, sums[1]):
        key = (part.meter, part.pico)
        group.parts[key] = group.parts.get(key, 0) + part.quantity


def _price(prices: dict[str, Price], name: str) -> Price:
    found = prices.get(name)
    if found is None:
        raise ValueError(f"entries were charged at the price {name!r}, which is not known")
    return found


async def sums_of(connection: AsyncConnection, scope: Scope) -> tuple[int, int, int]:
    """Entries, amount and the part of it that no provider confirmed, in nano-USD, of a whole scope."""
    guessed = func.sum(case((Entry.source.in_(UNCONFIRMED), Entry.amount_nano), else_=0))
    wanted: Select[Any, Any, Any] = _from(select(func.count(), func.sum(Entry.amount_nano), guessed), scope)
    count, amount, unsure = (await connection.execute(wanted.where(*await conditions_of(connection, scope)))).one()
    return int(count), int(amount or 0), int(unsure or 0)


async def conditions_of(connection: AsyncConnection, scope: Scope) -> list[ColumnElement[bool]]:
    """Which rows of `entry` (joined with `late_entry` for late ones) are meant."""
    found: list[ColumnElement[bool]] = [Entry.source != "void"]
    if scope.team is not None:
        found.append(Entry.team == scope.team)
    if scope.provider is not None:
        found.append(Entry.provider == scope.provider)
    if scope.late:
        return [*found, LateEntry.month == scope.month]
    found += [Entry.admitted >= scope.start, Entry.admitted < scope.end]
    elsewhere = select(LateEntry.entry_id).where(LateEntry.belongs == scope.month)
    if (await connection.execute(elsewhere.limit(1))).first() is not None:
        found.append(Entry.id.not_in(elsewhere))
    return found


def _sums(
    keys: list[Any], conditions: list[ColumnElement[bool]], special: ColumnElement[bool], scope: Scope
) -> Select[Any]:
    sums = [func.sum(getattr(Entry, name)).label(name) for name in _TOKENS]
    amount, count = func.sum(Entry.amount_nano).label("amount"), func.count().label("entries")
    wanted = _from(select(*keys, Entry.price, Entry.source, *sums, amount, count), scope)
    return wanted.where(*conditions, not_(special)).group_by(*keys, Entry.price, Entry.source)


def _from(wanted: Any, scope: Scope) -> Any:
    wanted = wanted.select_from(table(Entry))
    return wanted.join(table(LateEntry), LateEntry.entry_id == Entry.id) if scope.late else wanted


def _column(dialect: str, name: str) -> Any:
    if name == "day":
        days = Entry.admitted / DAY
        return cast(days if dialect == "sqlite" else func.floor(days), BigInteger).label("day")
    if name == "belongs":
        return LateEntry.belongs.label("belongs")
    if name == "user":
        return func.coalesce(Entry.user, "").label("user")
    return getattr(Entry, name)


_SINGLE = (
    Entry.id,
    Entry.admitted,
    Entry.amount_nano,
    *(getattr(Entry, name) for name in _TOKENS),
    Entry.classes,
)
