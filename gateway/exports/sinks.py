"""Rows into files: CSV and JSON lines by hand, Parquet by pyarrow, a page of rows at a time.

Knows: formats, types of columns. Does not know: what rows mean, where files go. Memory is that of one page of rows.
Amounts are decimals everywhere (`decimal128(38, 12)` in Parquet), never floating point.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, BinaryIO, Literal, Protocol

import msgspec

from gateway.exports.columns import Kind
from gateway.web.sheet import Cell, csv_lines

Format = Literal["csv", "parquet", "jsonl"]
MEDIA: dict[Format, str] = {
    "csv": "text/csv",
    "parquet": "application/vnd.apache.parquet",
    "jsonl": "application/jsonl",
}
_PAGE = 20_000
_encode = msgspec.json.Encoder(decimal_format="string").encode

Row = Mapping[str, Any]
Columns = Sequence[tuple[str, Kind]]


class Sink(Protocol):
    """Takes rows; every row has every column. `close` completes the file and leaves it open."""

    def write(self, rows: Sequence[Row]) -> None: ...

    def close(self) -> None: ...


def sink(form: Format, columns: Columns, file: BinaryIO) -> Sink:
    """A writer of `form` into `file`."""
    kinds = {"csv": CsvSink, "jsonl": JsonSink, "parquet": ParquetSink}
    return kinds[form](columns, file)


def when(at: float) -> str:
    """An instant as FOCUS and RFC 3339 write it, in UTC; fractions only where there are any."""
    text = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z").replace(".000Z", "Z")


class CsvSink:
    """RFC 4180, UTF-8, a header line, empty cells for null; cells no spreadsheet takes for a formula."""

    def __init__(self, columns: Columns, file: BinaryIO) -> None:
        self._columns = columns
        self._file = file
        file.write(csv_lines([[name for name, _ in columns]]))

    def write(self, rows: Sequence[Row]) -> None:
        self._file.write(csv_lines([self._cell(row[name], kind) for name, kind in self._columns] for row in rows))

    def close(self) -> None:
        pass

    @staticmethod
    def _cell(value: Any, kind: Kind) -> Cell:
        return when(value) if kind == "instant" and value is not None else value


class JsonSink:
    """One JSON object per line; amounts as strings."""

    def __init__(self, columns: Columns, file: BinaryIO) -> None:
        self._columns = columns
        self._file = file

    def write(self, rows: Sequence[Row]) -> None:
        for row in rows:
            told = {
                name: when(row[name]) if kind == "instant" and row[name] is not None else row[name]
                for name, kind in self._columns
            }
            self._file.write(_encode(told) + b"\n")

    def close(self) -> None:
        pass


class ParquetSink:
    """Row groups of 20,000 rows, zstd. pyarrow is imported here and nowhere else: it is large and rarely asked for."""

    def __init__(self, columns: Columns, file: BinaryIO) -> None:
        import pyarrow as pa
        import pyarrow.parquet as parquet

        arrow: Any = pa
        types: dict[Kind, Any] = {
            "text": arrow.string(),
            "number": arrow.decimal128(38, 12),
            "count": arrow.int64(),
            "instant": arrow.timestamp("ms", tz="UTC"),
        }
        self._columns = columns
        self._table: Any = arrow.Table
        self._schema: Any = arrow.schema([arrow.field(name, types[kind]) for name, kind in columns])
        writer: Any = parquet.ParquetWriter
        self._writer: Any = writer(file, self._schema, compression="zstd")
        self._waiting: list[dict[str, Any]] = []

    def write(self, rows: Sequence[Row]) -> None:
        self._waiting += [{name: _typed(row[name], kind) for name, kind in self._columns} for row in rows]
        if len(self._waiting) >= _PAGE:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(self._table.from_pylist(self._waiting, schema=self._schema))
            self._waiting = []


def _typed(value: Any, kind: Kind) -> Any:
    if value is None:
        return None
    if kind == "instant":
        return datetime.fromtimestamp(value, UTC)
    if kind == "number":
        return value if isinstance(value, Decimal) else Decimal(value)
    return value
