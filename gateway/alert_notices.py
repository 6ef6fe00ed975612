"""What people are told: a budget that has reached a threshold, a cache whose hits are wrong too often or no longer, a
day that was dearer than expected.

Knows: the words and figures of each. Does not know: whom they go to, HTTP, SMTP.
"""

import hashlib
from typing import Protocol

from msgspec import Struct

from policies.budget import parse_window_id, told
from policies.money import usd

_LONGEST_NAME = 120


class Notice(Protocol):
    """One thing to tell. `id` never changes, whoever sends it and how often."""

    @property
    def id(self) -> str: ...

    @property
    def created(self) -> float: ...

    def kind(self) -> str:
        """The webhook's `type`."""
        ...

    def data(self) -> dict[str, object]:
        """The webhook's `data`."""
        ...

    def letter(self) -> tuple[str, str]:
        """Subject and text of an e-mail; the subject is one printable line."""
        ...


def key_of(notice: Notice) -> str:
    """The id in a form that any receiver takes."""
    return "msg_" + hashlib.sha256(notice.id.encode()).hexdigest()[:32]


class BudgetReached(Struct, frozen=True, kw_only=True):
    """A budget that has reached a fraction of its limit."""

    id: str
    window_id: str
    threshold: float
    limit_nano: int
    spent_nano: int
    mode: str
    created: float

    def kind(self) -> str:
        return "budget.threshold"

    def data(self) -> dict[str, object]:
        scope, window, span = parse_window_id(self.window_id)
        total = window == "total"
        return {
            "scope": scope,
            "window": window,
            "window_start": None if total else told(span.start),
            "window_end": None if total else told(span.end),
            "mode": self.mode,
            "threshold": self.threshold,
            "limit_usd": usd(self.limit_nano),
            "spent_usd": usd(self.spent_nano),
            "remaining_usd": usd(max(0, self.limit_nano - self.spent_nano)),
        }

    def letter(self) -> tuple[str, str]:
        """A scope is printable text without line ends, so it cannot add headers; the library checks again."""
        scope, window, span = parse_window_id(self.window_id)
        share = f"{self.threshold * 100:g} %"
        limit, spent = usd(self.limit_nano), usd(self.spent_nano)
        hard = "Further requests are refused, or asked of a cheaper model where the budget names one."
        beyond = hard if self.mode == "hard" else "Further requests are let through."
        per, anew = (f"per {window}", f"begins anew at {told(span.end)}")
        if window == "total":
            per, anew = "in all", "does not begin anew"
        text = (
            f"The budget {scope} has spent {spent} USD of {limit} USD {per}.\n"
            f"It has reached the threshold of {share} at {told(int(self.created))} and {anew}.\n"
            f"{beyond if self.spent_nano >= self.limit_nano else ''}\n"
        )
        return f"Budget {scope}: {share} of {limit} USD {per} is spent", text


class HitsWrong(Struct, frozen=True, kw_only=True):
    """More hits by meaning of one tenant and model are wrong than `allowed`, or (`over`) no longer.

    `rate` and its bounds of 95 %: shares of those hits. Nothing that anybody asked or was answered is in it.
    """

    id: str
    team: str
    project: str
    model: str
    over: bool
    rate: float
    low: float
    high: float
    allowed: float
    created: float

    def kind(self) -> str:
        return "cache.wrong_hits.over" if self.over else "cache.wrong_hits"

    def data(self) -> dict[str, object]:
        return {
            "team": self.team,
            "project": self.project,
            "model": self.model,
            "wrong_hit_rate": round(self.rate, 6),
            "low": round(self.low, 6),
            "high": round(self.high, 6),
            "max_wrong_hit_rate": self.allowed,
        }

    def letter(self) -> tuple[str, str]:
        names = (("team", self.team), ("project", self.project), ("model", self.model))
        where = ", ".join(f"{kind} {_line(name)}" for kind, name in names if name)
        rate, allowed = f"{self.rate * 100:.3g} %", f"{self.allowed * 100:g} %"
        seen = (
            f"At {told(int(self.created))}, {rate} of the hits by meaning of {where} were measured to be wrong "
            f"(95 % interval {self.low * 100:.3g} to {self.high * 100:.3g} %); {allowed} are allowed.\n"
        )
        if self.over:
            return f"Cache of {where}: wrong hits are within {allowed} again", seen
        done = "The boundary is tightened by itself; `nearhit cache stats` and /ui/cache tell more.\n"
        return f"Cache of {where}: {rate} of its hits are wrong, {allowed} are allowed", seen + done


class Moved(Struct, frozen=True, kw_only=True):
    """A group that cost so much more (or less) than usual. `kind`: key, model or team; `name` may be empty."""

    kind: str
    name: str
    nano: int


class PartOutOfLine(Struct, frozen=True, kw_only=True):
    """A key or model that was dearer on its own than was to be expected of it."""

    kind: str
    name: str
    spent_nano: int
    expected_nano: int


class SpendingOutOfLine(Struct, frozen=True, kw_only=True):
    """A day (of UTC) that was dearer than expected: as a whole, or else (`expected_nano` None) in the `parts` named.

    `more`: how many parts are not among them. Kept as JSON until everybody has been told.
    """

    id: str
    created: float
    day: str
    spent_nano: int
    expected_nano: int | None
    moved: list[Moved]
    parts: list[PartOutOfLine]
    more: int

    def kind(self) -> str:
        return "spending.anomaly"

    def data(self) -> dict[str, object]:
        return {
            "day": self.day,
            "spent_usd": usd(self.spent_nano),
            "expected_usd": None if self.expected_nano is None else usd(self.expected_nano),
            "causes": [
                {"dimension": one.kind, "name": one.name, "difference_usd": usd(one.nano)} for one in self.moved
            ],
            "parts": [
                {
                    "dimension": part.kind,
                    "name": part.name,
                    "spent_usd": usd(part.spent_nano),
                    "expected_usd": usd(part.expected_nano),
                }
                for part in self.parts
            ],
            "more_parts": self.more,
        }

    def letter(self) -> tuple[str, str]:
        spent = f"{usd(self.spent_nano)} USD"
        lines: list[str] = []
        if self.expected_nano is not None:
            lines.append(f"On {self.day} (UTC) {spent} were spent; {usd(self.expected_nano)} USD were to be expected.")
            lines += [
                f"- {_part(one.kind, one.name)}: {_signed(one.nano)} USD against its usual day" for one in self.moved
            ]
        if self.parts:
            lines.append(f"Dearer on {self.day} than was to be expected of them:")
            lines += [
                f"- {_part(part.kind, part.name)}: {usd(part.spent_nano)} USD, {usd(part.expected_nano)} expected"
                for part in self.parts
            ]
        if self.more:
            lines.append(f"{self.more} more are on the page.")
        lines.append("/ui/anomalies shows the days, and how they are judged.\n")
        about = (
            f"{spent} spent" if self.expected_nano is not None else f"{_names(len(self.parts) + self.more)} out of line"
        )
        return f"Spending on {self.day}: {about}", "\n".join(lines)


def _part(kind: str, name: str) -> str:
    return f"{kind} {_line(name) or '(none)'}"


def _signed(nano: int) -> str:
    return f"{'+' if nano > 0 else ''}{usd(nano)}"


def _names(count: int) -> str:
    return "one key or model" if count == 1 else f"{count} keys and models"


def _line(name: str) -> str:
    """A name as a part of one line."""
    return "".join(char if char.isprintable() else "?" for char in name[:_LONGEST_NAME])
