"""A day's sums by owner, and of all users and of all values of a tag, made of its other sums instead of its rows.

Knows: that they follow from the sums of all, by user and by tag. Does not know: when that is better than making them of
rows. What each hour of the day cost by owner is right only where the other sums know it.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

from sqlalchemy import BigInteger, Select, bindparam, cast, func, or_, select
from sqlalchemy.engine import Connection

from gateway.db.models import UsageDay, UsageWho
from gateway.db.models.sums import EVERY_HOUR
from gateway.db.sums import ANY, COSTS, COSTS_FROM, LATE, OWNER, SUMMED, TAG, USER, Key, owned
from gateway.ledger.request_rows import RequestRows, made_so_far, note_late
from gateway.ledger.sum_anew import total
from gateway.ledger.sum_blocks import put_blocks_of
from gateway.ledger.sum_rows import Changed, be_patient, facets_of, forget, keep, lock, setting, turn

_OWNERS = 4  # team, project, key and model


def gather(connection: Connection, day: int) -> None:
    """Write them, and the blocks that the day is in. Raises Changed when the day was added to meanwhile.

    From then on until the end of the transaction nobody else counts.
    """
    before = _state(connection, day)
    sums = dict(_gathered(connection, day))
    lock(connection)
    if _state(connection, day) != before:
        raise Changed
    those = [facet for facet in facets_of(connection, UsageDay) if owned(facet)]
    forget(connection, UsageDay, range(day, day + 1), those)
    RequestRows(connection.dialect.name).put(connection, UsageDay, sums)
    put_blocks_of(connection, day, made_so_far(connection), sorted({*those, *(key[0] for key in sums)}))
    note_late(connection)


def gather_pruned(connection: Connection, day: int) -> None:
    """Of a day whose rows are gone: what a process of the version before left of it is all that will ever be known."""
    be_patient(connection)
    lock(connection)
    gather(connection, day)
    keep(connection, COSTS_FROM, max(turn(connection, COSTS_FROM), day + 1))


def _state(connection: Connection, day: int) -> tuple[list[int], str]:
    """Differs once anything was added to a day that is made."""
    return total(connection, UsageDay, range(day, day + 1)), setting(connection, LATE)


def _gathered(connection: Connection, day: int) -> Iterator[tuple[Key, list[int]]]:
    """The database adds up."""
    asked = {"facets": facets_of(connection, UsageDay), "day": day}
    for facet, *line in connection.execute(_added_up(), asked):
        whose = (*line[:_OWNERS], "", "", "", "", "", 0, "")
        yield (ANY + facet if facet else OWNER, day, whose), [*line[_OWNERS:], EVERY_HOUR]


@cache
def _added_up() -> Select[Any]:
    who = [UsageWho.team, UsageWho.project, UsageWho.key_id, UsageWho.model]
    assert len(who) == _OWNERS
    sums = [cast(func.sum(getattr(UsageDay, name)), BigInteger) for name in (*SUMMED, *COSTS)]
    labels = or_(UsageDay.facet.in_(("", USER)), UsageDay.facet.startswith(TAG, autoescape=True))
    those = UsageDay.facet.in_(bindparam("facets", expanding=True))
    wanted: Any = select(UsageDay.facet, *who, *sums).join(UsageWho, UsageWho.id == UsageDay.who)
    return wanted.where(those, UsageDay.starts == bindparam("day"), labels).group_by(UsageDay.facet, *who)
