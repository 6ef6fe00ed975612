"""A provider's invoice against the ledger, by model and day: which differences have an explanation.

Knows: what may differ and why. Does not know: files, databases. Amounts are whole nano-USD, days whole days since the
epoch (UTC).
"""

import re
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

_DATED = re.compile(r"-(\d{4}-\d{2}-\d{2}|\d{8}|latest)$")
_APART = re.compile(r"[\s._:/-]+")

Why = Literal["agrees", "estimated", "another day", "unexplained"]


class Charged(Struct, frozen=True, kw_only=True):
    """What the ledger says of one model on one day. `estimated_nano`: the part that no provider confirmed."""

    amount_nano: int
    estimated_nano: int
    entries: int


class Row(Struct, frozen=True, kw_only=True):
    """One model on one day. `difference_nano` = ledger - invoice."""

    day: int
    model: str
    ledger_nano: int
    estimated_nano: int
    invoice_nano: int
    why: Why

    @property
    def difference_nano(self) -> int:
        return self.ledger_nano - self.invoice_nano


def canonical(model: str) -> str:
    """The name under which both sides know a model: `Claude Haiku 4.5`, `claude-haiku-4-5-20251001` are one."""
    return _DATED.sub("", _APART.sub("-", model.strip().lower())).strip("-")


def compare(
    ledger: Mapping[tuple[int, str], Charged], invoice: Mapping[tuple[int, str], int], tolerance: float
) -> list[Row]:
    """A row per model and day of either side, in order of day and model. Names are canonical already.

    agrees: the difference is at most `tolerance` of the invoice, or what rounding each entry up can make.
    estimated: the ledger is above the invoice by no more than what it posted on estimates.
    another day: over all days of the invoice the model agrees; attempts around midnight are billed on the other side.
    """
    rows: list[Row] = []
    for day, model in sorted({*ledger, *invoice}):
        mine = ledger.get((day, model)) or Charged(amount_nano=0, estimated_nano=0, entries=0)
        theirs = invoice.get((day, model), 0)
        rows.append(
            Row(
                day=day,
                model=model,
                ledger_nano=mine.amount_nano,
                estimated_nano=mine.estimated_nano,
                invoice_nano=theirs,
                why=_why(mine, theirs, tolerance),
            )
        )
    return _moved(rows, ledger, tolerance)


def _why(mine: Charged, theirs: int, tolerance: float) -> Why:
    difference = mine.amount_nano - theirs
    slack = max(mine.entries, int(abs(theirs) * tolerance))
    if abs(difference) <= slack:
        return "agrees"
    return "estimated" if 0 < difference <= mine.estimated_nano + slack else "unexplained"


def _moved(rows: list[Row], ledger: Mapping[tuple[int, str], Charged], tolerance: float) -> list[Row]:
    """Rows of models whose days differ and whose sum agrees are explained by that."""
    found: list[Row] = []
    sums: dict[str, tuple[Charged, int]] = {}
    for row in rows:
        mine, theirs = sums.get(row.model) or (Charged(amount_nano=0, estimated_nano=0, entries=0), 0)
        entries = ledger[row.day, row.model].entries if (row.day, row.model) in ledger else 0
        both = Charged(
            amount_nano=mine.amount_nano + row.ledger_nano,
            estimated_nano=mine.estimated_nano + row.estimated_nano,
            entries=mine.entries + entries,
        )
        sums[row.model] = (both, theirs + row.invoice_nano)
    settled = {model for model, (mine, theirs) in sums.items() if _why(mine, theirs, tolerance) != "unexplained"}
    for row in rows:
        moved = row.why == "unexplained" and row.model in settled
        found.append(_with(row, "another day") if moved else row)
    return found


def _with(row: Row, why: Why) -> Row:
    return Row(
        day=row.day,
        model=row.model,
        ledger_nano=row.ledger_nano,
        estimated_nano=row.estimated_nano,
        invoice_nano=row.invoice_nano,
        why=why,
    )
