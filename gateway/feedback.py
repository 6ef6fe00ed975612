"""A person's verdict on a hit: recorded, learned by the cache, and the saving taken back where it was wrong.

Knows: which verdict was there before (the last one counts, the same one again changes nothing), the correction's row.
Does not know: who may judge (routes do), how an answer is taken back or what is learned (`cache`).
"""

from contextlib import suppress
from typing import Literal

from sqlalchemy import func, select
from sqlalchemy.engine import Connection

from cache.semantic import SemanticCache
from gateway.audit import Change, said_by
from gateway.call import Principal
from gateway.db.decisions import FEEDBACK
from gateway.db.models import Audit, SavingCorrection
from gateway.db.rows import RequestDetail, RequestLine
from gateway.db.session import Also
from gateway.ledger.request_rows import RequestRows
from gateway.services import Services

Verdict = Literal["wrong", "right"]


async def judged(services: Services, actor: Principal, found: RequestDetail, verdict: Verdict, ip: str | None) -> bool:
    """Put `verdict` on the request of `found`, which a kept answer served; whether an entry was evicted.

    Raises StoreDown when the cache cannot be told: then nothing is recorded, and it can be said again.
    """
    row, explain = found.request, found.explain or {}
    cache, entry = services.cache, explain.get("entry")
    assert row is not None
    assert cache is not None
    assert isinstance(entry, int)
    before = await _last(services, row.id)
    evicted = await _tell(cache, entry, verdict, before, explain.get("ticket"))
    after: dict[str, object] = {
        "verdict": verdict,
        "entry": entry,
        "team": row.team,
        "project": row.project,
        "model": row.model,
    }
    said = said_by(services, actor, Change(FEEDBACK, row.id, after=after), ip)
    amount = _correction(row, verdict, before)
    known: dict[str, object] = {"request_id": row.id, "team": row.team, "project": row.project, "model": row.model}
    why: dict[str, object] = {"reason": f"feedback: {verdict}", "actor": actor.key_id}
    correction = known | why | {"at": services.now(), "amount_nano": amount} if amount else None
    await services.database.transact(_insert, RequestRows(services.database.dialect), correction, said)
    return evicted


async def _tell(cache: SemanticCache, entry: int, verdict: Verdict, before: Verdict | None, ticket: object) -> bool:
    """Learn what is new; take a wrong answer out in any case, for it may have come back."""
    if verdict != before:
        told = ticket if isinstance(ticket, str) else None
        gone = await cache.feedback(entry, right=verdict == "right", ticket=told, undo=before is not None)
    else:
        gone = await cache.evict(entry) if verdict == "wrong" else None
    return gone is not None


async def _last(services: Services, request_id: str) -> Verdict | None:
    wanted = select(Audit.after).where(Audit.action == FEEDBACK, Audit.target == request_id).order_by(Audit.id.desc())
    async with services.database.read() as connection:
        after = await connection.scalar(wanted.limit(1))
    return None if after is None else "wrong" if after.get("verdict") == "wrong" else "right"


def _correction(row: RequestLine, verdict: Verdict, before: Verdict | None) -> int:
    """A wrong hit saved nothing; taken back, it did. A hit that saved nothing needs no line: 0."""
    if verdict == before:
        return 0
    return -row.saved_nano if verdict == "wrong" else row.saved_nano if before == "wrong" else 0


def _insert(connection: Connection, rows: RequestRows, correction: dict[str, object] | None, said: Also) -> None:
    """The next correction of its request, with the sums that follow, and the verdict itself."""
    if correction is not None:
        request_id = str(correction["request_id"])
        held = select(func.count()).select_from(SavingCorrection).where(SavingCorrection.request_id == request_id)
        number = (connection.scalar(held) or 0) + 1
        with suppress(LookupError):  # its row was pruned since the verdict came in: no saving is left to correct
            rows.correct(connection, request_id, correction | {"id": f"{request_id}#{number}"})
    said(connection)
