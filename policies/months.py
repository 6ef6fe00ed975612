"""Months of accounting: which one an entry belongs to, and what keeps one from being closed.

Knows: UTC calendar months named `2026-10`, the rule that what comes too late is booked in the first open month.
Does not know: entries, seals, databases, the clock.

A month is a UTC month because FOCUS asks for UTC and because every reader must agree on it; budgets keep their own
windows in their own zones. An entry belongs to the month of its admission, as it does to the window of its admission.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

from msgspec import Struct

from policies.budget import Period
from policies.money import usd

_NAME = re.compile(r"(\d{4})-(0[1-9]|1[0-2])", re.ASCII)
_DAY = 86_400

BlockerKind = Literal["running", "nothing", "earlier", "process", "lost", "lease", "conflict", "pruned"]


class Blocker(Struct, frozen=True, kw_only=True):
    """One reason why a month cannot be closed now. `forcible`: a person may decide to close it nevertheless."""

    kind: BlockerKind
    text: str
    forcible: bool = True


class Process(Struct, frozen=True, kw_only=True):
    """What a gateway process last said. `oldest`: admission of its oldest attempt that is not in the database yet."""

    id: str
    host: str
    seen: float
    journalled: bool
    oldest: float | None = None


class Standing(Struct, frozen=True, kw_only=True):
    """What is known when somebody wants to close a month. `leased_nano`: still set aside in its ended windows.

    `first`: admission of the ledger's first entry, None where there is none or months have been closed already.
    `kept_from`: the instant from which on usage is kept; 0 where nothing of it has gone.
    """

    processes: Sequence[Process] = ()
    earlier: Sequence[str] = ()
    leases: int = 0
    leased_nano: int = 0
    conflicts: int = 0
    first: float | None = None
    kept_from: float = 0.0


def span(month: str) -> Period:
    """`2026-10` as `[start, end)`. Raises ValueError for anything else."""
    found = _NAME.fullmatch(month)  # a line end behind it would make another month of it
    if found is None or not 1970 <= int(found[1]) <= 9998:
        raise ValueError(f"a month is written YYYY-MM, not {month[:20]!r}")
    year, number = int(found[1]), int(found[2])
    after = (year + 1, 1) if number == 12 else (year, number + 1)
    return Period(_first(year, number), _first(*after))


def month_of(instant: float) -> str:
    """The month that holds `instant`, seconds since the epoch."""
    return datetime.fromtimestamp(instant, UTC).strftime("%Y-%m")


def following(month: str) -> str:
    return month_of(span(month).end)


def booked_in(admitted: float, sealed: str | None) -> str:
    """The month in which an entry is booked that is posted now, when every month up to `sealed` is closed."""
    own = month_of(admitted)
    return own if sealed is None or own > sealed else following(sealed)


def may_be_late(oldest: float, now: float) -> bool:
    """Whether an entry admitted at `oldest` could belong to a month that is closed, judged without asking anybody.

    A day of slack, so that a process whose clock is behind still asks.
    """
    return oldest < span(month_of(now + _DAY)).start


def blockers(month: str, standing: Standing, now: float, lost_after: float) -> list[Blocker]:
    """Everything that keeps `month` from being closed. `lost_after`: seconds of silence after which a process is lost.

    A process that lives is believed when it says that nothing of the month is under way, and only if it said so after
    the month had ended. One that is lost may have left attempts of the month in a journal nobody has read.
    """
    its = span(month)
    if now < its.end:
        ends = datetime.fromtimestamp(its.end, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return [Blocker(kind="running", text=f"{month} runs until {ends}", forcible=False)]
    found = [
        Blocker(kind="earlier", text=f"{other} has entries and is not closed; close it first", forcible=False)
        for other in standing.earlier
    ]
    told = (_of_process(process, its, now, lost_after) for process in standing.processes)
    found += [blocker for blocker in told if blocker is not None]
    if standing.leases:
        words = f"{standing.leases} leases on budgets of this month hold {usd(standing.leased_nano)} USD still"
        found.append(Blocker(kind="lease", text=words))
    if standing.conflicts:
        words = f"{standing.conflicts} entries of this month contradict another one of the same attempt"
        found.append(Blocker(kind="conflict", text=words))
    if its.start < standing.kept_from:
        found.append(pruned(month, standing.kept_from))
    if standing.first is not None and its.end <= standing.first:
        # A mistyped year: nobody could open it again, and every month from there on would be listed for good.
        words = f"{month} has nothing to close: the first entry of the ledger is of {month_of(standing.first)}"
        found.append(Blocker(kind="nothing", text=words, forcible=False))
    return found


def pruned(month: str, kept_from: float) -> Blocker:
    """What was spent is exact for good; what requests without a charge were is known as long as usage is kept."""
    day = datetime.fromtimestamp(kept_from, UTC).strftime("%Y-%m-%d")
    words = (
        f"usage is kept since {day} (`retention.days`), so what the cache saved in {month} is not known any more, and "
        "shared costs can be split by the attempts of the ledger only"
    )
    return Blocker(kind="pruned", text=words)


def _of_process(process: Process, its: Period, now: float, lost_after: float) -> Blocker | None:
    who = f"process {process.id} on {process.host}"
    if process.seen <= now - lost_after:
        if not process.journalled:
            return Blocker(kind="lost", text=f"{who} is gone, and what it had under way is not settled yet")
        return Blocker(kind="lost", text=f"{who} is gone, and its journal is not recovered yet")
    if process.oldest is not None and process.oldest < its.end:
        return Blocker(kind="process", text=f"{who} has attempts of this month under way")
    if process.seen < its.end:
        return Blocker(kind="process", text=f"{who} has not reported since the month ended; wait a minute")
    return None


def _first(year: int, month: int) -> int:
    return int(datetime(year, month, 1, tzinfo=UTC).timestamp())
