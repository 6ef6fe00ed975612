"""What is left of an upstream's own limits, as its answers said it last; one account for each key of a provider.

Knows: how limits are told in headers, and OpenAI's own, which most imitate. Does not know: what any other service calls
them (each says it in its own file), our own limits (`gateway.rates`), what is done about a limit that is reached
(`gateway.key_pool`, `gateway.deployments`).
Source: platform.openai.com/docs/guides/rate-limits.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Literal, Protocol, runtime_checkable

from msgspec import Struct

_EVERY = 0.2  # seconds between two looks at the headers of answers that went well
_SCARCE = 0.05  # of a limit: from there on every answer is looked at
_LONGEST_WAIT = 86_400.0
_STEP = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d)?")
_UNITS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


class Limit(Struct, frozen=True, kw_only=True):
    """One limit as a service tells it. `remaining`, `limit`, `reset`: the names of its headers, in lower case.

    `moment`: what stands in `reset`: a duration or seconds, an RFC 3339 date, or milliseconds since 1970. `within`:
    seconds in which it is all given out again, for a service that does not say.
    """

    what: str
    remaining: str
    limit: str = ""
    reset: str = ""
    moment: Literal["wait", "date", "epoch_ms"] = "wait"
    within: float | None = None

    def read(self, headers: Mapping[str, str], wall: float) -> "Allowance | None":
        remaining = _number(headers.get(self.remaining))
        if remaining is None:
            return None
        return Allowance(
            what=self.what,
            remaining=remaining,
            limit=_number(headers.get(self.limit)),
            renews_in=self._renews_in(headers, wall),
            within=self.within,
        )

    def _renews_in(self, headers: Mapping[str, str], wall: float) -> float | None:
        reset = headers.get(self.reset)
        if reset is None:
            return None
        if self.moment == "wait":
            return seconds_of(reset)
        moment = _date(reset) if self.moment == "date" else _number(reset, 1e-3)
        return None if moment is None else min(_LONGEST_WAIT, max(0.0, moment - _clock(headers, wall)))


def x_ratelimit(what: str, name: str | None = None, *, within: float | None = None) -> Limit:
    """One that is told as OpenAI tells its own: `x-ratelimit-{limit,remaining,reset}-NAME`, NAME being `what`."""
    name = name or what
    head = "x-ratelimit-"
    return Limit(
        what=what,
        remaining=f"{head}remaining-{name}",
        limit=f"{head}limit-{name}",
        reset=f"{head}reset-{name}",
        within=within,
    )


OPENAI = (x_ratelimit("requests"), x_ratelimit("tokens"))


class Allowance(Struct, frozen=True, kw_only=True):
    """`what`: requests, tokens, input-tokens, output-tokens, … `renews_in`: seconds from the answer until all is back.

    `within`: the same where the answer does not tell and the service's documentation does.
    """

    what: str
    remaining: float
    limit: float | None
    renews_in: float | None
    within: float | None = None

    @property
    def is_scarce(self) -> bool:
        return self.remaining < 1.0 or (self.limit is not None and self.remaining < self.limit * _SCARCE)


class Account(Struct, frozen=True, kw_only=True):
    """One key at one server. `name` is empty where there is one of both; keys are told by their place in the settings.

    `rests`: seconds for which it is left alone; `in_flight`: its calls under way, None where nobody counts them;
    `age`: seconds since the upstream said what is left, None where it never did.
    """

    name: str = ""
    in_flight: int | None = None
    rests: float = 0.0
    age: float | None = None
    left: tuple[Allowance, ...] = ()

    @property
    def spent_for(self) -> float:
        """Seconds for which it most likely refuses, as something was used up by what it said last; 0 if nothing."""
        waits = [one.within if one.renews_in is None else one.renews_in for one in self.left if one.remaining < 1.0]
        return max(0.0, *(wait - (self.age or 0.0) for wait in waits if wait is not None), 0.0)


@runtime_checkable
class Accounted(Protocol):
    """A provider that knows what its upstream has left for it."""

    def accounts(self) -> list[Account]: ...


class Heard:
    """What one upstream said last. `clock`: monotonic seconds; `wall`: seconds since 1970, for limits with a date.

    `spent_until`: the clock until which it most likely refuses.
    """

    def __init__(self, limits: tuple[Limit, ...] = OPENAI) -> None:
        self._limits = limits
        self.spent_until = 0.0
        self._due = 0.0
        self._said: tuple[float, tuple[Allowance, ...]] | None = None

    def is_due(self, clock: float) -> bool:
        """Whether it is worth reading the headers of one more answer."""
        return clock >= self._due

    def note(self, headers: Mapping[str, str], clock: float, wall: float) -> tuple[Allowance, ...]:
        """What these headers tell, which is remembered where it is anything."""
        left = allowances(self._limits, headers, wall)
        if left:
            self._said = (clock, left)
            self.spent_until = clock + Account(left=left).spent_for
        self._due = clock if any(one.is_scarce for one in left) else clock + _EVERY
        return left

    def account(self, clock: float) -> Account:
        if self._said is None:
            return Account()
        at, left = self._said
        return Account(age=max(0.0, clock - at), left=left)


def allowances(limits: tuple[Limit, ...], headers: Mapping[str, str], wall: float) -> tuple[Allowance, ...]:
    """All that the headers of one answer tell; names are looked up in lower case."""
    return tuple(found for limit in limits if (found := limit.read(headers, wall)) is not None)


def until_renewed(left: tuple[Allowance, ...]) -> float | None:
    """Seconds until all that is used up is given out again, where an answer says so."""
    waits = [one.renews_in for one in left if one.remaining < 1.0 and one.renews_in is not None]
    return max(waits, default=0.0) or None


def seconds_of(text: str) -> float:
    """`1m30s`, `6ms` or `12` in seconds; 0 for what is none of them."""
    return min(_LONGEST_WAIT, sum(float(number) * _UNITS[unit] for number, unit in _STEP.findall(text)))


def _clock(headers: Mapping[str, str], wall: float) -> float:
    """Seconds since 1970 by the answer's own date, which its moments are meant by, where it has one."""
    try:
        return parsedate_to_datetime(headers["date"]).timestamp()
    except (KeyError, ValueError, TypeError):
        return wall


def _date(text: str) -> float | None:
    """Seconds since 1970 of an RFC 3339 moment; None for what is none."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if moment.tzinfo is None else moment.timestamp()


def _number(text: str | None, scale: float = 1.0) -> float | None:
    return float(text) * scale if text is not None and re.fullmatch(r"\d{1,15}(\.\d{1,3})?", text) else None
