"""A day's sums by owner, and of all users and of all values of a tag, made of its other sums instead of its rows.

Knows: that they follow from the sums of all, by user and by tag. Does not know: when that is better than making them of
rows. What each hour of the day cost by owner is right only where the other sums know it.
"""

from collections.abc import Iterator
from typing import Any

from sqlalchemy import BigInteger, cast, func, or_, select
from sqlalchemy.engine import Connection

from gateway.db.models import Setting, UsageDay, UsageWho
from gateway.db.models.sums import EVERY_HOUR
from gateway.db.sums import ANY, COSTS, COSTS_FROM, LATE, OWNER, SUMMED, TAG, USER, Key, owned
from gateway.ledger.request_rows import RequestRows, made_so_far, note_late
from gateway.ledger.sum_anew import total
from gateway.ledger.sum_blocks import put_blocks_of
from gateway.ledger.sum_rows import Changed, be_patient, facets_of, forget, keep, lock, turn


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


def _state(connection: Connection, day: int) -> tuple[list[int], str | None]:
    """Differs once anything was added to a day that is made."""
    late = connection.execute(select(Setting.value).where(Setting.name == LATE)).scalar()
    return total(connection, UsageDay, range(day, day + 1)), late


def _gathered(connection: Connection, day: int) -> Iterator[tuple[Key, list[int]]]:
    """The database adds up."""
    who = [UsageWho.team, UsageWho.project, UsageWho.key_id, UsageWho.model]
    sums = [cast(func.sum(getattr(UsageDay, name)), BigInteger) for name in (*SUMMED, *COSTS)]
    labels: Any = or_(UsageDay.facet.in_(("", USER)), UsageDay.facet.startswith(TAG, autoescape=True))
    wanted: Any = select(UsageDay.facet, *who, *sums).join(UsageWho, UsageWho.id == UsageDay.who)
    wanted = wanted.where(UsageDay.facet.in_(facets_of(connection, UsageDay)), UsageDay.starts == day, labels)
    for facet, *line in connection.execute(wanted.group_by(UsageDay.facet, *who)):
        whose = (*line[: len(who)], "", "", "", "", "", 0, "")
        yield (ANY + facet if facet else OWNER, day, whose), [*line[len(who) :], EVERY_HOUR]
