"""Alerts as the database keeps them for each channel, read as what is told.

Knows: rows, notices. Does not know: who sends them (`gateway.alerts`), who shows them (`gateway.routes.alerts`).
"""

from typing import Any

import msgspec
from msgspec.structs import replace

from gateway.alert_notices import BudgetReached, HitsWrong, SpendingOutOfLine


def reached(row: Any) -> BudgetReached:
    return BudgetReached(
        id=row.id,
        window_id=row.window_id,
        threshold=row.threshold,
        limit_nano=row.limit_nano,
        spent_nano=row.spent_nano,
        mode=row.mode,
        created=row.created,
    )


def wrong(row: Any) -> HitsWrong:
    return HitsWrong(
        id=row.id,
        team=row.team,
        project=row.project,
        model=row.model,
        over=row.over,
        rate=row.rate,
        low=row.low,
        high=row.high,
        allowed=row.allowed,
        created=row.created,
    )


def dear(row: Any) -> SpendingOutOfLine:
    return replace(msgspec.json.decode(row.told, type=SpendingOutOfLine), id=row.id)
