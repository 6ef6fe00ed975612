"""The parts of a batch that are at a provider's own batch service, in the database.

Knows: rows; a part and its lines change together. Does not know: HTTP, what a part costs, when anybody looks.

A part is `planned` until it is about to be handed in, then `sending`, `away` once the service's own id of it stands
here, and `back` when all that came of it does. It is forgotten when its lines are charged.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import Struct
from sqlalchemy import ColumnElement, delete, func, insert, select, update
from sqlalchemy.engine import Connection

from gateway.batches.shapes import Result
from gateway.batches.store import finish
from gateway.call import Given
from gateway.db.models import BatchLine, BatchPart, Entry
from gateway.ids import uuid7

State = Literal["planned", "sending", "away", "back"]
_encode = msgspec.json.Encoder().encode


class Part(Struct, frozen=True, kw_only=True):
    """`id`: ours, under which its money is held too. `remote`: the service's. `boot`: whose process holds the money."""

    id: str
    batch_id: str
    provider: str
    model: str
    state: State
    remote: str | None
    boot: str | None

    @property
    def attempt(self) -> str:
        """What holds its money in the ledger."""
        return f"{self.id}.1"


class Waiting(Struct, frozen=True):
    """A line that might be a part's."""

    number: int
    request: bytes


class Answer(Struct, frozen=True):
    """What came back for a line."""

    number: int
    given: Given


def waiting(connection: Connection, batch_id: str, after: int, most: int) -> list[Waiting]:
    """Lines that nobody has begun."""
    mine = (BatchLine.batch_id == batch_id) & (BatchLine.state == "waiting") & BatchLine.answer.is_(None)
    wanted = select(BatchLine.number, BatchLine.request).where(mine, BatchLine.number > after)
    rows = connection.execute(wanted.order_by(BatchLine.number).limit(most))
    return [Waiting(row.number, row.request or b"") for row in rows]


def make(connection: Connection, batch_id: str, provider: str, model: str, numbers: Sequence[int]) -> None:
    """These lines go together."""
    name = uuid7()
    blank = {"remote": None, "boot": None, "state": "planned"}
    row = {"id": name, "batch_id": batch_id, "provider": provider, "model": model, **blank}
    connection.execute(insert(BatchPart).values(row))
    mine = (BatchLine.batch_id == batch_id) & BatchLine.number.in_(numbers)
    connection.execute(update(BatchLine).where(mine).values(state="away", part=name))


def of(connection: Connection, batch_id: str) -> list[Part]:
    wanted = select(*(getattr(BatchPart, name) for name in Part.__struct_fields__)).where(
        BatchPart.batch_id == batch_id
    )
    return [Part(**row) for row in connection.execute(wanted.order_by(BatchPart.id)).mappings()]


def lines(connection: Connection, part: Part) -> list[tuple[int, str, bytes]]:
    """Number, custom id and request of those that are still away."""
    wanted = select(BatchLine.number, BatchLine.custom_id, BatchLine.request).where(_away(part))
    return [(row.number, row.custom_id, row.request or b"") for row in connection.execute(wanted)]


def is_over(connection: Connection, part: Part) -> bool:
    """Whether each of its lines has been told what became of it, and so been charged."""
    mine = (BatchLine.batch_id == part.batch_id) & (BatchLine.part == part.id)
    left = mine & BatchLine.state.in_(("away", "waiting", "running"))
    return connection.execute(select(BatchLine.number).where(left).limit(1)).first() is None


def move(connection: Connection, part: Part, state: State, *, remote: str | None, boot: str | None) -> None:
    mine = update(BatchPart).where(BatchPart.id == part.id)
    connection.execute(mine.values(state=state, remote=remote, boot=boot))


def returned(connection: Connection, part: Part, answers: Sequence[Answer], results: Sequence[Result]) -> None:
    """What came back is run like any line, with its answer given; what has ended otherwise ends here.

    Only of those that are still away: a service that tells a line twice neither has it charged twice nor takes its
    answer back.
    """
    for answer in answers:
        mine = update(BatchLine).where(_away(part), BatchLine.number == answer.number)
        connection.execute(mine.values(state="waiting", answer=_encode(answer.given)))
    numbers = [result.number for result in results]
    still = select(BatchLine.number).where(_away(part), BatchLine.number.in_(numbers))
    away = set(connection.scalars(still)) if numbers else set[int]()
    finish(connection, part.batch_id, [result for result in results if result.number in away])


def release(connection: Connection, part: Part) -> None:
    """Its lines wait as if they had never been parted."""
    connection.execute(update(BatchLine).where(_away(part)).values(state="waiting", part=None))
    drop(connection, part.id)


def drop(connection: Connection, part_id: str) -> None:
    connection.execute(delete(BatchPart).where(BatchPart.id == part_id))


def rename(connection: Connection, part: Part, name: str) -> None:
    """The same lines under another name, to be handed in."""
    mine = update(BatchPart).where(BatchPart.id == part.id)
    connection.execute(mine.values(id=name, state="planned", remote=None, boot=None))
    connection.execute(update(BatchLine).where(_away(part)).values(part=name))


def charged(connection: Connection, attempt: str) -> int | None:
    """What an attempt stands in the ledger for, corrections included; None: it does not stand there."""
    found = connection.execute(select(Entry.amount_nano).where(Entry.id == attempt)).first()
    if found is None:
        return None
    more = select(func.coalesce(func.sum(Entry.amount_nano), 0)).where(
        Entry.source == "adjust", Entry.id.startswith(f"{attempt}#adj.", autoescape=True)
    )
    return int(found.amount_nano) + int(connection.scalar(more) or 0)


def doubted(connection: Connection, batch_id: str) -> list[tuple[int, str]]:
    """Lines whose answer was being charged when their process ended: number and id of the request."""
    mine = (BatchLine.batch_id == batch_id) & (BatchLine.state == "running") & BatchLine.answer.is_not(None)
    wanted = select(BatchLine.number, BatchLine.request_id).where(mine)
    return [(row.number, row.request_id or "") for row in connection.execute(wanted)]


def loosen(connection: Connection, batch_id: str, number: int) -> None:
    """A line with its answer is to be charged anew."""
    mine = (BatchLine.batch_id == batch_id) & (BatchLine.number == number)
    connection.execute(update(BatchLine).where(mine).values(state="waiting", boot=None, request_id=None))


def _away(part: Part) -> ColumnElement[bool]:
    return (BatchLine.batch_id == part.batch_id) & (BatchLine.part == part.id) & (BatchLine.state == "away")
