"""Budgets: which limits a request draws on, which period an instant belongs to, how much to lease, when to warn.

Knows: scopes, calendar periods in a time zone, integers in nano-USD. Does not know: balances, databases, the clock.

A period is a pure function of (kind of window, time zone, instant). It starts at the first instant of a local date and
ends where the next one starts: days of 23, 25 and other lengths exist, and dates that never happened, so nothing here
assumes 24 hours. There is no reset: another period is another window id.
"""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Literal

from msgspec import Struct

WindowKind = Literal["day", "week", "month", "quarter", "year", "total"]
Mode = Literal["hard", "soft"]

KINDS: tuple[WindowKind, ...] = ("day", "week", "month", "quarter", "year", "total")
FOREVER = 253_402_300_800  # 10000-01-01T00:00:00Z, where `total` ends
_PREFIXES = ("team", "project", "key", "user", "model", "tag")
_LONGEST_SCOPE = 200
_SEARCH = 27 * 3600  # no zone ever skipped or repeated more than a day
_SHARP = 20  # below 1/20 of the limit, leases are exactly what requests need
_SHARE = 4  # a lease is at most a quarter of an equal share


class Budget(Struct, frozen=True, kw_only=True):
    """One limit. `scope` identifies it; amounts in nano-USD; `alerts` are fractions of the limit.

    `degrade_to`: the model that answers instead once the fraction `degrade_at` is used; None: requests are refused.
    """

    scope: str
    limit_nano: int
    window: WindowKind = "month"
    timezone: str = "UTC"
    mode: Mode = "hard"
    alerts: tuple[float, ...] = (0.5, 0.8, 0.95)
    version: int = 1
    degrade_to: str | None = None
    degrade_at: float | None = None


class Period(Struct, frozen=True):
    """`[start, end)` in whole seconds since the epoch."""

    start: int
    end: int


def check_scope(scope: str) -> str:
    """The scope as written. Raises ValueError that says which forms exist."""
    kind, separator, name = scope.partition(":")
    if scope == "org":
        return scope
    if (
        not separator
        or kind not in _PREFIXES
        or not name
        or len(scope) > _LONGEST_SCOPE
        or "|" in scope
        or not scope.isprintable()
    ):
        raise ValueError(
            f"unknown scope {scope[:60]!r}: use org, team:T, project:T/P, key:ID, user:U, model:M or tag:K=V"
        )
    if kind == "tag" and "=" not in name:
        raise ValueError(f"a tag scope needs a value: tag:{name[:40]}=VALUE")
    if kind == "project" and "/" not in name:
        raise ValueError(f"a project scope names its team: project:TEAM/{name[:40]}")
    return scope


def scopes_of(
    team: str,
    project: str,
    key: str,
    user: str | None,
    models: Sequence[str],
    tags: Sequence[tuple[str, str]],
) -> list[str]:
    """Every scope a request belongs to; `models` are all the names its model goes by. Order carries no meaning."""
    found = [
        "org",
        f"team:{team}",
        f"key:{key}",
        f"project:{project}" if "/" in project else f"project:{team}/{project}",
    ]
    if user is not None:
        found.append(f"user:{user}")
    found.extend(f"model:{model}" for model in dict.fromkeys(models))
    found.extend(f"tag:{name}={value}" for name, value in dict.fromkeys(tags))
    return found


def window_id(budget: Budget, period: Period) -> str:
    """Everything about a window in its name, so that it can be made anywhere, any number of times, as the same row."""
    return f"{budget.scope}|{budget.window}|{period.start}|{period.end}"


def parse_window_id(text: str) -> tuple[str, str, Period]:
    """(scope, kind, period) of `window_id`. Raises ValueError."""
    scope, kind, start, end = text.rsplit("|", 3)
    return scope, kind, Period(int(start), int(end))


def stands(window: str, kind: WindowKind, zone: tzinfo) -> bool:
    """Whether a window is one of a budget of that kind and zone, and not of what the budget was before."""
    _, had, span = parse_window_id(window)
    return had == kind and period(kind, zone, span.start) == span


def period(kind: WindowKind, zone: tzinfo, instant: float) -> Period:
    """The window of `kind` in `zone` that holds `instant` (seconds since the epoch)."""
    if kind == "total":
        return Period(0, FOREVER)
    first, following = _dates(kind, datetime.fromtimestamp(instant, zone).date())
    start, end = _first_instant(first, zone), _first_instant(following, zone)
    while instant < start:  # the local date went back past midnight: the instant is still in the window before
        first, following = _dates(kind, first - timedelta(days=1))
        start, end = _first_instant(first, zone), start
    while instant >= end:
        first, following = _dates(kind, following)
        start, end = end, _first_instant(following, zone)
    return Period(start, end)


def _dates(kind: WindowKind, day: date) -> tuple[date, date]:
    """First date of the calendar period around `day`, and first date of the next one."""
    if kind == "day":
        return day, day + timedelta(days=1)
    if kind == "week":
        monday = day - timedelta(days=day.weekday())
        return monday, monday + timedelta(days=7)
    months = {"month": 1, "quarter": 3, "year": 12}[kind]
    first = (day.month - 1) // months * months + 1
    year, month = divmod(day.year * 12 + first - 1 + months, 12)
    return date(day.year, first, 1), date(year, month + 1, 1)


def _first_instant(day: date, zone: tzinfo) -> int:
    """The first second at which the local calendar shows `day` or, where that date was skipped, a later one."""
    midnight = datetime(day.year, day.month, day.day, tzinfo=zone)  # fold 0: the earlier of two midnights
    found = int(midnight.timestamp())
    if datetime.fromtimestamp(found, zone).replace(tzinfo=None) == midnight.replace(tzinfo=None):
        return found
    before, after = found - _SEARCH, found + _SEARCH
    while after - before > 1:  # midnight fell into a gap: the gap's end is the first instant
        middle = (before + after) // 2
        if datetime.fromtimestamp(middle, zone).date() < day:
            before = middle
        else:
            after = middle
    return after


def lease_amount(limit: int, free: int, demand: int, least: int, appetite: int, processes: int) -> int:
    """How much to lease, nano-USD, when `free` of `limit` is unspoken for. 0: not even one request could go on.

    `demand` is what the waiting requests lack together, `least` what the easiest to please lacks, `appetite` what the
    process would like to have in hand. Plenty left: that, but at most a quarter of an equal share. In the last 5 %:
    exactly the demand, so that the limit is sharp.
    """
    if free < least:
        return 0
    wanted = demand
    if is_roomy(limit, free):
        wanted = max(demand, min(appetite, free // (_SHARE * processes)))
    return min(wanted, free)


def is_roomy(limit: int, free: int) -> bool:
    """Whether so much is left that leases may be larger than the demand."""
    return free * _SHARP > limit


def crossed(alerts: Sequence[float], limit: int, before: int, after: int) -> list[float]:
    """The alert thresholds that spending went over on its way from `before` to `after`, nano-USD."""
    return [share for share in alerts if before < share * limit <= after]


def runs_out(period: Period, limit: int, spent: int, instant: float, opening: int = 0) -> float | None:
    """When the limit is reached at this pace, seconds since the epoch; None if not before the window ends.

    `opening`: the part of `spent` that was spent before `period.start`, and tells nothing of the pace.
    """
    passed, since = instant - period.start, spent - opening
    if spent >= limit:
        return instant
    if since <= 0 or passed <= 0:
        return None
    reached = instant + (limit - spent) * passed / since
    return reached if reached < period.end else None


def told(instant: int) -> str:
    """An instant as people read it, `2026-03-01T00:00:00Z`; the end of a total budget is `never`."""
    if instant >= FOREVER:
        return "never"
    return datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
