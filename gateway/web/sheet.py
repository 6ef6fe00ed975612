"""Tables as CSV that a spreadsheet opens safely.

A text cell that a spreadsheet would take for a formula gets a leading apostrophe (OWASP "CSV injection"); numbers stay
numbers. UTF-8, CRLF lines as in RFC 4180. Does not know: where the rows come from.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from decimal import Decimal

Cell = str | int | float | Decimal | bool | None

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def csv_bytes(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> bytes:
    """Header line first. None is an empty cell, a Decimal keeps every digit and never an exponent."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow([_cell(name) for name in columns])
    writer.writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue().encode()


def csv_lines(rows: Iterable[Sequence[Cell]]) -> bytes:
    """Lines of a table that is written piece by piece."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue().encode()


def _cell(value: Cell) -> str | int | float:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_FORMULA) else value
    return value
