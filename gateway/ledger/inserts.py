"""Batches of rows in the driver's own words: a row costs a fifth of what it does through the compiler.

Knows: one statement per table and dialect, how a batch travels. Does not know: what rows mean, transactions.

SQLite takes many rows in a statement: its driver lets go of the interpreter for each one it runs, and a thread that
writes row by row changes places with the event loop at every row. PostgreSQL takes a batch as one statement over
arrays, so that it answers which rows were new, and takes its locks in the order of the batch. Blocking code inside
`Database.transact`.
"""

from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import Any

from sqlalchemy import BigInteger, Double, Integer, String, Text
from sqlalchemy.engine import Connection
from sqlalchemy.types import JSON, TypeEngine

from gateway.db.models import Base
from gateway.db.session import Dialect
from gateway.ledger.balances import table

Row = tuple[Any, ...]
TOGETHER = 50  # rows in one statement of SQLite's; what is left of a batch goes row by row


class Repeated(Exception):
    """Rows that should have been new were there already."""


class Inserts:
    """Puts rows, in the order of the table's columns, where none of the same key is; or adds to what is there.

    `adding`: columns that are summed; `uniting`: whose bits are put together.
    """

    def __init__(
        self, dialect: Dialect, model: type[Base], adding: Sequence[str] = (), uniting: Sequence[str] = ()
    ) -> None:
        self._dialect: Dialect = dialect
        joined = (*((name, "+") for name in adding), *((name, "|") for name in uniting))
        self._text = _statement(dialect, model, joined)
        self._texts = _statement(dialect, model, joined, rows=TOGETHER)
        self._key = next(iter(table(model).primary_key)).name

    def put(self, connection: Connection, rows: Sequence[Row]) -> None:
        if not rows:
            return
        if self._dialect == "sqlite":
            self._by_many(connection, rows)
        else:
            connection.exec_driver_sql(self._text, _columns(rows))

    def add(self, connection: Connection, rows: Sequence[Row]) -> set[str]:
        """Insert rows whose first column is the key; answers the keys of those that were new.

        SQLite tells only how many were: Repeated unless all were, and the transaction is to be taken back.
        """
        if not rows:
            return set()
        if self._dialect == "sqlite":
            if self._by_many(connection, rows) != len(rows):
                raise Repeated
            return {row[0] for row in rows}
        return {row[0] for row in connection.exec_driver_sql(f"{self._text} RETURNING {self._key}", _columns(rows))}

    def _by_many(self, connection: Connection, rows: Sequence[Row]) -> int:
        """SQLite; answers how many rows there are more or other than before."""
        changed, left = 0, len(rows) % TOGETHER
        for start in range(0, len(rows) - left, TOGETHER):
            values = tuple(chain.from_iterable(rows[start : start + TOGETHER]))
            changed += connection.exec_driver_sql(self._texts, values).rowcount
        if left:
            changed += connection.exec_driver_sql(self._text, list(rows[-left:])).rowcount
        return changed


def _columns(rows: Sequence[Row]) -> tuple[list[Any], ...]:
    return tuple(map(list, zip(*rows, strict=True)))


@cache
def _statement(dialect: Dialect, model: type[Base], joined: tuple[tuple[str, str], ...], rows: int = 1) -> str:
    name, columns = table(model).name, table(model).columns
    names = ", ".join(f'"{column.name}"' for column in columns)
    keys = ", ".join(column.name for column in table(model).primary_key)
    sums = ", ".join(f"{column} = {name}.{column} {how} excluded.{column}" for column, how in joined)
    then = f"ON CONFLICT ({keys}) DO UPDATE SET {sums}" if joined else f"ON CONFLICT ({keys}) DO NOTHING"
    if dialect == "sqlite":
        values = ", ".join([f"({', '.join('?' * len(columns))})"] * rows)
        return f"INSERT INTO {name} ({names}) VALUES {values} {then}"  # noqa: S608 - names of our own tables
    kinds = [_array_of(column.type) for column in columns]
    arrays = ", ".join(f"${i}::{kind}[]" for i, kind in enumerate(kinds, 1))
    read = (f't."{column.name}"{"::json" * (type(column.type) is JSON)}' for column in columns)
    return f"INSERT INTO {name} ({names}) SELECT {', '.join(read)} FROM unnest({arrays}) AS t({names}) {then}"  # noqa: S608 - the same


def _array_of(kind: TypeEngine[Any]) -> str:
    """The element type of a column's array; JSON travels as text."""
    names = {Text: "text", String: "text", JSON: "text", BigInteger: "int8", Integer: "int4", Double: "float8"}
    return next((name for one, name in names.items() if type(kind) is one), "bool")
