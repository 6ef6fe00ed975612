"""How much risk a scope may still take: two error budgets as one threshold over a window of requests.

Knows estimated risks of requests, what was served, and what audits found. Does not know texts or models. The best use
of a budget is a knapsack with equal weights: serve the least risky requests until their sum is spent.

The window forgets slowly instead of all at once: after `span` requests an old one counts 1/e. Audits are few and are
remembered longer.
"""

import math

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from policies.reuse import Budget

Row = NDArray[np.float32]

BINS = 96
_LEAST, _MOST = 1e-4, 0.5
# A judge who errs as often as this tells next to nothing, and is not corrected for more.
_BLIND = 0.45
_STEP = math.log(_MOST / _LEAST) / (BINS - 1)
EDGES = _LEAST * np.exp(_STEP * np.arange(BINS))


class Window(Struct, frozen=True, kw_only=True):
    """Requests of late by their risk, old ones fading. Sums of weights, not counts.

    `counts`, `risks`: per bin of risk, float32: requests, and the sum of their risks. `requests`: all of them, also
    those with nothing near. `served`, `spent`: what was served, and the risk taken by that, as it was estimated then.
    `checked`, `wrong`, `feared`: would-be hits that were compared with a fresh answer, how many were called wrong, and
    how many had to be feared wrong; `flips`: how many of these verdicts the judge is known to get wrong.
    """

    counts: bytes = bytes(4 * BINS)
    risks: bytes = bytes(4 * BINS)
    requests: float = 0.0
    served: float = 0.0
    spent: float = 0.0
    checked: float = 0.0
    wrong: float = 0.0
    feared: float = 0.0
    flips: float = 0.0


class Limits(Struct, frozen=True, kw_only=True):
    """`span` of the window in requests, `audit_span` of what audits found; `catch_up`: requests over which what was
    left unspent may be spent; `slack`: expected wrong answers that may be owed at any time; `reserve`, `hit_reserve`:
    shares of the budgets per request and per hit that are not planned with; `few`: until so many hits no answer may be
    twice as risky as hits may be on average; `trust`, `doubt`: the least and the most by which audits can scale feared
    risk; `weight`: how many feared wrong ones the estimate counts as before the first audit; `alarm`: chance of a false
    alarm.
    """

    span: float = 3_000.0
    audit_span: float = 12_000.0
    catch_up: float = 1_000.0
    slack: float = 0.25
    reserve: float = 0.35
    hit_reserve: float = 0.3
    few: float = 200.0
    trust: float = 0.8
    doubt: float = 10.0
    weight: float = 2.0
    alarm: float = 0.05


def is_whole(window: Window) -> bool:
    """Whether it can be reckoned with: its bins are all there, and everything in it is a number."""
    if len(window.counts) != 4 * BINS or len(window.risks) != 4 * BINS:
        return False
    sums = (window.requests, window.served, window.spent, window.checked, window.wrong, window.feared, window.flips)
    bins = np.frombuffer(window.counts + window.risks, "<f4")
    return bool(np.isfinite(bins).all()) and all(map(math.isfinite, sums))


def _bin(risk: float) -> int:
    return min(BINS - 1, max(0, math.ceil(math.log(max(risk, _LEAST) / _LEAST) / _STEP - 1e-9)))


def add(window: Window, risk: float, *, served: bool, limits: Limits) -> Window:
    """The window after one more request whose best answer bears `risk` (1: there was none)."""
    keep, slower = 1.0 - 1.0 / limits.span, 1.0 - 1.0 / limits.audit_span
    counts = np.frombuffer(window.counts, "<f4") * np.float32(keep)
    risks = np.frombuffer(window.risks, "<f4") * np.float32(keep)
    if risk <= _MOST:
        counts[_bin(risk)] += 1.0
        risks[_bin(risk)] += risk
    return Window(
        counts=counts.tobytes(),
        risks=risks.tobytes(),
        requests=window.requests * keep + 1.0,
        served=window.served * keep + served,
        spent=window.spent * keep + (risk if served else 0.0),
        checked=window.checked * slower,
        wrong=window.wrong * slower,
        feared=window.feared * slower,
        flips=window.flips * slower,
    )


def check(window: Window, risk: float, *, wrong: bool, flip: float = 0.0) -> Window:
    """The window after a would-be hit was compared with a fresh answer by a judge who errs with chance `flip`."""
    return Window(
        counts=window.counts,
        risks=window.risks,
        requests=window.requests,
        served=window.served,
        spent=window.spent,
        checked=window.checked + 1.0,
        wrong=window.wrong + wrong,
        feared=window.feared + risk,
        flips=window.flips + flip,
    )


def _flip(checked: float, flips: float) -> float:
    """How often the judge errs, over what was checked."""
    return min(_BLIND, flips / checked) if checked > 0.0 else 0.0


def scale(window: Window, limits: Limits) -> float:
    """How many wrong answers audits found for each that was feared, without those that only the judge's errors made
    (Rogan and Gladen 1978)."""
    flip = _flip(window.checked, window.flips)
    wrong = max(0.0, (window.wrong - flip * window.checked) / (1.0 - 2.0 * flip))
    found = (wrong + limits.weight) / (window.feared + limits.weight)
    return min(max(found, limits.trust), limits.doubt)


def threshold(window: Window, budget: Budget, limits: Limits) -> float:
    """The highest risk that may be served under both budgets; -1 when none may."""
    factor = scale(window, limits)
    taken = factor * np.cumsum(np.frombuffer(window.risks, "<f4"))
    count = np.cumsum(np.frombuffer(window.counts, "<f4"))
    # What was not spent so far may be soon, but never at more than twice the pace; what was spent too much is saved.
    plan = (1.0 - limits.reserve) * budget.max_error_rate
    left = (plan * window.requests - factor * window.spent) / limits.catch_up
    pace = min(plan + left, 2.0 * budget.max_error_rate)
    per_hit = (1.0 - limits.hit_reserve) * budget.max_wrong_hit_rate
    fits = (taken <= pace * window.requests) & (taken <= per_hit * count)
    # A bin without requests fits as its predecessor does; where nothing was seen at all, nothing is known to fit.
    fits &= count > 0.0
    # An average of few is no average: what stands out is borne by many hits, not by a scope's first.
    fits &= factor * EDGES <= budget.max_wrong_hit_rate * (1.0 + window.served / limits.few)
    found = np.flatnonzero(fits)
    return float(EDGES[found[-1]]) if len(found) else -1.0


def affordable(window: Window, risk: float, budget: Budget, limits: Limits) -> bool:
    """Whether serving `risk` now keeps what was really spent within both budgets, but for the slack."""
    owed = scale(window, limits) * (window.spent + risk)
    per_request = budget.max_error_rate * (window.requests + 1.0) + limits.slack * min(1.0, budget.max_error_rate * 100)
    per_hit = budget.max_wrong_hit_rate * (window.served + 1.0) + limits.slack * min(
        1.0, budget.max_wrong_hit_rate * 20
    )
    return owed <= per_request and owed <= per_hit


def alarmed(window: Window, budget: Budget, limits: Limits) -> bool:
    """Whether audits prove, at the level of `alarm` however often one looks, that more hits are wrong than allowed."""
    allowed = min(budget.max_wrong_hit_rate, budget.max_error_rate * window.requests / max(window.served, 1.0), 1.0)
    return proves(window.checked, window.wrong, window.flips, allowed, limits.alarm)


def proves(checked: float, wrong: float, flips: float, allowed: float, alarm: float) -> bool:
    """Whether `wrong` of `checked` drawn by chance mean a share above `allowed`; false with chance `alarm` at most.

    A bet against "at most the allowed share is wrong", spread over all greater shares (Ville's inequality). What a
    judge calls wrong is allowed his errors (`flips` of them are expected) on top: with many of them little can be
    proved either way.
    """
    flip = _flip(checked, flips)
    allowed += flip * (1.0 - 2.0 * allowed)
    if checked < 1.0 or wrong <= allowed * checked:
        return False
    if allowed <= 0.0:
        return True
    right = checked - wrong
    mixed = math.lgamma(wrong + 0.5) + math.lgamma(right + 0.5) - math.lgamma(checked + 1.0) - math.log(math.pi)
    null = wrong * math.log(allowed) + right * math.log1p(-min(allowed, 1.0 - 1e-9))
    return mixed - null >= math.log(1.0 / alarm)
