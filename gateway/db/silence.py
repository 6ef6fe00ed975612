"""PostgreSQL that says nothing any more: a connection on which an answer is overdue is dropped, and nobody waits on.

`statement_timeout` is kept by the server, and one that is frozen, or cut off without a word, keeps none: whoever waits
for its answer waits for as long as the system believes in the connection, a quarter of an hour or for ever.
Knows: SQLAlchemy's events, how long a statement may take by what was told the server. Does not know: what is asked.
"""

import asyncio
import re
from collections.abc import Iterable
from typing import Any, cast

from sqlalchemy import event
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncEngine

GRACE = 3.0  # seconds beyond what the server was told, for the way there and back
_TIMER, _LIMIT = "nearhit_overdue", "nearhit_limit"
_LITERAL = re.compile(r"statement_timeout\s*=\s*(\d+)")


class Watched:
    """Listens to one engine. `limit`: seconds that a statement may take, as the server is told for each connection."""

    def __init__(self, engine: AsyncEngine, limit: float) -> None:
        self._limit = limit
        found = engine.sync_engine
        event.listen(found, "before_cursor_execute", self._asked)
        event.listen(found, "after_cursor_execute", self._answered)
        event.listen(found, "commit", self._ending)
        event.listen(found, "rollback", self._ending)
        event.listen(found, "checkin", self._given_back)

    def _asked(self, connection: Connection, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        info = connection.info
        _stop(info)
        if "statement_timeout" in statement:  # for the rest of this transaction
            info[_LIMIT] = _seconds(statement, parameters)
        self._start(connection)

    def _answered(self, connection: Connection, *_: object) -> None:
        _stop(connection.info)

    def _ending(self, connection: Connection) -> None:
        """What is sent now has no end that is told, but that the connection is asked again or given back."""
        if connection.invalidated:
            return
        _stop(connection.info)
        connection.info.pop(_LIMIT, None)
        self._start(connection)

    def _given_back(self, _: object, record: Any) -> None:
        _stop(record.info)
        record.info.pop(_LIMIT, None)

    def _start(self, connection: Connection) -> None:
        limit = connection.info.get(_LIMIT, self._limit)
        if limit:
            drop = connection.connection.driver_connection
            assert drop is not None
            connection.info[_TIMER] = asyncio.get_running_loop().call_later(limit + GRACE, drop.terminate)


def _stop(info: dict[Any, Any]) -> None:
    timer = cast("asyncio.TimerHandle | None", info.pop(_TIMER, None))
    if timer is not None:
        timer.cancel()


def _seconds(statement: str, parameters: object) -> float:
    """What the server is told, by a number in the statement or beside it; 0: as long as it takes."""
    if (literal := _LITERAL.search(statement)) is not None:
        return int(literal[1]) / 1_000
    given = cast("Iterable[object]", parameters) if isinstance(parameters, (list, tuple)) else ()
    told = [int(str(value)) for value in given if str(value).isdecimal()]
    return max(told, default=0) / 1_000
