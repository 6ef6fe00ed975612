"""Every charge of a time once more, from nothing but its own row and its price version.

Knows: which amount a row must carry. Does not know: balances (`gateway.ledger.checks` proves those), how to mend.
"""

from typing import Any

from msgspec import Struct

from gateway.db.session import Database
from gateway.ledger.checks import prices_by_id, right_nano
from gateway.ledger.entries import pages
from policies.money import Price

_MOST_DIFFERENCES = 1_000
_MOST_SUMS = 10_000


class Difference(Struct, frozen=True, kw_only=True):
    """A charge that does not follow from its row. `right_nano` None: its price version is not known."""

    id: str
    admitted: float
    provider: str
    model: str
    price: str
    charged_nano: int
    right_nano: int | None


class PriceSum(Struct, kw_only=True):
    """What was charged at one price version for one model; corrections and voids stand under the price they had."""

    provider: str
    model: str
    price: str
    entries: int = 0
    charged_nano: int = 0
    right_nano: int = 0


class Recomputed(Struct, kw_only=True):
    """`bounded`: entries charged at their reservation, as nobody counted. `omitted`: differences beyond the list."""

    entries: int = 0
    bounded: int = 0
    corrections: int = 0
    charged_nano: int = 0
    right_nano: int = 0
    sums: list[PriceSum] = []
    differences: list[Difference] = []
    omitted: int = 0

    @property
    def agrees(self) -> bool:
        return not self.differences


async def recompute(database: Database, start: float, end: float, team: str | None = None) -> Recomputed:
    """Recompute what was admitted in `[start, end)`, in one consistent view of the ledger."""
    found = Recomputed()
    sums: dict[tuple[str, str, str], PriceSum] = {}
    async with database.snapshot() as connection:
        prices = await prices_by_id(connection)
        async for rows in pages(connection, start, end, team):
            for row in rows:
                _take(row, prices, found, sums)
    found.sums = sorted(sums.values(), key=lambda one: (-one.charged_nano, one.provider, one.model, one.price))
    return found


def _take(row: Any, prices: dict[str, Price], found: Recomputed, sums: dict[tuple[str, str, str], PriceSum]) -> None:
    right = right_nano(row, prices)
    key = (row.provider, row.model, row.price)
    one = sums.get(key)
    if one is None and len(sums) < _MOST_SUMS:
        one = sums[key] = PriceSum(provider=row.provider, model=row.model, price=row.price)
    for total in (found, one):
        if total is not None:
            total.entries += 1
            total.charged_nano += row.amount_nano
            total.right_nano += right or 0
    found.bounded += row.source == "upper_bound"
    found.corrections += row.source == "adjust"
    if right == row.amount_nano:
        return
    if len(found.differences) >= _MOST_DIFFERENCES:
        found.omitted += 1
        return
    found.differences.append(
        Difference(
            id=row.id,
            admitted=row.admitted,
            provider=row.provider,
            model=row.model,
            price=row.price,
            charged_nano=row.amount_nano,
            right_nano=right,
        )
    )
