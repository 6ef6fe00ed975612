"""A person's verdict on a hit: recorded, learned by the cache, and the saving taken back where it was wrong.

Knows: which verdict was there before (the last one counts, the same one again changes nothing), the correction's row.
Does not know: who may judge (routes do), how an answer is taken back or what is learned (`cache`).
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from hashlib import blake2b
from typing import Any, Literal

from sqlalchemy import Select, func, select
from sqlalchemy.engine import Connection

from cache.semantic import SemanticCache
from gateway.audit import Change, said_by
from gateway.call import Principal
from gateway.db.decisions import FEEDBACK
from gateway.db.models import Audit, RequestRow, SavingCorrection
from gateway.db.rows import RequestDetail, RequestLine
from gateway.db.session import Also
from gateway.ledger.request_rows import RequestRows
from gateway.services import Services

Verdict = Literal["wrong", "right"]


async def judged(services: Services, actor: Principal, found: RequestDetail, verdict: Verdict, ip: str | None) -> bool:
    """Put `verdict` on the request of `found`, which a kept answer served; whether an entry was evicted.

    Raises StoreDown when the cache cannot be told: then nothing is recorded, and it can be said again.
    """
    async with _alone(services, found):
        return await _judged(services, actor, found, verdict, ip)


@asynccontextmanager
async def _alone(services: Services, found: RequestDetail) -> AsyncGenerator[None, None]:
    """No other verdict on that request is taken in meanwhile, here or, where several share PostgreSQL, elsewhere: two
    at once would both find none before them, and both be learned. A transaction of its own holds the turn.
    """
    row = found.request
    assert row is not None
    async with services.verdicts:
        if services.database.dialect == "sqlite":
            yield
            return
        turn = int.from_bytes(blake2b(f"verdict {row.id}".encode(), digest_size=8).digest(), signed=True)
        async with services.database.begin() as connection:
            await connection.exec_driver_sql("SET LOCAL lock_timeout = 0")  # as long as a statement may take
            await connection.execute(select(func.pg_advisory_xact_lock(turn)))
            yield


async def _judged(services: Services, actor: Principal, found: RequestDetail, verdict: Verdict, ip: str | None) -> bool:
    row, explain = found.request, found.explain or {}
    cache, entry = services.cache, explain.get("entry")
    assert row is not None
    assert cache is not None
    assert isinstance(entry, int)
    async with services.database.read() as connection:
        before = (await connection.execute(_last(row.id))).scalar()
    evicted = await _tell(cache, entry, verdict, _as_verdict(before), explain.get("ticket"))
    after: dict[str, object] = {
        "verdict": verdict,
        "entry": entry,
        "team": row.team,
        "project": row.project,
        "model": row.model,
    }
    said = said_by(services, actor, Change(FEEDBACK, row.id, after=after), ip)
    why: dict[str, object] = {"reason": f"feedback: {verdict}", "actor": actor.key_id, "at": services.now()}
    work = partial(_insert, rows=RequestRows(services.database.dialect), row=row, verdict=verdict, why=why, said=said)
    await services.database.transact(work)
    return evicted


async def _tell(cache: SemanticCache, entry: int, verdict: Verdict, before: Verdict | None, ticket: object) -> bool:
    """Learn what is new; take a wrong answer out in any case, for it may have come back."""
    if verdict != before:
        told = ticket if isinstance(ticket, str) else None
        gone = await cache.feedback(entry, right=verdict == "right", ticket=told, undo=before is not None)
    else:
        gone = await cache.evict(entry) if verdict == "wrong" else None
    return gone is not None


def _last(request_id: str) -> Select[Any]:
    """What was written down with the last verdict on a request."""
    wanted = select(Audit.after).where(Audit.action == FEEDBACK, Audit.target == request_id)
    return wanted.order_by(Audit.id.desc()).limit(1)


def _as_verdict(after: Mapping[str, object] | None) -> Verdict | None:
    return None if after is None else "wrong" if after.get("verdict") == "wrong" else "right"


def _correction(row: RequestLine, verdict: Verdict, before: Verdict | None) -> int:
    """A wrong hit saved nothing; taken back, it did. A hit that saved nothing needs no line: 0."""
    if verdict == before:
        return 0
    return -row.saved_nano if verdict == "wrong" else row.saved_nano if before == "wrong" else 0


def _insert(
    connection: Connection, *, rows: RequestRows, row: RequestLine, verdict: Verdict, why: dict[str, object], said: Also
) -> None:
    """The next correction of its request, with the sums that follow, and the verdict itself.

    Under a lock on the request's row: of two workers that are told the same at once, the second finds the first's word.
    """
    connection.execute(select(RequestRow.id).where(RequestRow.id == row.id).with_for_update())
    if amount := _correction(row, verdict, _as_verdict(connection.execute(_last(row.id)).scalar())):
        held = select(func.count()).select_from(SavingCorrection).where(SavingCorrection.request_id == row.id)
        known: dict[str, object] = {
            "id": f"{row.id}#{(connection.scalar(held) or 0) + 1}",
            "request_id": row.id,
            "team": row.team,
            "project": row.project,
            "model": row.model,
            "amount_nano": amount,
        }
        with suppress(LookupError):  # its row was pruned since the verdict came in: no saving is left to correct
            rows.correct(connection, row.id, known | why)
    said(connection)
