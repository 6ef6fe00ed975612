"""Rows about requests: taken at once, written a few times a second, together.

Knows: the columns of `request` and `explain`. Does not know: money (entries go another way and are never dropped), how
rows are counted (`gateway.ledger.request_rows`), how long anything is kept (`gateway.ledger.retention`).
When the database is away for long the newest rows are dropped and counted; a stop writes what is left.
"""

import asyncio
from functools import lru_cache
from operator import attrgetter
from typing import Any

import msgspec
import structlog
from msgspec import Struct
from sqlalchemy import select, update
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DataError, IntegrityError

from gateway.call import Outcome
from gateway.db.clean import clean
from gateway.db.models import Explain
from gateway.db.models.happened import LARGEST_COUNT
from gateway.db.session import UNREACHABLE, Database
from gateway.db.sums import COLUMNS
from gateway.ledger.inserts import Inserts, Repeated
from gateway.ledger.request_rows import RequestRows
from gateway.ledger.shipper import set_within
from gateway.outage import Outage

log = structlog.get_logger("nearhit.ledger")

_BATCH = 500
_EVERY_SECONDS = 0.2
_LONGEST_PAUSE = 5.0
_MOST_PENDING = 50_000
_LONGEST_ERROR = 500
_LARGEST_EXPLANATION = 64_000
_MOST_LATER = 5_000
_TRIES = 20
_encode = msgspec.json.Encoder().encode
_name = lru_cache(2_048)(clean)  # of models and the like: few, and the same in most rows
_tokens = attrgetter("prompt", "cached", "cache_write", "completion", "reasoning")


class _More(Struct):
    """What is to be added to an explanation, and how often that was tried."""

    said: dict[str, object] = {}
    tries: int = 0


class Recorder:
    """Bounded, batched writer. `explain_days` 0 keeps no explanations."""

    def __init__(self, database: Database, *, explain_days: int) -> None:
        self._database = database
        self._explain_days = explain_days
        self._rows: list[tuple[Any, ...]] = []
        self._told: list[tuple[Any, ...]] = []
        self._more: dict[str, _More] = {}
        self._turn = asyncio.Lock()
        self._request_rows = RequestRows(database.dialect)
        self._explanations = Inserts(database.dialect, Explain)
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._rows)

    def record(self, outcome: Outcome) -> None:
        """Note one request. A plain function: nothing is awaited, nothing of the call is kept."""
        if len(self._rows) >= _MOST_PENDING:
            self.dropped += 1
            return
        self._rows.append(request_row(outcome))
        if self._explain_days and outcome.explain and (told := _explanation(outcome.explain)) is not None:
            self._told.append((outcome.call.id, outcome.call.at, told))

    def explain(self, request_id: str, more: dict[str, object]) -> None:
        """Add to an explanation that was noted before, also when it has been written meanwhile."""
        if self._explain_days and (request_id in self._more or len(self._more) < _MOST_LATER):
            self._more.setdefault(request_id, _More()).said.update(more)

    async def write(self) -> int:
        """Write what is pending, in batches; answers how many requests. Raises as an unreachable database does."""
        written = 0
        async with self._turn:
            while self._rows or self._told:
                rows, told = self._rows[:_BATCH], self._told[:_BATCH]
                try:
                    try:
                        await self._database.transact(self._write, rows, told, new=True)
                    except Repeated:  # the reply to an earlier try was lost
                        await self._database.transact(self._write, rows, told)
                    self._request_rows.committed()
                except (DataError, IntegrityError) as error:
                    await self._write_singly(rows, told, error)
                del self._rows[: len(rows)]
                del self._told[: len(told)]
                written += len(rows)
            if self._more:
                more, self._more = self._more, {}
                for name, item in (await self._database.transact(self._amend, more)).items():
                    self._more.setdefault(name, item)
        return written

    def _amend(self, connection: Connection, more: "dict[str, _More]") -> "dict[str, _More]":
        """Write what was said later into the explanations; those that are not there yet wait for the next time."""
        left: dict[str, _More] = {}
        for name, item in more.items():
            data = connection.execute(select(Explain.data).where(Explain.request_id == name)).scalar()
            if data is not None:
                connection.execute(update(Explain).where(Explain.request_id == name).values(data={**data, **item.said}))
            elif item.tries < _TRIES:
                item.tries += 1
                left[name] = item
        return left

    async def _write_singly(self, rows: list[tuple[Any, ...]], told: list[tuple[Any, ...]], error: Exception) -> None:
        """One of the batch cannot be stored: the others must not wait for it for ever."""
        log.error("a request's row cannot be stored and is left out", error=repr(error)[:500])
        for row, kind in [*((row, "row") for row in rows), *((row, "told") for row in told)]:
            try:
                await self._database.transact(self._write, [row] * (kind == "row"), [row] * (kind == "told"))
            except (DataError, IntegrityError):
                self.dropped += 1

    def _write(
        self, connection: Connection, rows: list[tuple[Any, ...]], told: list[tuple[Any, ...]], new: bool = False
    ) -> None:
        if rows:
            self._request_rows.add(connection, rows, new=new)
        self._explanations.put(connection, told)

    async def run(self, stopping: asyncio.Event) -> None:
        """Write every moment, waiting longer after each failure."""
        pause = _EVERY_SECONDS
        away = Outage(log, "request rows wait for the database", "request rows are written again")
        while not await set_within(stopping, pause):
            try:
                await self.write()
                pause = _EVERY_SECONDS
                away.over()
            except UNREACHABLE as error:
                pause = min(_LONGEST_PAUSE, pause * 2)
                away.goes_on(error, pending=len(self._rows), dropped=self.dropped)


def _explanation(explain: dict[str, object]) -> str | None:
    """As JSON; None when it is too large or cannot be said in JSON."""
    try:
        told = _encode(explain)
    except (TypeError, ValueError) as error:
        log.error("an explanation cannot be written down", error=repr(error)[:300])
        return None
    return told.decode().replace("\\u0000", "\\ufffd") if len(told) <= _LARGEST_EXPLANATION else None


def request_row(outcome: Outcome) -> tuple[Any, ...]:
    """The row of `request`, in the order of its columns."""
    call, usage = outcome.call, outcome.usage
    principal, asked = call.principal, call.directives
    tokens = _tokens(usage)
    if max(tokens) > LARGEST_COUNT:
        tokens = tuple([min(count, LARGEST_COUNT) for count in tokens])
    tpot = None
    if outcome.ttft_ms is not None and usage.completion > 1 and outcome.chunks > 1:
        tpot = (outcome.total_ms - outcome.ttft_ms) / (usage.completion - 1)
    return (
        call.id,
        call.at,
        principal.key_id,
        principal.team,
        principal.project,
        clean(asked.user) if asked.user else None,
        _name(call.model),
        outcome.provider,
        _name(outcome.model),
        call.operation,
        call.stream,
        outcome.source,
        outcome.cache,
        outcome.status,
        clean(outcome.error, _LONGEST_ERROR) if outcome.error else None,
        *tokens,
        outcome.cost_nano,
        outcome.saved_nano,
        outcome.discount_nano,
        outcome.routed_nano,
        min(outcome.embed_nano, LARGEST_COUNT),
        outcome.cost_status,
        outcome.similarity,
        outcome.confidence,
        outcome.ttft_ms,
        tpot,
        outcome.total_ms,
        # A follower waits for its leader's upstream: how much of that was ours nobody knows.
        None if outcome.source == "shared" else max(0.0, outcome.total_ms - outcome.upstream_ms - outcome.waited_ms),
        outcome.attempts,
        _name(outcome.finish, 64) if outcome.finish else None,
        outcome.complete,
        outcome.client_gone,
        _encode({clean(name): clean(value) for name, value in asked.tags}).decode() if asked.tags else None,
    )


assert len(COLUMNS) == 37, "request_row follows the table's columns"
