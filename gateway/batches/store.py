"""Batches in the database: every step of their lives as one transaction, so that a killed worker loses none.

Knows: rows, who runs a batch, what a dead worker left behind. Does not know: HTTP, files' contents, how lines are run.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from sqlalchemy import delete, func, insert, or_, select, update
from sqlalchemy.engine import Connection

from gateway.aftermath import fate
from gateway.batches.lines import Read, unanswered
from gateway.batches.shapes import UNFINISHED, Batch, Counts, Line, Result, State, Status
from gateway.call import Given
from gateway.db.models import BatchLine, BatchPart, BatchRow, Boot, StoredFile
from gateway.errors import Conflict
from gateway.ids import uuid7

_NAMES = tuple(name for name in Batch.__struct_fields__ if name != "metadata")
_COLUMNS = [*(getattr(BatchRow, name) for name in _NAMES), BatchRow.metadata_]
_INTERRUPTED = "The gateway stopped while this request was under way; it may have been billed, so it was not repeated."
_REMEMBERED = 90 * 86_400.0  # seconds
_given = msgspec.json.Decoder(Given).decode
_ENDED = ("failed", "expired", "cancelled")


def find(connection: Connection, batch_id: str) -> Batch | None:
    row = connection.execute(select(*_COLUMNS).where(BatchRow.id == batch_id)).first()
    return None if row is None else _batch(row)


def owned(connection: Connection, team: str, project: str, batch_id: str) -> Batch | None:
    batch = find(connection, batch_id)
    return batch if batch is not None and (batch.team, batch.project) == (team, project) else None


def add(connection: Connection, batch: Batch, once: str | None, fingerprint: str, most: int) -> Batch:
    """The new batch, or the one that was made under the same idempotency key. Raises Conflict."""
    if once is not None:
        row = connection.execute(select(BatchRow.id, BatchRow.fingerprint).where(BatchRow.once == once)).first()
        if row is not None and row.fingerprint != fingerprint:
            raise Conflict(
                "This Idempotency-Key was used with another request. Use a new key for a new request.",
                param="Idempotency-Key",
                code="idempotency_key_reused",
                headers=(("x-should-retry", "false"),),
            )
        if row is not None and (found := find(connection, row.id)) is not None:
            return found
    mine = (BatchRow.team == batch.team) & (BatchRow.project == batch.project) & BatchRow.status.in_(UNFINISHED)
    if connection.execute(select(func.count()).where(mine)).scalar_one() >= most:
        raise Conflict(
            f"This project has {most} unfinished batches already (kept.project_batches).",
            code="too_many_batches",
            headers=(("x-should-retry", "false"),),
        )
    values = {getattr(BatchRow, name): getattr(batch, name) for name in _NAMES}
    values |= {BatchRow.metadata_: batch.metadata, BatchRow.once: once, BatchRow.fingerprint: fingerprint}
    connection.execute(insert(BatchRow).values(values))
    return batch


def listed(connection: Connection, team: str, project: str, after: str | None, limit: int) -> list[Batch]:
    """Newest first; ids begin with their time, so they are the order."""
    wanted = select(*_COLUMNS).where(BatchRow.team == team, BatchRow.project == project)
    if after is not None:
        wanted = wanted.where(BatchRow.id < after)
    return [_batch(row) for row in connection.execute(wanted.order_by(BatchRow.id.desc()).limit(limit))]


def counts(connection: Connection, batch: Batch) -> Counts:
    if batch.status not in UNFINISHED:
        return Counts(total=batch.lines, completed=batch.succeeded, failed=batch.unsuccessful)
    of = select(BatchLine.state, func.count()).where(BatchLine.batch_id == batch.id).group_by(BatchLine.state)
    found: dict[str, int] = {row[0]: row[1] for row in connection.execute(of)}
    return Counts(total=batch.lines, completed=found.get("done", 0), failed=sum(found.get(name, 0) for name in _ENDED))


def cancel(connection: Connection, batch: Batch, now: float) -> None:
    """Ask whoever runs it to stop. Raises Conflict where there is nothing left to stop."""
    if batch.status == "cancelling":
        return
    mine = update(BatchRow).where(BatchRow.id == batch.id, BatchRow.status.in_(("validating", "in_progress")))
    if not connection.execute(mine.values(status="cancelling", cancelling=now)).rowcount:
        raise Conflict(f"Cannot cancel a batch with status '{batch.status}'.", headers=(("x-should-retry", "false"),))


def take(connection: Connection, boot: str, busy: Iterable[tuple[str, str]]) -> Batch | None:
    """A batch that nobody runs, from now on `boot`'s; one of a project that has none running here comes first."""
    closed_boots = select(Boot.id).where(Boot.closed.is_not(None))
    free = or_(BatchRow.owner.is_(None), BatchRow.owner.in_(closed_boots))
    wanted = select(*_COLUMNS).where(BatchRow.status.in_(UNFINISHED), free).order_by(BatchRow.created)
    rows = [_batch(row) for row in connection.execute(wanted.limit(64).with_for_update(skip_locked=True))]
    if not rows:
        return None
    taken = set(busy)
    chosen = next((batch for batch in rows if (batch.team, batch.project) not in taken), rows[0])
    connection.execute(update(BatchRow).where(BatchRow.id == chosen.id).values(owner=boot))
    return chosen


def loosen(connection: Connection, batch_id: str, boot: str) -> None:
    """What this process had taken and not begun is waiting again."""
    mine = (BatchLine.batch_id == batch_id) & (BatchLine.state == "running") & (BatchLine.boot == boot)
    connection.execute(update(BatchLine).where(mine).values(state="waiting", boot=None, request_id=None))


def give_back(connection: Connection, batch_id: str, boot: str) -> None:
    """This process stops before the batch is done."""
    connection.execute(update(BatchRow).where(BatchRow.id == batch_id, BatchRow.owner == boot).values(owner=None))


def heal(connection: Connection, batch_id: str, boot: str, *, repeat: bool) -> int:
    """What a dead process had under way: run once more where the ledger knows that it was never sent.

    `repeat`: also where it was. Answers how many were found.
    """
    wanted = select(BatchLine.number, BatchLine.custom_id, BatchLine.request_id, BatchLine.boot).where(
        BatchLine.batch_id == batch_id,
        BatchLine.state == "running",
        BatchLine.boot != boot,
        BatchLine.answer.is_(None),  # what was made elsewhere is charged anew (`gateway.batches.abroad`)
    )
    rows = connection.execute(wanted).all()
    for row in rows:
        again = repeat or fate(connection, row.boot, row.request_id) == "unsent"
        values: dict[str, Any] = {"state": "waiting", "boot": None, "request_id": None}
        if not again:
            told = unanswered(row.custom_id, "interrupted", _INTERRUPTED)
            values = {"state": "failed", "result": told, "request": None}
        line = update(BatchLine).where(BatchLine.batch_id == batch_id, BatchLine.number == row.number)
        connection.execute(line.values(values))
    return len(rows)


def clear(connection: Connection, batch_id: str) -> None:
    """Reading the input begins anew."""
    connection.execute(delete(BatchLine).where(BatchLine.batch_id == batch_id))


def fill(connection: Connection, batch_id: str, lines: Sequence[Read]) -> None:
    empty = dict.fromkeys(("request_id", "boot", "result", "part", "answer"))
    blank = {"batch_id": batch_id, "state": "waiting", **empty}
    rows = [{**blank, "number": line.number, "custom_id": line.custom_id, "request": line.request} for line in lines]
    connection.execute(insert(BatchLine), rows)


def move(connection: Connection, batch_id: str, to: Status, now: float, **values: Any) -> Status:
    """The batch goes on to `to`, unless somebody asked to cancel it; answers where it stands now."""
    stage = update(BatchRow).where(BatchRow.id == batch_id, BatchRow.status.in_(("validating", "in_progress")))
    connection.execute(stage.values(status=to, **{to: now}, **values))
    return status(connection, batch_id)


def status(connection: Connection, batch_id: str) -> Status:
    return connection.execute(select(BatchRow.status).where(BatchRow.id == batch_id)).scalar_one()  # pyright: ignore[reportReturnType] - the column holds nothing else


def claim(connection: Connection, batch_id: str, boot: str, most: int, *, given: bool = False) -> list[Line]:
    """The next lines, from now on under way. `given`: only those whose answer is here already."""
    wanted = select(BatchLine.number, BatchLine.custom_id, BatchLine.request, BatchLine.answer).where(
        BatchLine.batch_id == batch_id, BatchLine.state == "waiting"
    )
    if given:
        wanted = wanted.where(BatchLine.answer.is_not(None))
    found: list[Line] = []
    for row in connection.execute(wanted.order_by(BatchLine.number).limit(most)).all():
        answer = None if row.answer is None else _given(row.answer)
        line = Line(
            number=row.number, custom_id=row.custom_id, request=row.request or b"", request_id=uuid7(), given=answer
        )
        found.append(line)
        mine = update(BatchLine).where(BatchLine.batch_id == batch_id, BatchLine.number == row.number)
        connection.execute(mine.values(state="running", boot=boot, request_id=line.request_id))
    return found


def rename(connection: Connection, batch_id: str, number: int, request_id: str) -> None:
    """A line is tried once more, under another id."""
    mine = update(BatchLine).where(BatchLine.batch_id == batch_id, BatchLine.number == number)
    connection.execute(mine.values(request_id=request_id))


def finish(connection: Connection, batch_id: str, results: Sequence[Result]) -> None:
    for result in results:
        mine = update(BatchLine).where(BatchLine.batch_id == batch_id, BatchLine.number == result.number)
        connection.execute(mine.values(state=result.state, result=result.told, request=None, answer=None))


def give_up(connection: Connection, batch_id: str, state: State, message: str, most: int) -> int:
    """Lines that will not be run any more, some at a time; answers how many."""
    mine = (BatchLine.batch_id == batch_id) & (BatchLine.state == "waiting")
    rows = connection.execute(select(BatchLine.number, BatchLine.custom_id).where(mine).limit(most)).all()
    ended = [
        Result(number=row.number, state=state, told=unanswered(row.custom_id, f"batch_{state}", message))
        for row in rows
    ]
    finish(connection, batch_id, ended)
    return len(rows)


def results(connection: Connection, batch_id: str, after: int, most: int, *, good: bool) -> list[tuple[int, bytes]]:
    """Lines of the output or of the error file, in the input's order."""
    states = ("done",) if good else _ENDED
    wanted = select(BatchLine.number, BatchLine.result).where(
        BatchLine.batch_id == batch_id, BatchLine.number > after, BatchLine.state.in_(states)
    )
    rows = connection.execute(wanted.order_by(BatchLine.number).limit(most))
    return [(row.number, row.result or b"") for row in rows]


def conclude(connection: Connection, batch: Batch, now: float, files: tuple[str | None, str | None]) -> None:
    """The batch is over: its files can be seen, its lines are not needed any more. All of it or nothing."""
    told, late = counts(connection, batch), BatchLine.state == "expired"
    to: Status = "completed"
    if status(connection, batch.id) == "cancelling":
        to = "cancelled"
    elif connection.execute(select(BatchLine.number).where(BatchLine.batch_id == batch.id, late).limit(1)).first():
        to = "expired"
    for file_id in filter(None, files):
        connection.execute(update(StoredFile).where(StoredFile.id == file_id).values(ready=True))
    ends = {"output_file": files[0], "error_file": files[1], "succeeded": told.completed, "unsuccessful": told.failed}
    done = update(BatchRow).where(BatchRow.id == batch.id)
    connection.execute(done.values(status=to, owner=None, **{to: now}, **ends))
    clear(connection, batch.id)
    connection.execute(delete(BatchPart).where(BatchPart.batch_id == batch.id))


def sweep(connection: Connection, now: float) -> int:
    """Batches that were over long before their files went; answers how many were forgotten."""
    old = BatchRow.status.not_in(UNFINISHED) & (BatchRow.created <= now - _REMEMBERED)
    ids = [row.id for row in connection.execute(select(BatchRow.id).where(old).limit(500))]
    if ids:
        connection.execute(delete(BatchRow).where(BatchRow.id.in_(ids)))
    return len(ids)


def _batch(row: Any) -> Batch:
    return Batch(**{name: getattr(row, name) for name in _NAMES}, metadata=row.metadata)
