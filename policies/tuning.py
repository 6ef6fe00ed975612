"""Other error budgets over traffic that has passed: what would have been served, how much of it wrongly, what it saved.

Knows, of each logged request, the risk of the best kept answer near it, whether that was judged right, and its worth.
The decision is `reuse.spending`'s own. Does not know texts, logs or clocks, and changes nothing.

What it cannot see: an answer served in the replay is not compared with what the next requests would then have found,
because more hits leave fewer kept answers behind. Small differences between budgets mean nothing.
"""

import math
from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from policies.reuse import Budget
from policies.reuse.spending import Limits, Window, add, affordable, alarmed, check, threshold

_Z = 1.959964  # the 97.5 % point of the normal distribution
_EVERY = 25  # requests of a scope between two looks for its threshold
_UNSEEN = -1.0


class Share(Struct, frozen=True, kw_only=True):
    """A share with its 95 % interval; `rate` is None where nothing is known."""

    rate: float | None
    low: float
    high: float


class Seen(Struct, frozen=True, kw_only=True):
    """One logged request. `risk` and `doubt` (1 - the estimated probability) of the best kept answer that no guard
    forbade, None without any. `worth`: nano-USD a fresh answer cost, or would have. `wrong`: None while not judged.
    """

    scope: str
    exact: bool = False
    served: bool = False
    risk: float | None = None
    doubt: float = 1.0
    worth: int = 0
    wrong: bool | None = None


class Choice(Struct, frozen=True, kw_only=True):
    """One budget over the same traffic. `hits`: those by meaning; `judged` of them are known to be right or wrong."""

    budget: Budget
    requests: int
    exact: int
    hits: int
    hit_rate: float | None
    wrong_per_request: Share
    wrong_per_hit: Share
    judged: int
    saved_nano: int


class Start(Struct, frozen=True, kw_only=True):
    """What decides in a scope until it has so many `labels` of its own over so many `requests`: a fixed `threshold`,
    -1 where nothing is served until then."""

    threshold: float = -1.0
    labels: int = 0
    requests: float = 0.0


class _Scope:
    """The window of one scope during a replay."""

    def __init__(self, budget: Budget, limits: Limits, start: Start) -> None:
        self._budget = budget
        self._limits = limits
        self._start = start
        self._window = Window()
        self._labels = 0
        self._threshold = _UNSEEN
        self._since = 0

    def ask(self, seen: Seen) -> bool:
        """Whether this request would have been served by meaning."""
        if self._labels < self._start.labels or self._window.requests < self._start.requests:
            self._threshold = self._start.threshold
        elif self._since % _EVERY == 0 or self._threshold == _UNSEEN:
            self._threshold = threshold(self._window, self._budget, self._limits)
        self._since += 1
        self._labels += seen.wrong is not None
        served = seen.risk is not None and self._may(seen.risk)
        risk = 1.0 if seen.risk is None else seen.risk
        if seen.wrong is not None and served:
            self._window = check(self._window, risk, wrong=seen.wrong)
        self._window = add(self._window, risk, served=served, limits=self._limits)
        return served

    def _may(self, risk: float) -> bool:
        return (
            risk <= self._threshold
            and affordable(self._window, risk, self._budget, self._limits)
            and not alarmed(self._window, self._budget, self._limits)
        )


def replay(seen: Sequence[Seen], budget: Budget, limits: Limits | None = None, start: Start | None = None) -> Choice:
    """The same requests in the same order under `budget`, every scope starting without knowledge of its own."""
    chosen, begun = limits or Limits(), start or Start()
    scopes: dict[str, _Scope] = {}
    served: list[Seen] = []
    nothing = budget.max_error_rate <= 0.0 or budget.max_wrong_hit_rate <= 0.0
    for one in seen:
        if one.exact or nothing:
            continue
        scope = scopes.setdefault(one.scope, _Scope(budget, chosen, begun))
        if scope.ask(one):
            served.append(one)
    return _told(budget, seen, served)


def as_it_was(seen: Sequence[Seen], budget: Budget) -> Choice:
    """What was really served, in the same words."""
    return _told(budget, seen, [one for one in seen if one.served])


def within_reach(seen: Iterable[Seen], requests: int, budget: Budget) -> tuple[int, int]:
    """Of the requests that were not served, how many (and nano-USD) both budgets would have allowed, least risky first.

    `requests`: all that were asked, which is what wrong answers are counted against.
    """
    taken, hits, worth = 0.0, 0, 0
    open_ = [(one.risk, one.worth) for one in seen if one.risk is not None and not one.served and not one.exact]
    for risk, value in sorted(open_):
        spent = taken + risk
        if spent > budget.max_error_rate * requests or spent > budget.max_wrong_hit_rate * (hits + 1):
            break
        taken, hits, worth = spent, hits + 1, worth + value
    return hits, worth


def _told(budget: Budget, seen: Sequence[Seen], served: Sequence[Seen]) -> Choice:
    per_hit = wrong_share(served)
    part = len(served) / len(seen) if seen else 0.0
    return Choice(
        budget=budget,
        requests=len(seen),
        exact=sum(one.exact for one in seen),
        hits=len(served),
        hit_rate=len(served) / len(seen) if seen else None,
        wrong_per_request=replace(
            per_hit,
            rate=None if per_hit.rate is None else per_hit.rate * part,
            low=per_hit.low * part,
            high=per_hit.high * part,
        ),
        wrong_per_hit=per_hit,
        judged=sum(one.wrong is not None for one in served),
        saved_nano=sum(one.worth for one in served),
    )


def wrong_share(served: Sequence[Seen]) -> Share:
    """The share of wrong ones. What was served then and what was asked then were judged by different chances, so each
    part is estimated by itself; a part nobody judged counts by the policy's own estimate, with the widest interval.
    """
    if not served:
        return Share(rate=None, low=0.0, high=0.0)
    rate, below, above = 0.0, 0.0, 0.0
    for part in ([one for one in served if one.served], [one for one in served if not one.served]):
        if not part:
            continue
        weight, found = len(part) / len(served), _part(part)
        value = found.rate or 0.0
        rate += weight * value
        below += (weight * (value - found.low)) ** 2
        above += (weight * (found.high - value)) ** 2
    # The interval of a weighted sum from the intervals of its terms (Zou & Donner 2008).
    return Share(rate=rate, low=max(0.0, rate - math.sqrt(below)), high=min(1.0, rate + math.sqrt(above)))


def _part(part: Sequence[Seen]) -> Share:
    told = [one.wrong for one in part if one.wrong is not None]
    if told:
        return wilson(sum(told), len(told))
    return Share(rate=sum(one.doubt for one in part) / len(part), low=0.0, high=1.0)


def wilson(wrong: int, judged: int) -> Share:
    """Wilson's score interval: honest also for few verdicts and for none wrong (Wilson 1927)."""
    if judged <= 0:
        return Share(rate=None, low=0.0, high=1.0)
    share, spread = wrong / judged, _Z * _Z / judged
    middle = share + spread / 2
    half = _Z * math.sqrt(share * (1 - share) / judged + spread / (4 * judged))
    return Share(
        rate=share,
        low=min(share, max(0.0, (middle - half) / (1 + spread))),
        high=max(share, min(1.0, (middle + half) / (1 + spread))),
    )
