"""Thresholds that spending goes over: noted once per window and limit, and queued for every channel there is.

Knows: the rows, in the transaction that moves the balance. Does not know: how an alert reaches anybody.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple, cast
from zoneinfo import ZoneInfo

from sqlalchemy import bindparam, delete, select
from sqlalchemy.engine import Connection

from gateway.db.models import AlertDelivery, BudgetAlert, BudgetRow
from gateway.db.session import Dialect
from gateway.ledger.balances import BALANCES, chunks, insert_once, parameters
from policies.budget import WindowKind, crossed, parse_window_id, stands

_JUST_SET = -1  # below every threshold: what was reached before a budget was set is told when it is


class Moved(NamedTuple):
    """A window whose spending went from `before` to `after`, nano-USD."""

    window: str
    limit: int
    before: int
    after: int


class Alerting:
    """`channels`: names of `gateway.alert_settings`."""

    def __init__(self, dialect: Dialect, channels: tuple[str, ...]) -> None:
        self._channels = channels
        self._add_alerts = insert_once(dialect, BudgetAlert)
        self._add_deliveries = insert_once(dialect, AlertDelivery)

    def moved(self, connection: Connection, those: Iterable[Moved], now: float) -> None:
        """Note each threshold that was crossed, once per window, whoever crosses it.

        Windows of other kinds, which the budget had before, go on being counted and are nobody's limit any more.
        """
        by_scope: dict[str, list[Moved]] = {}
        for one in those:
            by_scope.setdefault(parse_window_id(one.window)[0], []).append(one)
        found: list[dict[str, Any]] = []
        for some in chunks(sorted(by_scope)):
            for scope, alerts, mode, kind, zone in connection.execute(_ALERTS, {"scopes": list(some)}):
                for one in by_scope[scope]:
                    shares = crossed(alerts, one.limit, one.before, one.after)
                    if shares and stands(one.window, cast("WindowKind", kind), ZoneInfo(zone)):
                        known = {
                            "window_id": one.window,
                            "spent_nano": one.after,
                            "limit_nano": one.limit,
                            "mode": mode,
                        }
                        found += [{**known, "threshold": share, "at": now} for share in shares]
        if found and (fresh := _untold(connection, found)):
            self._write(connection, fresh)

    def begun(self, connection: Connection, window: str, now: float) -> None:
        """The budget of this window was just set: what it has reached already is told now."""
        for name, limit, spent, _ in connection.execute(BALANCES, {"names": [window]}):
            if spent:
                self.moved(connection, [Moved(name, limit, _JUST_SET, spent)], now)

    def _write(self, connection: Connection, found: list[dict[str, Any]]) -> None:
        columns = ("window_id", "threshold", "spent_nano", "at")
        for row in found:
            connection.execute(_FORGET, {"its_window": row["window_id"], "its_threshold": row["threshold"]})
        connection.execute(self._add_alerts, [{name: row[name] for name in columns} for row in found])
        queued = [
            {
                "id": f"{row['window_id']}|{row['threshold']:g}|{row['limit_nano']}|{channel}",
                "channel": channel,
                "created": row["at"],
                "attempts": 0,
                "due": row["at"],
                **{name: row[name] for name in ("window_id", "threshold", "limit_nano", "spent_nano", "mode")},
            }
            for row in found
            for channel in self._channels
        ]
        if queued:
            connection.execute(self._add_deliveries, queued)


def _untold(connection: Connection, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without those that were told already: with as much spent as they take.

    Less was spent where the limit was raised since: then they have been reached anew, and nobody knows.
    """
    told: dict[tuple[str, float], int] = {}
    for some in chunks(sorted({row["window_id"] for row in found})):
        for window, threshold, spent in connection.execute(_TOLD, {"windows": list(some)}):
            told[window, threshold] = spent
    return [
        row
        for row in found
        if told.get((row["window_id"], row["threshold"]), -1) < row["threshold"] * row["limit_nano"]
    ]


_TOLD = select(BudgetAlert.window_id, BudgetAlert.threshold, BudgetAlert.spent_nano).where(
    BudgetAlert.window_id.in_(parameters("windows"))
)
_FORGET = delete(BudgetAlert).where(
    BudgetAlert.window_id == bindparam("its_window"), BudgetAlert.threshold == bindparam("its_threshold")
)
_ALERTS = select(BudgetRow.scope, BudgetRow.alerts, BudgetRow.mode, BudgetRow.window, BudgetRow.timezone).where(
    BudgetRow.scope.in_(parameters("scopes")), BudgetRow.retired.is_(None)
)
