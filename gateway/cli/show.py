"""How commands print: JSON as it came, or a table for people."""

import sys
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import cast

import msgspec
from rich.console import Console
from rich.table import Table

_ANY_WIDTH = 10_000  # characters; a column of JSON takes some hundreds


def json(value: object) -> None:
    """One JSON document on standard output."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def json_line(value: object) -> None:
    """One JSON object on one line, for programs that read the last line."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """A table as wide as it needs to be when standard output is not a terminal, so that nothing is cut in a pipe."""
    shown = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for name in columns:
        shown.add_column(name, justify="right" if name in right else "left", no_wrap=True)
    for row in rows:
        shown.add_row(*row)
    Console(width=None if sys.stdout.isatty() else _ANY_WIDTH, highlight=False, markup=False).print(shown)


def line(text: str) -> None:
    print(text)


def usd(text: object) -> str:
    """`$0.0002130` from an exact decimal string."""
    try:
        amount = Decimal(str(text))
    except InvalidOperation:
        return str(text)
    if amount == 0:
        return "$0"
    sign = "-" if amount < 0 else ""
    amount = abs(amount)
    return f"{sign}${amount:,.2f}" if amount >= 1 else f"{sign}${amount:.{-amount.adjusted() + 3}f}"


def millis(value: object) -> str:
    if not isinstance(value, int | float):
        return "-"
    return f"{value:.1f} ms" if value < 10 else f"{value:.0f} ms" if value < 1000 else f"{value / 1000:.2f} s"


def percent(value: object) -> str:
    return f"{value * 100:.1f} %" if isinstance(value, int | float) else "-"


def text(value: object) -> str:
    """Anything in a cell; nothing is a dash."""
    if value in (None, "", [], {}):
        return "-"
    return ", ".join(map(str, cast("list[object]", value))) if isinstance(value, list) else str(value)
