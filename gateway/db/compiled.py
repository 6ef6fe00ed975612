"""SQL that was put together once, for every engine of the process.

Knows: that SQLAlchemy takes milliseconds to compile what SQLite answers in less, that it keeps the outcome per dialect
object and so per engine, and that one database here has up to six of them (`gateway.db.session`). Does not know:
statements, connections.
"""

from typing import Any

from sqlalchemy.sql.compiler import Compiled
from sqlalchemy.util import LRUCache

_MOST = 1_000  # of each engine SQLAlchemy keeps 500; a report's span is in its statement, so there is no end of them


class _Shared(LRUCache[Any, Compiled]):
    """Engines of one kind and version compile a statement to the same words, whatever database they lead to."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(_of_kind(key), default)

    def __setitem__(self, key: Any, value: Compiled) -> None:
        super().__setitem__(_of_kind(key), value)


def _of_kind(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """SQLAlchemy's key, with what a dialect is in place of which one it is."""
    dialect, *statement = key
    return (dialect.name, dialect.driver, getattr(dialect, "server_version_info", None), *statement)


SHARED = {"compiled_cache": _Shared(_MOST)}  # an engine's execution options
