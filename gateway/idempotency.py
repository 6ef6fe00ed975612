"""`Idempotency-Key`: one key of one caller is answered once, whoever asks again, and however often.

    claim   the first to come makes the answer, in a task that no client's leaving ends
    join    who comes while it is being made hears the same from the beginning
    replay  who comes within 24 hours gets it again, after a restart and at another worker too

Kept is what may have cost something: an answer, whole or broken off, and a failure on whose way an upstream may have
done the work, also where the next one refused. Every other failure gives the key free. So no key is ever charged twice.
Bounded: answers beyond 16 MiB, and the oldest of a caller with more than 10,000 keys, are not kept. Knows: keys,
fingerprints, rows. Does not know: dialects, money, how an answer is made.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import NoReturn

import msgspec
import structlog
from msgspec import Struct
from sqlalchemy import delete, select, update
from sqlalchemy.engine import Connection

from gateway import pieces
from gateway.aftermath import fate
from gateway.db.models import OnceAnswer
from gateway.db.session import UNREACHABLE, Database
from gateway.errors import Conflict, Overloaded
from gateway.headers import Pairs
from gateway.ledger.balances import insert_once
from gateway.recording import LARGEST, Message, Recording, Send, retold
from gateway.tasks import Tasks

log = structlog.get_logger("nearhit.idempotency")

KEPT_SECONDS = 86_400.0
_MOST_PER_CALLER = 10_000
_TIDY_EVERY = 256  # new keys
_POLL_SECONDS = 0.2  # while another worker makes the answer
_TRIES = 3
_NEVER = (("x-should-retry", "false"),)
_deterministic = msgspec.json.Encoder(order="deterministic").encode
_columns = (OnceAnswer.fingerprint, OnceAnswer.request_id, OnceAnswer.boot, OnceAnswer.expires, OnceAnswer.done)
Make = Callable[[Recording], Awaitable[bool]]


class Asked(Struct, frozen=True, kw_only=True):
    """One request under a key. `fingerprint`: of everything that was asked. `patience`: seconds it may wait."""

    id: str
    key_id: str
    fingerprint: str
    request_id: str
    patience: float


class _Stored(Struct, frozen=True):
    status: int
    headers: list[list[str]]


def asked(key_id: str, key: str, what: tuple[str, object], request_id: str, patience: float) -> Asked:
    """`what`: the operation and its decoded body; the order of keys in it says nothing."""
    name = hashlib.blake2b(f"{key_id}\n{key}".encode(), digest_size=20).hexdigest()
    print_ = hashlib.blake2b(_deterministic(what), digest_size=20).hexdigest()
    return Asked(id=f"once_{name}", key_id=key_id, fingerprint=print_, request_id=request_id, patience=patience)


class Idempotency:
    """One per worker. `boot`: this process's life in the ledger; `now`: wall-clock seconds."""

    def __init__(self, database: Database, boot: str, *, now: Callable[[], float], tasks: Tasks) -> None:
        self._database = database
        self._boot = boot
        self._now = now
        self._tasks = tasks
        self._making: dict[str, Recording] = {}
        self._add = insert_once(database.dialect, OnceAnswer)
        self._fresh = 0

    async def answer(self, wanted: Asked, make: Make, send: Send) -> int | None:
        """Send the answer of this key. Where nobody has made it `make` does, and says whether it is to be kept.

        Answers the status of an answer that was told again, None of one that was made for this request.

        Raises Conflict (the key was used for something else, or its answer is lost), Overloaded (the database is away).
        """
        deadline = asyncio.get_running_loop().time() + wanted.patience
        while True:
            if (recording := self._making.get(wanted.id)) is not None:
                _check(recording.fingerprint, wanted)
                if not recording.passing and await recording.play(send, again=wanted.request_id):
                    return recording.status
                await recording.ended()
                continue
            # A task of its own: a claim that is written down when its client leaves would stand there for nobody.
            recording = self._making[wanted.id] = Recording(wanted.fingerprint)
            claim = self._tasks.spawn(self._begun(wanted, recording, make), f"claim {wanted.request_id}")
            found = await asyncio.shield(claim)
            if isinstance(found, Recording):
                if not await found.play(send):
                    raise Overloaded("The gateway is stopping.", headers=(("retry-after", "1"),))
                return None
            if found is not None:
                await self._replay(found, wanted, send)
                return found.status
            if asyncio.get_running_loop().time() >= deadline:
                why = "The first request with this Idempotency-Key is still being answered."
                raise Conflict(why, param="Idempotency-Key", code="idempotency_key_in_use")
            await asyncio.sleep(_POLL_SECONDS)

    async def _begun(self, wanted: Asked, recording: Recording, make: Make) -> "Recording | _Stored | None":
        """The recording of an answer that is being made from now on, else as `_claimed`."""
        found = await self._claimed(wanted, recording)
        if isinstance(found, Recording):
            self._tasks.spawn(self._make(wanted, found, make), f"once {wanted.request_id}")
        return found

    async def _claimed(self, wanted: Asked, recording: Recording) -> "Recording | _Stored | None":
        """A recording to make, what is kept, or None while another process makes it.

        Others who come meanwhile find the recording, and hear at its end that they have to look again.
        """
        found: _Stored | str = ""
        try:
            found = await self._database.transact(self._claim, wanted, self._now())
        except UNREACHABLE as error:
            why = "The database does not answer, so an Idempotency-Key cannot be kept. Try again in a moment."
            raise Overloaded(why, code="database_unavailable", headers=(("retry-after", "2"),)) from error
        finally:
            if found != "claimed":
                del self._making[wanted.id]
                recording.end()
        if isinstance(found, _Stored):
            return found
        return recording if found == "claimed" else None

    async def _make(self, wanted: Asked, recording: Recording, make: Make) -> None:
        kept = False
        try:
            kept = await make(recording)
            if kept:
                await self._attempt(self._finish, wanted, recording)
            else:
                await self._attempt(self._release, wanted)
        finally:
            recording.end()
            del self._making[wanted.id]
        self._fresh += kept
        if self._fresh >= _TIDY_EVERY:
            self._fresh = 0
            await self._attempt(_tidy, wanted.key_id, self._now())

    async def _attempt(self, work: Callable[..., None], *given: object) -> None:
        """A few times: what is not written here is not answered again later, but it is never made again either."""
        for number in range(_TRIES):
            try:
                await self._database.transact(work, *given)
                return
            except UNREACHABLE as error:
                log.warning("an answer under an idempotency key is not kept yet", error=repr(error)[:200])
                await asyncio.sleep(2.0**number)

    # -- in one transaction each -----------------------------------------------------------------------------------

    def _claim(self, connection: Connection, wanted: Asked, now: float) -> "_Stored | str":
        """What is kept; `claimed`: this request makes it; `wait`: another process does. Raises Conflict."""
        row = connection.execute(
            select(*_columns, OnceAnswer.status, OnceAnswer.headers).where(OnceAnswer.id == wanted.id).with_for_update()
        ).first()
        if row is not None and row.expires > now:
            _check(row.fingerprint, wanted)
            if row.status is not None:
                return _Stored(row.status, row.headers)
            if row.done:
                _lost("its answer was too large to keep")
            # A row of this very process that it knows nothing of: it could not be written when it ended.
            became = "sent" if row.boot == self._boot else fate(connection, row.boot, row.request_id)
            if became == "alive":
                return "wait"
            if became == "sent":
                _lost("it was under way when its answer was lost, and may have been billed")
        if row is not None:
            _forget(connection, [wanted.id])
        blank = {"done": False, "status": None, "headers": None, "size": 0, "boot": self._boot}
        mine = {"id": wanted.id, "key_id": wanted.key_id, "fingerprint": wanted.fingerprint, **blank}
        times = {"request_id": wanted.request_id, "created": now, "expires": now + KEPT_SECONDS}
        added = connection.execute(self._add, [{**mine, **times}]).rowcount
        return "claimed" if added else "wait"

    def _finish(self, connection: Connection, wanted: Asked, recording: Recording) -> None:
        values: dict[str, object] = {"done": True, "size": recording.size}
        if recording.size <= LARGEST:
            told = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in recording.headers]
            values |= {"status": recording.status, "headers": told}
            pieces.drop(connection, [wanted.id])
            pieces.add(connection, wanted.id, pieces.cut(recording.body))
        connection.execute(update(OnceAnswer).where(OnceAnswer.id == wanted.id).values(values))

    def _release(self, connection: Connection, wanted: Asked) -> None:
        mine = (OnceAnswer.id == wanted.id) & (OnceAnswer.request_id == wanted.request_id)
        connection.execute(delete(OnceAnswer).where(mine))

    async def sweep(self) -> int:
        """Away with what has expired; answers how many."""
        return await self._database.transact(_expire, self._now())

    # -- what was kept ---------------------------------------------------------------------------------------------

    async def _replay(self, found: _Stored, wanted: Asked, send: Send) -> None:
        headers: Pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in found.headers]
        start: Message = {"type": "http.response.start", "status": found.status, "headers": headers}
        await send(retold(start, wanted.request_id))
        async for piece in self._pieces(wanted.id):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _pieces(self, owner: str) -> AsyncGenerator[bytes, None]:
        return pieces.read(self._database, owner)


def _expire(connection: Connection, now: float) -> int:
    gone = select(OnceAnswer.id).where(OnceAnswer.expires <= now).limit(1_000)
    ids = [row.id for row in connection.execute(gone)]
    _forget(connection, ids)
    return len(ids)


def _tidy(connection: Connection, key_id: str, now: float) -> None:
    """Away with what has expired, and with the oldest of a caller that has too many."""
    _expire(connection, now)
    newest = select(OnceAnswer.id).where(OnceAnswer.key_id == key_id, OnceAnswer.done.is_(True))
    too_old = newest.order_by(OnceAnswer.created.desc()).offset(_MOST_PER_CALLER).limit(1_000)
    _forget(connection, [row.id for row in connection.execute(too_old)])


def _forget(connection: Connection, ids: list[str]) -> None:
    if ids:
        pieces.drop(connection, ids)
        connection.execute(delete(OnceAnswer).where(OnceAnswer.id.in_(ids)))


def _check(fingerprint: str, wanted: Asked) -> None:
    if fingerprint != wanted.fingerprint:
        raise Conflict(
            "This Idempotency-Key was used with another request. Use a new key for a new request.",
            param="Idempotency-Key",
            code="idempotency_key_reused",
            headers=_NEVER,
        )


def _lost(why: str) -> NoReturn:
    raise Conflict(
        f"The first request with this Idempotency-Key cannot be answered again: {why}. Use a new key.",
        param="Idempotency-Key",
        code="idempotency_answer_lost",
        headers=_NEVER,
    )
