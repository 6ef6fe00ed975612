"""What the cache decided about logged requests, read back from their rows and explanations.

Knows: the row of a request, the JSON of its explanation, people's verdicts. Does not know: who may see what (callers
pass the team), budgets, how anything is shown. Reads in pages, so that a long log never holds the loop up; no writing.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct
from sqlalchemy import ColumnElement, Text, select
from sqlalchemy import cast as sql_cast

from gateway.db.models import Audit, Explain, RequestRow
from gateway.db.queries import Pruned, Queries
from gateway.db.session import Database
from gateway.db.sums import HOUR
from policies.tuning import Seen

FEEDBACK = "cache.feedback"
MOST_DECISIONS = 20_000
_PAGE = 500
_MOST_VERDICTS = 50_000
_ASKED = ("hit-exact", "hit-semantic", "miss", "shared")


class Candidate(Struct, kw_only=True):
    """A kept answer as the explanation has it; what an older version did not write is missing."""

    entry: int | None = None
    answer: int | None = None
    confidence: float | None = None
    risk: float | None = None
    guard: str | None = None


class Judged(Struct, kw_only=True):
    """How a fresh answer compared with the kept one in `entry`; `same` is None where that could not be told."""

    same: bool | None = None
    entry: int | None = None


class Told(Struct, kw_only=True):
    """The part of an explanation that matters here."""

    reason: str | None = None
    scope: str | None = None
    entry: int | None = None
    looked: list[Candidate] = []
    candidates: list[Candidate] = []
    headroom: dict[str, float] | None = None
    judged: Judged | None = None


class Decision(Struct, frozen=True, kw_only=True):
    """One request. `model`: as it was asked for. `entry`: what served it. `threshold`: the highest risk its scope
    served then, where it said.
    """

    id: str
    team: str
    project: str
    model: str
    reason: str | None
    seen: Seen
    entry: int | None = None
    threshold: float | None = None


class Log(Struct, kw_only=True):
    """Oldest first. `requests`: how many there were; fewer are here when explanations are gone or the bound was met."""

    requests: int
    decisions: list[Decision]
    bounded: bool


class Verdict(Struct, frozen=True, kw_only=True):
    """A person's last word on one hit. `model`: as it was asked for."""

    team: str
    project: str
    model: str
    wrong: bool


_decode = msgspec.json.Decoder(Told).decode
_COLUMNS = (
    RequestRow.id,
    RequestRow.team,
    RequestRow.project,
    RequestRow.model,
    RequestRow.source,
    RequestRow.cost_nano,
    RequestRow.saved_nano,
)


async def verdicts(database: Database) -> dict[str, Verdict]:
    """The last verdict on each judged request, by its id."""
    wanted = select(Audit.target, Audit.after).where(Audit.action == FEEDBACK).order_by(Audit.id.desc())
    async with database.read() as connection:
        rows = (await connection.execute(wanted.limit(_MOST_VERDICTS))).all()
    found: dict[str, Verdict] = {}
    for target, after in rows:
        if target not in found and after is not None:
            tenant = {name: str(after.get(name)) for name in ("team", "project", "model")}
            found[target] = Verdict(**tenant, wrong=after.get("verdict") == "wrong")
    return found


class AuditDay(Struct, frozen=True, kw_only=True):
    """Audits of one day (UTC, as `2026-11-21`) and what they cost, the judge's calls included."""

    day: str
    audits: int
    cost_nano: int


async def audits_by_day(database: Database, start: float, end: float, team: str | None = None) -> dict[str, AuditDay]:
    """Days of `[start, end)` with any, by name; from the sums."""
    where = {"cache": "audit"} if team is None else {"cache": "audit", "team": team}
    rows = await Queries(database).usage(["day"], start, end, where, latencies=False)
    found = [AuditDay(day=row.group["day"], audits=row.audits, cost_nano=row.audit_nano) for row in rows]
    return {one.day: one for one in found}


async def decisions(
    database: Database, start: float, *, team: str | None = None, reason: str | None = None, most: int = MOST_DECISIONS
) -> Log:
    """What became of requests since `start`: the newest `most` of them. `reason`: only misses that give it."""
    conditions = [RequestRow.at >= start, RequestRow.status < 400, RequestRow.cache.in_(_ASKED)]
    if team is not None:
        conditions.append(RequestRow.team == team)
    where = {} if team is None else {"team": team}
    queries, asked = Queries(database), ["cache", "status"]
    try:
        rows = await queries.usage(asked, start, 1e11, where, latencies=False)
    except Pruned:  # the rows of that hour have gone; of its sums no part can be told
        rows = await queries.usage(asked, start // HOUR * HOUR, 1e11, where, latencies=False)
    requests = sum(row.requests for row in rows if row.group["cache"] in _ASKED and int(row.group["status"]) < 400)
    if reason is not None:
        conditions.append(Explain.data["reason"].as_string() == reason)
    people = await verdicts(database)
    found: list[tuple[Any, Told]] = []
    before: str | None = None
    while len(found) < most:
        rows = await _page(database, conditions, before)
        found += [(row, told) for row in rows if (told := _read(row.told)) is not None]
        if len(rows) < _PAGE:
            break
        before = rows[-1].id
    read = [_decision(row, told, people) for row, told in reversed(found[:most])]
    return Log(requests=requests, decisions=read, bounded=len(found) >= most)


async def _page(database: Database, conditions: list[ColumnElement[bool]], before: str | None) -> list[Any]:
    told = sql_cast(Explain.data, Text).label("told")
    wanted = select(*_COLUMNS, told).join(Explain, Explain.request_id == RequestRow.id).where(*conditions)
    if before is not None:
        wanted = wanted.where(RequestRow.id < before)
    async with database.read() as connection:
        return list((await connection.execute(wanted.order_by(RequestRow.id.desc()).limit(_PAGE))).all())


def _read(text: str) -> Told | None:
    """None for an explanation of a shape this version does not know."""
    try:
        return _decode(text)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None


def _decision(row: Any, told: Told, people: Mapping[str, Verdict]) -> Decision:
    served = row.source == "semantic"
    best = _best(told, served=served)
    wrong = people[row.id].wrong if row.id in people else _wrong(told.judged, best)
    return Decision(
        id=row.id,
        team=row.team,
        project=row.project,
        model=row.model,
        reason=told.reason,
        entry=told.entry,
        threshold=(told.headroom or {}).get("threshold"),
        seen=Seen(
            scope=told.scope or f"{row.team}/{row.project}/{row.model}",
            exact=row.source == "exact",
            served=served,
            risk=None if best is None else _risk(best),
            doubt=1.0 if best is None else _doubt(best),
            worth=max(row.saved_nano, row.cost_nano),
            wrong=wrong,
        ),
    )


def _wrong(judged: Judged | None, best: Candidate | None) -> bool | None:
    """A label of another answer than the best one says nothing about what a budget would have served."""
    if judged is None or judged.same is None or best is None:
        return None
    return None if judged.entry not in (None, best.entry, best.answer) else not judged.same


def _best(told: Told, *, served: bool) -> Candidate | None:
    """The answer that was served, else the least risky one that no guard forbade."""
    looked = told.looked or told.candidates
    if served:
        mine = [one for one in looked if one.entry == told.entry]
        looked = mine or looked
    free = [one for one in looked if one.guard is None and (one.risk is not None or one.confidence is not None)]
    return min(free, key=_risk, default=None)


def _risk(one: Candidate) -> float:
    """A policy without a cautious bound says only how sure it was."""
    return _doubt(one) if one.risk is None else min(1.0, max(0.0, one.risk))


def _doubt(one: Candidate) -> float:
    return 1.0 if one.confidence is None else min(1.0, max(0.0, 1.0 - one.confidence))
