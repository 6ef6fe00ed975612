"""The JSON of `/api/v1/budgets`: what may be asked for, and what is answered.

Knows: shapes, and which of them say "leave it as it is". Does not know: who may ask, how limits are kept.
"""

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from gateway.db import budgets, rates
from gateway.db.rows import BudgetState
from gateway.errors import InvalidRequest
from gateway.limits_told import exhausted
from gateway.routes import shapes
from policies.budget import Budget, Mode, WindowKind
from policies.money import nano, usd
from policies.rate import Rate

_FAR = 32_503_680_000  # the year 3000: a window that never ends is shown without an end
_DEGRADE = "degrade:"


class BudgetWanted(Struct, kw_only=True, forbid_unknown_fields=True):
    """`limit_usd` as a decimal (a string keeps every digit). `alerts`: fractions of the limit.

    `rpm`, `tpm`: requests and tokens per minute. `on_exhausted`: `refuse`, or `degrade:<model>` to have a cheaper model
    answer once the fraction `degrade_at` of the limit is used. What is left out stays as it is; `null` takes
    `limit_usd`, `rpm` or `tpm` away. A new limit in money is `hard`, per `month` in UTC, with alerts at 0.5, 0.8 and
    0.95 where nothing else is said.
    """

    limit_usd: str | int | float | UnsetType | None = UNSET
    window: WindowKind | UnsetType = UNSET
    timezone: str | UnsetType = UNSET
    mode: Mode | UnsetType = UNSET
    alerts: list[float] | UnsetType = UNSET
    rpm: int | UnsetType | None = UNSET
    tpm: int | UnsetType | None = UNSET
    on_exhausted: str | UnsetType = UNSET
    degrade_at: float | UnsetType = UNSET


class ForecastView(Struct, kw_only=True):
    """What the window will have cost at its end, and when the limit is reached: middle, and a range of `level`.

    `runs_out…` null: not before the window ends (within a year, where it never ends; then the amounts are null).
    `basis`: how many equal stretches of the past it rests on, hours for a day's budget, else days.
    """

    at_end_usd: str | None
    low_usd: str | None
    high_usd: str | None
    runs_out: str | None
    runs_out_earliest: str | None
    runs_out_latest: str | None
    level: float
    basis: int


class BudgetView(Struct, kw_only=True):
    """A limit and where it stands in the window that is running. Amounts in USD as decimal strings.

    `spent_usd` = confirmed + estimated; `held_usd` is set aside for requests that are under way; `opening_usd` is the
    part of what was spent before the budget was set. `runs_out`: when the limit is reached at the pace so far, null if
    the window ends first. A scope that only has limits per minute has no `limit_usd` and no window.
    """

    scope: str
    limit_usd: str | None
    window: str | None
    timezone: str | None
    mode: str | None
    alerts: list[float]
    alerted: list[float]
    spent_usd: str
    spent_confirmed_usd: str
    spent_estimated_usd: str
    opening_usd: str
    held_usd: str
    remaining_usd: str | None
    window_start: str | None
    window_end: str | None
    runs_out: str | None
    forecast: ForecastView | None
    rpm: int | None
    tpm: int | None
    on_exhausted: str
    degrade_at: float | None
    version: int
    updated: str | None
    updated_by: str


class Wanted(Struct, frozen=True, kw_only=True):
    """A change in the ledger's terms. `limit` None: no limit in money; UNSET: as it is. `degrade`: model and share.

    `terms`: what was said of that limit beside its amount, by the names of `Budget`.
    """

    scope: str
    limit: int | UnsetType | None = UNSET
    terms: dict[str, Any] = {}
    rpm: int | UnsetType | None = UNSET
    tpm: int | UnsetType | None = UNSET
    degrade: tuple[str | None, float | None] | UnsetType = UNSET

    def rate(self, before: Rate | None) -> Rate | None:
        """The rate limits there will be; None where nothing about them changes."""
        if self.rpm is UNSET and self.tpm is UNSET:
            return None
        old = before or Rate(scope=self.scope)
        rpm = old.rpm if self.rpm is UNSET else self.rpm
        tpm = old.tpm if self.tpm is UNSET else self.tpm
        return Rate(scope=self.scope, rpm=rpm, tpm=tpm)


def wanted_budget(scope: str, data: BudgetWanted) -> Wanted:
    """The request in the ledger's terms. Raises InvalidRequest naming the field."""
    terms = _terms(data)
    if all(value is UNSET for value in (data.limit_usd, data.rpm, data.tpm, data.on_exhausted)) and not terms:
        raise InvalidRequest("Give at least one of limit_usd, rpm, tpm and on_exhausted.", param="limit_usd")
    degrade = _degrade(data)
    try:
        rates.check(
            Rate(
                scope=scope,
                rpm=None if data.rpm is UNSET else data.rpm,
                tpm=None if data.tpm is UNSET else data.tpm,
            )
        )
    except ValueError as error:
        raise InvalidRequest(str(error), param=_field_of(str(error))) from error
    limit = data.limit_usd if data.limit_usd is UNSET or data.limit_usd is None else _amount(str(data.limit_usd))
    if limit is not UNSET and limit is not None:
        checked(Budget(scope=scope, limit_nano=limit, **terms))
    return Wanted(scope=scope, limit=limit, terms=terms, rpm=data.rpm, tpm=data.tpm, degrade=degrade)


def _terms(data: BudgetWanted) -> dict[str, Any]:
    said = {name: getattr(data, name) for name in ("window", "timezone", "mode")}
    said["alerts"] = UNSET if data.alerts is UNSET else tuple(sorted(data.alerts))
    return {name: value for name, value in said.items() if value is not UNSET}


def _amount(limit: str) -> int:
    try:
        return nano(limit.strip())
    except ValueError as error:
        raise InvalidRequest(f"`limit_usd`: {error}", param="limit_usd") from error


def checked(budget: Budget) -> Budget:
    """Raises InvalidRequest naming the field."""
    try:
        return budgets.check(budget)
    except ValueError as error:
        raise InvalidRequest(str(error), param=_field_of(str(error))) from error


def _degrade(data: BudgetWanted) -> tuple[str | None, float | None] | UnsetType:
    if data.on_exhausted is UNSET:
        if data.degrade_at is not UNSET:
            raise InvalidRequest("`degrade_at` needs `on_exhausted`: `degrade:<model>`.", param="degrade_at")
        return UNSET
    if data.on_exhausted == "refuse":
        return None, None
    if not data.on_exhausted.startswith(_DEGRADE) or data.on_exhausted == _DEGRADE:
        raise InvalidRequest("`on_exhausted` is `refuse` or `degrade:<model>`.", param="on_exhausted")
    at = 1.0 if data.degrade_at is UNSET else data.degrade_at
    return data.on_exhausted.removeprefix(_DEGRADE), at


def _field_of(words: str) -> str:
    """The field that a check complains about, by how its sentences begin."""
    named = {
        "alerts": "alerts",
        "unknown window": "window",
        "unknown mode": "mode",
        "unknown time zone": "timezone",
        "a limit": "limit_usd",
        "rpm": "rpm",
        "tpm": "tpm",
        "on_exhausted": "on_exhausted",
        "degrade_at": "degrade_at",
    }
    return next((field for beginning, field in named.items() if words.startswith(beginning)), "scope")


def view(state: BudgetState, rate: Rate | None = None, forecast: ForecastView | None = None) -> BudgetView:
    return BudgetView(
        scope=state.scope,
        limit_usd=usd(state.limit_nano),
        window=state.window,
        timezone=state.timezone,
        mode=state.mode,
        alerts=state.alerts,
        alerted=state.alerted,
        spent_usd=usd(state.spent_nano),
        spent_confirmed_usd=usd(state.confirmed_nano),
        spent_estimated_usd=usd(state.estimated_nano),
        opening_usd=usd(state.opening_nano),
        held_usd=usd(state.held_nano),
        remaining_usd=usd(state.remaining_nano),
        window_start=None if state.window == "total" else shapes.moment(float(state.starts)),
        window_end=None if state.ends >= _FAR else shapes.moment(float(state.ends)),
        runs_out=shapes.moment(state.runs_out),
        forecast=forecast,
        rpm=None if rate is None else rate.rpm,
        tpm=None if rate is None else rate.tpm,
        on_exhausted=exhausted(state.degrade_to),
        degrade_at=state.degrade_at,
        version=state.version,
        updated=shapes.moment(state.updated),
        updated_by=state.actor,
    )


def rate_view(rate: Rate, updated: float | None, actor: str) -> BudgetView:
    """A scope that only has limits per minute."""
    return BudgetView(
        scope=rate.scope,
        limit_usd=None,
        window=None,
        timezone=None,
        mode=None,
        alerts=[],
        alerted=[],
        spent_usd="0",
        spent_confirmed_usd="0",
        spent_estimated_usd="0",
        opening_usd="0",
        held_usd="0",
        remaining_usd=None,
        window_start=None,
        window_end=None,
        runs_out=None,
        forecast=None,
        rpm=rate.rpm,
        tpm=rate.tpm,
        on_exhausted="refuse",
        degrade_at=None,
        version=rate.version,
        updated=shapes.moment(updated),
        updated_by=actor,
    )
