"""What the version before revision 0014 left behind and wrote: it knew hours, and days of all, by user and by tag."""

from typing import Any

from sqlalchemy import text
from sqlalchemy.engine import Connection

from gateway.db.models import UsageDay, UsageHour
from gateway.db.sums import COSTS, DAYS_TO, SUMMED, Sums, by_day
from gateway.ledger.request_rows import RequestRows, made_so_far
from gateway.ledger.sum_rows import folded, forget, keep, turn

_MADE = "FROM setting WHERE name = 'days_to' AND value <> '0'"
_LEFT = (
    "DELETE FROM usage_day WHERE facet = 'owner' OR facet LIKE 'any:%'",
    f"DELETE FROM usage_day WHERE starts >= coalesce((SELECT CAST(value AS bigint) {_MADE}), 0)",
    f"UPDATE usage_day SET {', '.join(f'{name} = 0' for name in COSTS)}",
    "DELETE FROM usage_days8",
    "DELETE FROM usage_days64",
    "DELETE FROM setting WHERE name IN ('labels_to', 'costs_from', 'blocks_to', 'late', 'gathered_to', 'usage_sums')",
    f"INSERT INTO setting (name, value) SELECT 'labels_to', CAST(CAST(value AS bigint) * 24 AS text) {_MADE}",
    f"INSERT INTO setting (name, value) SELECT 'costs_from', value {_MADE}",
    "INSERT INTO setting (name, value) VALUES ('late', '0')",
    "INSERT INTO setting (name, value) SELECT 'usage_sums', 'days' WHERE EXISTS (SELECT 1 FROM usage_day)",
)


def leave(connection: Connection) -> None:
    """The database as it is right after revision 0014 was put on top of what the version before left."""
    for statement in _LEFT:
        connection.execute(text(statement))


class Before(RequestRows):
    """Its writer: what comes late is added to hours, and to days of all, by user and by tag."""

    def _count(self, connection: Connection, hours: Sums, labels: Any) -> None:
        self.put(connection, UsageHour, hours)
        days = made_so_far(connection).days
        late = {key: sums for key, sums in hours.items() if key[1] < days * 24}
        if late:
            found = {key: sums for key, sums in labels(days * 24).items() if key[1] < days}
            self.put(connection, UsageDay, _without_costs(by_day(late) | found))


def make_day(connection: Connection, until: int) -> None:
    """Its maker of days: the next one, if that is over by the day `until`."""
    day = turn(connection, DAYS_TO)
    if day and day < until:
        hours, labels = folded(connection, day, (day + 1) * 24)
        forget(connection, UsageDay, range(day, day + 1))
        RequestRows(connection.dialect.name).put(connection, UsageDay, _without_costs(by_day(hours) | labels))
        keep(connection, DAYS_TO, day + 1)


def _without_costs(days: Sums) -> Sums:
    return {key: [*sums[: len(SUMMED)], *[0] * len(COSTS), sums[-1]] for key, sums in days.items()}
