"""Providers' invoice files, read: what was billed or used, by day and model.

Knows: the cost export of OpenAI (CSV of the dashboard, JSON of `/v1/organization/costs`), those of Anthropic (costs,
and usage in tokens), and any CSV whose columns are named. Does not know: the ledger, prices.
"""

import codecs
import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation, Overflow
from typing import Any, Literal

import msgspec
from msgspec import Struct

from policies.money import Usage

Shape = Literal["openai", "anthropic", "generic"]

LARGEST = 64 << 20
_DAY = 86_400
_MOST_NANO = Decimal(10) ** 18
_CSV_FIELD = 1 << 20
_THOUSANDS = re.compile(r"-?[1-9]\d{0,2}(,\d{3})+(\.\d*)?$", re.ASCII)  # `0,123` has a decimal comma
_DOLLARS = re.compile(r"^(-?)\$")
_FIRST_DAY, _LAST_DAY = 0, 2_932_896  # 1970-01-01 to 9999-12-31
_COMPACT = re.compile(r"(19|20)\d{6}$", re.ASCII)  # `20261015`: as seconds it would be a day of 1970
_CURRENCIES = ("currency", "currency_code", "billing_currency", "billingcurrency", "amount_currency")
_TOKENS = {
    "usage_input_tokens_no_cache": "fresh",
    "usage_input_tokens_cache_read": "cached",
    "usage_input_tokens_cache_write_5m": "written",
    "usage_input_tokens_cache_write_1h": "written_1h",
    "usage_output_tokens": "output",
}


class InvoiceLine(Struct, frozen=True, kw_only=True):
    """One line. `day`: whole days since the epoch, UTC. Either an amount in nano-USD (a fraction is kept) or tokens.

    Neither: a day of which the file says that nothing was billed.
    """

    day: int
    model: str
    amount: Decimal | None = None
    usage: Usage | None = None


class Columns(Struct, frozen=True):
    """Which columns of a CSV hold the day, the model and the amount in USD."""

    day: str
    model: str
    amount: str


def read(content: bytes, shape: Shape, columns: Columns | None = None) -> Iterator[InvoiceLine]:
    """The lines of a file. Raises ValueError that names the line for anything that cannot be read."""
    if len(content) > LARGEST:
        raise ValueError(f"the file is larger than {LARGEST >> 20} MiB")
    content = content.removeprefix(codecs.BOM_UTF8)  # Windows writes one, before JSON too
    if shape == "openai" and content.lstrip()[:1] in (b"{", b"["):
        yield from _openai_json(content)
        return
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"the file is not UTF-8 text: {error.reason}") from error
    csv.field_size_limit(_CSV_FIELD)
    rows = csv.DictReader(io.StringIO(text, newline=""))
    names = _header(rows, columns if shape == "generic" else None)
    lines = _numbered(rows)
    if shape == "openai":
        _need(names, ("amount_value",), ("start_time_iso", "start_time"))
        yield from _openai_csv(lines)
    elif shape == "anthropic":
        yield from _anthropic(lines, names)
    else:
        if columns is None:
            raise ValueError("a generic file needs the names of its columns for day, model and amount")
        _need(names, (columns.day,), (columns.model,), (columns.amount,))
        told = [name for name in names if name.strip().lower() in _CURRENCIES]
        for number, row in lines:
            for name in told:
                _require_usd(number, row[name])
            yield _line(number, row[columns.day], row[columns.model], row[columns.amount])


def _header(rows: "csv.DictReader[str]", columns: Columns | None) -> set[str]:
    """The names of the columns. Raises ValueError for a file in which it is not clear what stands where."""
    try:
        names = rows.fieldnames
    except csv.Error as error:
        raise ValueError(f"the file is no CSV: {error}") from error
    if not names:
        raise ValueError("the file is empty")
    if len(names) == 1 and (other := next((mark for mark in (";", "\t") if mark in names[0]), None)):
        mark = "semicolons" if other == ";" else "tabs"
        raise ValueError(f"the columns are parted by {mark}; save the file with commas, and amounts with a point")
    asked = () if columns is None else (columns.day, columns.model, columns.amount)
    if (twice := next((name for name in asked if names.count(name) > 1), None)) is not None:
        raise ValueError(f"two columns are called {twice[:80]!r}; which of them counts is not clear")
    return set(names)


def _numbered(rows: "csv.DictReader[str]") -> Iterator[tuple[int, dict[str, str]]]:
    """Rows with the number of the line they end on; the header is line 1. Missing cells are empty."""
    try:
        for row in rows:
            found: dict[Any, Any] = row  # cells beyond the header are a list under the name None
            yield rows.line_num, {str(name): v if isinstance(v, str) else "" for name, v in found.items()}
    except csv.Error as error:
        raise ValueError(f"the file is no CSV: {error}") from error


def _openai_csv(lines: Iterator[tuple[int, dict[str, str]]]) -> Iterator[InvoiceLine]:
    for number, row in lines:
        day = row.get("start_time_iso") or row["start_time"]
        if not row["amount_value"].strip():
            yield InvoiceLine(day=_day(number, day), model="")  # a day without costs
            continue
        _require_usd(number, row.get("amount_currency", "usd"))
        yield _openai_line(number, day, row.get("line_item", ""), row["amount_value"])


def _openai_json(content: bytes) -> Iterator[InvoiceLine]:
    try:
        pages = [_one(content)] if content.lstrip()[:1] == b"{" else _all(content)
    except msgspec.DecodeError as error:
        raise ValueError(f"this is not the JSON of /v1/organization/costs: {error}") from error
    if pages and pages[-1].has_more:
        raise ValueError("the last page says has_more: the pages after it are missing, put all of them into one list")
    for number, bucket in enumerate((bucket for page in pages for bucket in page.data), start=1):
        if not bucket.results:
            yield InvoiceLine(day=_day(number, str(bucket.start_time)), model="")
        for result in bucket.results:
            _require_usd(number, result.amount.currency)
            yield _openai_line(number, str(bucket.start_time), result.line_item or "", str(result.amount.value))


def _anthropic(lines: Iterator[tuple[int, dict[str, str]]], names: set[str]) -> Iterator[InvoiceLine]:
    if "cost_usd" in names:
        _need(names, ("usage_date_utc",), ("model",))
        for number, row in lines:
            yield _line(number, row["usage_date_utc"], row["model"], row["cost_usd"])
        return
    _need(
        names,
        ("usage_date_utc",),
        ("model_version", "model"),
        ("usage_input_tokens_no_cache",),
        ("usage_output_tokens",),
    )
    for number, row in lines:
        counts = {ours: _count(number, row.get(theirs, "")) for theirs, ours in _TOKENS.items()}
        written = counts["written"] + counts["written_1h"]
        usage = Usage(
            prompt=counts["fresh"] + counts["cached"] + written,
            cached=counts["cached"],
            cache_write=written,
            completion=counts["output"],
            cache_write_1h=counts["written_1h"],
        )
        model = row.get("model_version") or row.get("model", "")
        yield InvoiceLine(day=_day(number, row["usage_date_utc"]), model=model, usage=usage)


def _openai_line(number: int, day: str, item: str, amount: str) -> InvoiceLine:
    """Nothing was billed for what has no line item and cost nothing: our own costs have hits and refusals so."""
    if not item.strip() and not _amount(number, amount):
        return InvoiceLine(day=_day(number, day), model="")
    return _line(number, day, _item(number, item), amount)


def _item(number: int, text: str) -> str:
    """`gpt-4o-2024-08-06, input` is of the model `gpt-4o-2024-08-06`."""
    if not text.strip():
        raise ValueError(
            f"line {number} has no line item, so it names no model: make the export grouped by line item "
            "(`/v1/organization/costs?group_by=line_item`, here as at OpenAI)"
        )
    return text.rpartition(",")[0].strip() or text.strip()


def _line(number: int, day: str, model: str, amount: str) -> InvoiceLine:
    return InvoiceLine(day=_day(number, day), model=model.strip(), amount=_amount(number, amount))


def _amount(number: int, text: str) -> Decimal:
    """Commas stand between thousands; a decimal comma would be read as a hundred times as much, so it is refused."""
    found = _DOLLARS.sub(r"\1", text.strip())
    if "_" in found:  # Python's own way of writing thousands
        raise ValueError(f"line {number}: {text[:40]!r} is no amount")
    if "," in found and not _THOUSANDS.match(found):
        raise ValueError(f"line {number}: {text[:40]!r} is no amount: a decimal point is needed, commas part thousands")
    try:
        nano = Decimal(found.replace(",", "")).scaleb(9)
    except (InvalidOperation, Overflow) as error:
        raise ValueError(f"line {number}: {text[:40]!r} is no amount") from error
    if not nano.is_finite() or abs(nano) > _MOST_NANO:
        raise ValueError(f"line {number}: {text[:40]!r} is no amount")
    return nano


def _count(number: int, text: str) -> int:
    if not text.strip():
        return 0
    if not text.strip().isascii() or not text.strip().isdigit() or len(text) > 15:
        raise ValueError(f"line {number}: {text[:40]!r} is no count of tokens")
    return int(text)


def _day(number: int, text: str) -> int:
    """A date, a time or seconds since the epoch; without a zone it is UTC."""
    found = text.strip()
    try:
        if found.isascii() and found.isdigit() and len(found) <= 12 and not _COMPACT.match(found):
            day = int(found) // _DAY
        else:
            at = datetime.fromisoformat(found)
            day = int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() // _DAY)
    except ValueError as error:
        raise ValueError(f"line {number}: {text[:40]!r} is no date") from error
    if not _FIRST_DAY <= day <= _LAST_DAY:
        raise ValueError(f"line {number}: {text[:40]!r} is no date of an invoice")
    return day


def _require_usd(number: int, currency: str) -> None:
    if currency.strip().lower() not in ("usd", ""):
        raise ValueError(f"line {number}: amounts in {currency[:10]!r}; only USD can be compared")


def _need(names: set[str], *groups: tuple[str, ...]) -> None:
    for group in groups:
        if not names.intersection(group):
            raise ValueError(f"the file has no column {' or '.join(group)}; it has {', '.join(sorted(names))[:300]}")


def aliases(pairs: Iterable[str]) -> Mapping[str, str]:
    """`invoice name=ledger name` pairs. Raises ValueError."""
    found: dict[str, str] = {}
    for pair in pairs:
        theirs, separator, ours = pair.partition("=")
        if not separator or not theirs.strip() or not ours.strip():
            raise ValueError(f"{pair[:60]!r} is not `name on the invoice=name in the ledger`")
        found[theirs.strip()] = ours.strip()
    return found


class _Amount(Struct):
    value: Decimal
    currency: str = "usd"


class _Result(Struct):
    amount: _Amount
    line_item: str | None = None


class _Bucket(Struct):
    start_time: int
    results: list[_Result]


class _Page(Struct):
    data: list[_Bucket]
    has_more: bool = False


_one = msgspec.json.Decoder(_Page).decode
_all = msgspec.json.Decoder(list[_Page]).decode
