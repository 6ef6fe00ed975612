"""The events of responses that are made in the background and streamed, as they are kept: rows, and pieces of them.

Bounded: by time, by response and by project, the oldest go first. Whoever finds a response over adds the last event
that its stream lacks, once. Knows: rows, numbers of events. Does not know: what an event means but for the last one,
who makes a response, who follows it.
"""

from collections.abc import Sequence

from msgspec import Struct
from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.engine import Connection

from gateway import pieces
from gateway.call import Body, Principal
from gateway.db.models import Boot, KeptResponse, ResponseStream, StoredPiece
from gateway.dialects.responses_items import on_the_wire

KEPT_SECONDS = 300.0  # after the last event; OpenAI lets go of a stream five minutes after its response was made
LONGEST = 900.0  # seconds: above what a response may take, with all waits for the database
LARGEST = 32 << 20  # bytes of one response's events
MOST = 200_000  # events of one response
UNDER_WAY = ("queued", "in_progress")
_STEP = 1 << 20  # bytes of a stream, until it is seen again whether its project keeps too much
_MOST_DROPPED = 50  # streams at once: they are thousands of pieces
_PIECES_READ = 4
_FINAL = {"completed": "completed", "incomplete": "incomplete"}


class Piece(Struct):
    """Events that follow each other, as they go to a client. `first`: the number of the first of them."""

    first: int
    data: bytes
    count: int


class Writing(Struct, frozen=True):
    """Pieces of one response, and the number of the event after them."""

    id: str
    owner: Principal
    pieces: Sequence[Piece]
    upto: int


class Standing(Struct, frozen=True):
    """How far a stream is written. `over`: the response has ended, or whoever made it has; `ended`: and so is told."""

    id: str
    events: int
    ended: bool
    over: bool


def begin(connection: Connection, of: Body, announced: bytes, now: float) -> None:
    """The stream of a response that is made from now on. `of`: the response's own row."""
    row = {name: of[name] for name in ("id", "team", "project")}
    row |= {"events": announced.count(b"\n\n"), "size": len(announced), "ended": False}
    times = {"created": now, "expires": now + LONGEST + KEPT_SECONDS}
    connection.execute(insert(ResponseStream).values({**row, **times}))
    pieces.add(connection, str(of["id"]), [announced])


def append(connection: Connection, writing: Writing, most: int) -> bool:
    """Whether the stream is still open. `most`: bytes of events that its project may keep.

    What an earlier try has written, though its answer was lost, is not written again.
    """
    mine = ResponseStream.id == writing.id
    wanted = select(ResponseStream.events, ResponseStream.size, ResponseStream.ended).where(mine)
    row = connection.execute(wanted.with_for_update()).first()
    if row is None or row.ended:
        return False
    fresh = [_from(piece, row.events) for piece in writing.pieces if piece.first + piece.count > row.events]
    if not fresh:
        return True
    rows = [{"owner": writing.id, "number": piece.first, "data": piece.data} for piece in fresh]
    size = row.size + sum(len(piece.data) for piece in fresh)
    connection.execute(insert(StoredPiece), rows)
    connection.execute(update(ResponseStream).where(mine).values(events=writing.upto, size=size))
    if size // _STEP != row.size // _STEP:
        trim(connection, writing.owner, most)
    return True


def append_all(connection: Connection, writings: Sequence[Writing], most: int) -> list[bool]:
    """Of each, whether it is still open."""
    return [append(connection, writing, most) for writing in writings]


def end(connection: Connection, response_id: str, now: float) -> None:
    """Nothing comes after what is written now."""
    mine = update(ResponseStream).where(ResponseStream.id == response_id, ResponseStream.ended.is_(False))
    connection.execute(mine.values(ended=True, expires=now + KEPT_SECONDS))


def conclude(connection: Connection, response: Body, now: float) -> None:
    """The response is over, whoever ended it: its stream gets its last event, unless it has one or there is none.

    OpenAI has no event for one that was cancelled; it tells `response.failed` with that status.
    """
    name = str(response["id"])
    mine = select(ResponseStream.events, ResponseStream.ended).where(ResponseStream.id == name)
    row = connection.execute(mine.with_for_update()).first()
    if row is None or row.ended:
        return
    kind = _FINAL.get(str(response["status"]), "failed")
    last = on_the_wire((f"response.{kind}", {"response": response}), row.events)
    connection.execute(insert(StoredPiece).values(owner=name, number=row.events, data=last))
    grown = {"events": row.events + 1, "size": ResponseStream.size + len(last)}
    connection.execute(update(ResponseStream).where(ResponseStream.id == name).values(grown))
    end(connection, name, now)


def standing(connection: Connection, ids: Sequence[str]) -> list[Standing]:
    """Of those that are there; where nothing changes it costs one look at small rows."""
    made_by = KeptResponse.boot.is_not(None) & (Boot.id.is_(None) | Boot.closed.is_not(None))
    over = KeptResponse.id.is_(None) | KeptResponse.status.not_in(UNDER_WAY) | made_by
    wanted = (
        select(ResponseStream.id, ResponseStream.events, ResponseStream.ended, over.label("over"))
        .outerjoin(KeptResponse, KeptResponse.id == ResponseStream.id)
        .outerjoin(Boot, Boot.id == KeptResponse.boot)
        .where(ResponseStream.id.in_(ids))
    )
    return [Standing(row.id, row.events, row.ended, bool(row.over)) for row in connection.execute(wanted)]


def expires(connection: Connection, response_id: str) -> float | None:
    """Until when a stream is kept; None where there is none (any more)."""
    return connection.execute(select(ResponseStream.expires).where(ResponseStream.id == response_id)).scalar()


def read(connection: Connection, response_id: str, number: int) -> list[Piece]:
    """The piece that holds event `number`, or comes after it, and some more."""
    mine = StoredPiece.owner == response_id
    before = select(func.max(StoredPiece.number)).where(mine, StoredPiece.number <= number).scalar_subquery()
    wanted = select(StoredPiece.number, StoredPiece.data).where(mine, StoredPiece.number >= func.coalesce(before, 0))
    found = connection.execute(wanted.order_by(StoredPiece.number).limit(_PIECES_READ))
    return [Piece(row.number, row.data, row.data.count(b"\n\n")) for row in found]


def since(piece: Piece, number: int) -> bytes:
    """What of a piece has this number or a greater one."""
    if number <= piece.first:
        return piece.data
    return b"\n\n".join(piece.data.split(b"\n\n")[number - piece.first :])


def _from(piece: Piece, number: int) -> Piece:
    first = max(piece.first, number)
    return Piece(first, since(piece, number), piece.first + piece.count - first)


def drop(connection: Connection, ids: Sequence[str]) -> None:
    """Rows before pieces: who holds a row may be adding a piece to it."""
    if ids:
        connection.execute(delete(ResponseStream).where(ResponseStream.id.in_(ids)))
        pieces.drop(connection, ids)


def drop_of(connection: Connection, response_ids: Sequence[str]) -> None:
    """The streams of these responses, those that are still there."""
    if response_ids:
        wanted = select(ResponseStream.id).where(ResponseStream.id.in_(response_ids))
        drop(connection, list(connection.execute(wanted).scalars()))


def sweep(connection: Connection, now: float) -> int:
    """Away with some of what has expired; answers how many."""
    wanted = select(ResponseStream.id).where(ResponseStream.expires <= now).limit(_MOST_DROPPED)
    ids = list(connection.execute(wanted).scalars())
    drop(connection, ids)
    return len(ids)


def trim(connection: Connection, owner: Principal, most: int) -> None:
    """The oldest streams of a project give way, some at a time; also one that is written: its response is made on."""
    mine = (ResponseStream.team == owner.team) & (ResponseStream.project == owner.project)
    sizes = select(ResponseStream.id, ResponseStream.size).where(mine).order_by(ResponseStream.created.desc())
    held, gone = 0, list[str]()
    for row in connection.execute(sizes):
        held += row.size
        if held > most:
            gone.append(row.id)
    drop(connection, gone[-_MOST_DROPPED:])
