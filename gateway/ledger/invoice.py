"""The ledger against an invoice file, by model and day.

Knows: how both sides are added up, and that usage without amounts is priced as the ledger priced that model that day.
Does not know: file formats (`gateway.invoice_files`), which differences are explained (`policies.invoices`), how to
correct anything; corrections are adjustment entries and a person's decision.
"""

from collections.abc import Iterable, Mapping
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

from msgspec import Struct

from gateway.db.session import Database
from gateway.invoice_files import InvoiceLine
from gateway.ledger.checks import prices_by_id
from gateway.ledger.grouping import DAY, Group, Scope, grouped
from gateway.ledger.openings import UNCONFIRMED
from policies.invoices import Charged, Row, canonical, compare
from policies.meters import meters
from policies.money import PICO_PER_NANO, Price

_MOST_DAYS = 400
_MOST_MODELS = 10_000
_Sums = dict[tuple[int, str], Decimal]


class Invoice(Struct, frozen=True, kw_only=True):
    """What came out. `unpriced`: usage on the invoice of models and days for which the ledger has no price.

    `first` and `last`: the days of the invoice; of other days nothing is compared.
    """

    rows: list[Row]
    unpriced: list[str]
    first: int
    last: int

    @property
    def agrees(self) -> bool:
        return not self.unpriced and all(row.why != "unexplained" for row in self.rows)


async def compare_invoice(
    database: Database,
    provider: str,
    lines: Iterable[InvoiceLine],
    aliases: Mapping[str, str],
    tolerance: float,
) -> Invoice:
    """Compare a whole invoice with the entries of `provider` from its first to its last day.

    Raises ValueError for a file that cannot be read, is empty, or spans more days than an invoice does.
    """
    read = [(line, canonical(aliases.get(line.model, line.model))) for line in lines]
    if not read:
        raise ValueError("the file has no line with a cost")
    days = [line.day for line, _ in read]
    if max(days) - min(days) >= _MOST_DAYS:
        raise ValueError(f"the file spans more than {_MOST_DAYS} days")
    if len({name for _, name in read}) > _MOST_MODELS:
        raise ValueError(f"the file names more than {_MOST_MODELS} models")
    scope = Scope(month="", start=min(days) * DAY, end=(max(days) + 1) * DAY, provider=provider)
    async with database.snapshot() as connection:
        groups = await grouped(connection, ("day", "model"), scope)
        prices = await prices_by_id(connection)
    billed, unpriced = _billed(read, groups, prices)
    whole = {key: int(amount.quantize(Decimal(1), ROUND_HALF_EVEN)) for key, amount in billed.items()}
    rows = compare(_charged(groups), whole, tolerance)
    return Invoice(rows=rows, unpriced=unpriced, first=min(days), last=max(days))


def _charged(groups: Mapping[tuple[Any, ...], Group]) -> dict[tuple[int, str], Charged]:
    found: dict[tuple[int, str], Charged] = {}
    for (day, model, _, source), group in groups.items():
        key = (int(day), canonical(model))
        before = found.get(key) or Charged(amount_nano=0, estimated_nano=0, entries=0)
        found[key] = Charged(
            amount_nano=before.amount_nano + group.amount,
            estimated_nano=before.estimated_nano + (group.amount if source in UNCONFIRMED else 0),
            entries=before.entries + group.entries,
        )
    return found


def _billed(
    read: list[tuple[InvoiceLine, str]], groups: Mapping[tuple[Any, ...], Group], prices: Mapping[str, Price]
) -> tuple[_Sums, list[str]]:
    """The invoice in nano-USD per day and model, fractions kept; and what could not be priced."""
    usual = _usual(groups)
    sums: _Sums = {}
    unpriced: set[str] = set()
    for line, model in read:
        amount = line.amount
        if amount is None and line.usage is not None:
            name = usual.get((line.day, model))
            if name is None:
                unpriced.add(f"{model} on day {line.day}") if line.usage.total else None
                continue
            parts = meters(line.usage, prices[name], requests=0)
            amount = Decimal(sum(part.cost_pico for part in parts)) / PICO_PER_NANO
        if amount is not None:
            sums[line.day, model] = sums.get((line.day, model), Decimal(0)) + amount
    return sums, sorted(unpriced)


def _usual(groups: Mapping[tuple[Any, ...], Group]) -> dict[tuple[int, str], str]:
    """The price at which most attempts of a model were charged on a day."""
    counts: dict[tuple[int, str], dict[str, int]] = {}
    for (day, model, price, _), group in groups.items():
        by_price = counts.setdefault((int(day), canonical(model)), {})
        by_price[price] = by_price.get(price, 0) + group.entries
    return {key: max(sorted(prices), key=lambda name: prices[name]) for key, prices in counts.items()}
