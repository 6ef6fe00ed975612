"""What is left of an upstream's own limits, as its answers said it last; one account for each key of a provider.

Knows: the rate-limit headers of OpenAI and of those that imitate it, and Anthropic's. Does not know: our own limits
(`gateway.rates`), what is done about a limit that is reached (`gateway.key_pool`, `gateway.deployments`).
Sources: platform.openai.com/docs/guides/rate-limits, docs.claude.com/en/api/rate-limits.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Protocol, runtime_checkable

from msgspec import Struct

_EVERY = 0.2  # seconds between two looks at the headers of answers that went well
_LONGEST_WAIT = 86_400.0
_OPENAI, _ANTHROPIC = ("requests", "tokens"), ("requests", "tokens", "input-tokens", "output-tokens")
_STEP = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d)?")
_UNITS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


class Allowance(Struct, frozen=True, kw_only=True):
    """`what`: requests, tokens, input-tokens, output-tokens. `renews_in`: seconds from the answer until all is back."""

    what: str
    remaining: float
    limit: float | None
    renews_in: float | None


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


@runtime_checkable
class Accounted(Protocol):
    """A provider that knows what its upstream has left for it."""

    def accounts(self) -> list[Account]: ...


class Heard:
    """What one upstream said last. `clock`: monotonic seconds; `wall`: seconds since 1970, for limits with a date."""

    def __init__(self) -> None:
        self._at = -_EVERY
        self._said: tuple[float, tuple[Allowance, ...]] | None = None

    def is_due(self, clock: float) -> bool:
        """Whether it is worth reading the headers of one more answer."""
        return clock - self._at >= _EVERY

    def note(self, headers: Mapping[str, str], clock: float, wall: float) -> None:
        self._at = clock
        if left := allowances(headers, wall):
            self._said = (clock, left)

    def account(self, clock: float) -> Account:
        if self._said is None:
            return Account()
        at, left = self._said
        return Account(age=max(0.0, clock - at), left=left)


def allowances(headers: Mapping[str, str], wall: float) -> tuple[Allowance, ...]:
    """All that the headers of one answer tell; names are looked up in lower case."""
    found = [_openai(headers, what) for what in _OPENAI] + [_anthropic(headers, what, wall) for what in _ANTHROPIC]
    return tuple(one for one in found if one is not None)


def seconds_of(text: str) -> float:
    """`1m30s`, `6ms` or `12` in seconds; 0 for what is none of them."""
    return min(_LONGEST_WAIT, sum(float(number) * _UNITS[unit] for number, unit in _STEP.findall(text)))


def _openai(headers: Mapping[str, str], what: str) -> Allowance | None:
    remaining = _number(headers.get(f"x-ratelimit-remaining-{what}"))
    if remaining is None:
        return None
    reset = headers.get(f"x-ratelimit-reset-{what}")
    return Allowance(
        what=what,
        remaining=remaining,
        limit=_number(headers.get(f"x-ratelimit-limit-{what}")),
        renews_in=None if reset is None else seconds_of(reset),
    )


def _anthropic(headers: Mapping[str, str], what: str, wall: float) -> Allowance | None:
    remaining = _number(headers.get(f"anthropic-ratelimit-{what}-remaining"))
    if remaining is None:
        return None
    return Allowance(
        what=what,
        remaining=remaining,
        limit=_number(headers.get(f"anthropic-ratelimit-{what}-limit")),
        renews_in=_until(headers.get(f"anthropic-ratelimit-{what}-reset"), headers.get("date"), wall),
    )


def _until(moment: str | None, date: str | None, wall: float) -> float | None:
    """Seconds until an RFC 3339 moment, by the answer's own date where it has one."""
    try:
        then = datetime.fromisoformat(moment or "")
        now = parsedate_to_datetime(date) if date is not None else datetime.fromtimestamp(wall, UTC)
        return min(_LONGEST_WAIT, max(0.0, (then - now).total_seconds()))
    except (ValueError, TypeError):  # no date, or one without a zone
        return None


def _number(text: str | None) -> float | None:
    return float(text) if text is not None and re.fullmatch(r"\d{1,15}(\.\d{1,3})?", text) else None
