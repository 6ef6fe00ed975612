"""Streams of responses that are made in the background: written a few times a second, followed at every worker.

    the maker   hands over events; all streams of a worker are written together, in one transaction at a time
    followers   read what is written and nothing else, so that numbers mean the same to all of them, here and elsewhere
    the look    one query a moment for all that is followed here: what has grown, what is over without saying so

Bounded: what waits to be written (its makers wait too), followers, how long one follows. Knows: how often. Does not
know: SQL (`gateway.response_events`), HTTP, how a response is made.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import contextmanager

import structlog
from msgspec import Struct, field

from gateway import response_events as stored
from gateway.call import Principal
from gateway.db.session import UNREACHABLE, Database
from gateway.dialects.responses_items import Event, on_the_wire
from gateway.errors import InvalidRequest, Overloaded
from gateway.ledger.shipper import set_within
from gateway.pieces import PIECE
from gateway.response_events import Piece, Writing
from gateway.responses import Kept, Responses
from gateway.tasks import Tasks
from gateway.ticking import COMMENT, EVERY

log = structlog.get_logger("nearhit.responses")

_WRITE_SECONDS = 0.2
_LONGEST_PAUSE = 5.0  # while the database does not answer
_QUICK, _SLOW = 0.1, 1.0  # seconds between two looks: while something comes, and once nothing does
_MOST_FOLLOWERS = 1_024
_MOST_WAITING = 16 << 20  # bytes of all streams of this worker that are not written yet
_AGAIN_SECONDS = 1.0
_SOON = (("retry-after", "2"),)


class _Open(Struct):
    """A stream that is written here. `number`: of its next event; `size`: of all its events so far.

    `closed`: nobody reads what is added, because it has ended elsewhere or its project keeps too much.
    """

    owner: Principal
    number: int
    size: int
    pieces: list[Piece] = []
    closed: bool = False


class _Followed(Struct):
    """A stream that is followed here. `news` is set, and replaced, when there is something to read.

    `lately`: what was written last, by this worker, so that its followers need not read it. `mark`: how far it is known
    to have come.
    """

    owner: Principal
    followers: int = 0
    mark: int = 0
    lately: list[Piece] = []
    news: asyncio.Event = field(default_factory=asyncio.Event)


class Streams:
    """One per worker. `tasks`: those a stop waits for; `now`: wall-clock seconds; `most`: of a project's events."""

    def __init__(
        self, database: Database, responses: Responses, tasks: Tasks, *, now: Callable[[], float], most: int
    ) -> None:
        self._database = database
        self._responses = responses
        self._tasks = tasks
        self._now = now
        self._most = most
        self._open: dict[str, _Open] = {}
        self._waiting = 0
        self._room = asyncio.Event()
        self._room.set()
        self._writing = asyncio.Lock()
        self._writer: asyncio.Task[None] | None = None
        self._followed: dict[str, _Followed] = {}
        self._followers = 0
        self._looker: asyncio.Task[None] | None = None
        self._draining = False

    def drain(self) -> None:
        """Followers go, to take it up at another worker: they would keep this one from ending, which makers may use."""
        self._draining = True
        for name in self._followed:
            self.news(name)

    # -- for the maker ---------------------------------------------------------------------------------------------

    def begin(self, owner: Principal, response_id: str, announced: bytes) -> None:
        """Its first events are written already."""
        self._open[response_id] = _Open(owner, announced.count(b"\n\n"), len(announced))

    async def add(self, response_id: str, events: bytes) -> None:
        """Have them written soon. Waits while too much waits to be written."""
        found = self._open[response_id]
        count = events.count(b"\n\n")
        if found.size + len(events) > stored.LARGEST or found.number + count > stored.MOST:
            found.closed = True  # what is left out is not lost: the last event tells the whole response
        self._note(found, events, count, last=False)
        if self._writer is None and found.pieces:
            self._writer = self._tasks.spawn(self._write(), "events of responses")
        await self._room.wait()

    async def last(self, response_id: str, events: bytes) -> Writing:
        """What is still to be written, these included, in the transaction that ends the response."""
        async with self._writing:
            found = self._open[response_id]
            self._note(found, events, events.count(b"\n\n"), last=True)
            pieces = _taken(found)
            self._less(pieces)
            return Writing(response_id, found.owner, pieces, found.number)

    def leave(self, response_id: str) -> None:
        """It is not made any more; followers look at what became of it."""
        if (found := self._open.pop(response_id, None)) is not None:
            self._less(_taken(found))
        self.news(response_id)

    def news(self, response_id: str) -> None:
        """There may be something to read."""
        if (found := self._followed.get(response_id)) is not None:
            found.news.set()
            found.news = asyncio.Event()

    def _note(self, found: _Open, events: bytes, count: int, *, last: bool) -> None:
        first = found.number
        found.number += count
        if not count or (found.closed and not last):
            return
        found.size += len(events)
        self._waiting += len(events)
        if self._waiting > _MOST_WAITING:
            self._room.clear()
        before = found.pieces[-1] if found.pieces else None
        if before is not None and before.first + before.count == first and len(before.data) + len(events) <= PIECE:
            before.data += events
            before.count += count
        else:
            found.pieces.append(Piece(first, events, count))

    def _less(self, pieces: Sequence[Piece]) -> None:
        """They wait no longer: they are written, or nobody wants them."""
        self._waiting -= sum(len(piece.data) for piece in pieces)
        if self._waiting <= _MOST_WAITING:
            self._room.set()

    def _give_back(self, writings: list[Writing]) -> None:
        """They were not written, or nobody knows; what was is not written again."""
        for writing in writings:
            if (found := self._open.get(writing.id)) is not None:
                found.pieces = [*writing.pieces, *found.pieces]
            else:
                self._less(writing.pieces)

    async def _write(self) -> None:
        """Until nothing is left. A busy database is left to others for three quarters of the time."""
        loop, pause = asyncio.get_running_loop(), _WRITE_SECONDS
        try:
            while any(found.pieces for found in self._open.values()):
                begun = loop.time()
                try:
                    async with self._writing:
                        await self._write_once()
                    pause = max(_WRITE_SECONDS, 3 * (loop.time() - begun))
                except UNREACHABLE as error:
                    pause = min(2 * pause, _LONGEST_PAUSE)
                    log.warning("events of responses wait for the database", error=repr(error)[:200])
                await asyncio.sleep(pause)
        finally:
            self._writer = None

    async def _write_once(self) -> None:
        """What there is, in the order of names: two workers that hold rows of each other's would wait for ever."""
        dirty = sorted(name for name, found in self._open.items() if found.pieces)
        opened = [(name, self._open[name]) for name in dirty]
        taken = [Writing(name, found.owner, _taken(found), found.number) for name, found in opened]
        try:
            still = await self._database.transact(stored.append_all, taken, self._most)
        except BaseException:
            self._give_back(taken)
            raise
        for writing, is_open in zip(taken, still, strict=True):
            self._less(writing.pieces)
            self._written(writing, is_open)

    def _written(self, writing: Writing, is_open: bool) -> None:
        """`is_open` False: it was not, because the stream has ended elsewhere or has had to give way."""
        if not is_open and (found := self._open.get(writing.id)) is not None:
            found.closed = True
        if is_open and (followed := self._followed.get(writing.id)) is not None:
            followed.lately, followed.mark = list(writing.pieces), writing.upto
        self.news(writing.id)

    # -- for followers ---------------------------------------------------------------------------------------------

    def require_room(self) -> None:
        """Raises Overloaded."""
        if self._followers >= _MOST_FOLLOWERS:
            raise Overloaded("Too many streams are followed here.", headers=_SOON)

    async def check(self, kept: Kept) -> None:
        """Whether it can be followed. Raises InvalidRequest as OpenAI does, Overloaded."""
        self.require_room()
        if kept.response.get("background") is not True:
            raise _no_stream("cannot be streamed because it was not created with background=true")
        if not kept.streamed:
            raise _no_stream("cannot be streamed because it was not created with stream=true")
        async with self._database.read() as connection:
            expires = await connection.run_sync(stored.expires, kept.id)
        if expires is None or expires <= self._now():
            minutes = int(stored.KEPT_SECONDS // 60)
            raise _no_stream(f"can no longer be streamed because it ended more than {minutes} minutes ago")

    async def follow(self, owner: Principal, response_id: str, after: int) -> AsyncGenerator[bytes, None]:
        """The events with a greater number than `after`, as they go to the client, up to the last.

        Between them now and then a comment. Ends without a last event where it takes longer than a response may, or
        this worker is to end.
        """
        number = after + 1
        loop = asyncio.get_running_loop()
        until = loop.time() + stored.LONGEST
        with self._following(owner, response_id) as followed:
            while loop.time() < until:
                news = followed.news  # before reading: what comes in between is not missed
                self._keep_looking()
                at_hand = _at_hand(followed, number)
                try:
                    told, number, over = at_hand or await self._read(response_id, number)
                except UNREACHABLE as error:
                    log.warning("a stream that is followed could not be read", error=repr(error)[:200])
                    await asyncio.sleep(_AGAIN_SECONDS)
                    continue
                if told:
                    yield told
                if over or self._draining:
                    return
                if (at_hand or not told) and not await set_within(news, EVERY):
                    yield COMMENT

    async def _read(self, response_id: str, number: int) -> tuple[bytes, int, bool]:
        """Some events from `number` on, the number of the next one, whether there is nothing after them."""
        async with self._database.read() as connection:
            found = await connection.run_sync(stored.standing, [response_id])
            if not found:
                return on_the_wire(_GONE, number), number, True
            if number >= found[0].events:
                return b"", number, found[0].ended
            pieces = await connection.run_sync(stored.read, response_id, number)
        told = b"".join([stored.since(piece, number) for piece in pieces])
        following = max([number, *(piece.first + piece.count for piece in pieces)])
        return told, following, found[0].ended and following >= found[0].events

    @contextmanager
    def _following(self, owner: Principal, response_id: str) -> Generator[_Followed, None, None]:
        followed = self._followed.setdefault(response_id, _Followed(owner))
        followed.followers += 1
        self._followers += 1
        try:
            yield followed
        finally:
            self._followers -= 1
            followed.followers -= 1
            if not followed.followers:
                del self._followed[response_id]

    def _keep_looking(self) -> None:
        if self._looker is None:
            self._looker = self._tasks.spawn(self._look(), "look at followed responses")

    async def _look(self) -> None:
        """While anybody follows: wake those for whom there is something, end what is over."""
        pause = _QUICK
        try:
            while self._followed:
                await asyncio.sleep(pause)
                try:
                    moved = await self._look_once()
                except UNREACHABLE:
                    moved = False
                pause = _QUICK if moved else min(1.5 * pause, _SLOW)
        finally:
            self._looker = None

    async def _look_once(self) -> bool:
        """Whether anything has moved."""
        ids = sorted(self._followed)
        async with self._database.read() as connection:
            found = {one.id: one for one in await connection.run_sync(stored.standing, ids)}
        moved = False
        for name in ids:
            followed, standing = self._followed.get(name), found.get(name)
            if followed is None:
                continue
            if standing is not None and standing.over and not standing.ended:
                await self._responses.settle(followed.owner, name)
            mark = -1 if standing is None else standing.events + (standing.over or standing.ended)
            if mark != followed.mark:
                followed.mark = mark
                self.news(name)
                moved = True
        return moved


def _taken(found: _Open) -> list[Piece]:
    pieces, found.pieces = found.pieces, []
    return pieces


def _at_hand(followed: _Followed, number: int) -> tuple[bytes, int, bool] | None:
    """As `Streams._read`, from what was written last; None where that is not what comes next."""
    lately = followed.lately
    if not lately or not lately[0].first <= number < (end := lately[-1].first + lately[-1].count):
        return None
    return b"".join([stored.since(piece, number) for piece in lately if number < piece.first + piece.count]), end, False


_LOST = "The events of this response are not kept any more."
_GONE: Event = ("error", {"code": "response_not_found", "message": _LOST, "param": None})


def _no_stream(why: str) -> InvalidRequest:
    return InvalidRequest(f"This response {why}.", param="stream", code="invalid_request_error")
