"""What a window will have cost at its end, and when a limit is reached: the middle, and a range.

Knows: sums of equal stretches of the past, what is spent, a limit, instants handed in. Does not know: budgets, where
the sums come from, the clock.

The stretches of the past (days, or hours for short windows) count as draws from one distribution that goes on as it is.
The sum of `t` further ones then has the mean `t * m` and, because the mean itself is only estimated from `n` of them,
the variance `s^2 * (t + t^2 / n)`: the prediction interval of a sum. Its quantiles are Student's with `n - 1` degrees
of freedom. A rhythm within the stretches (nights, weekends) widens the range; it is not modelled.
"""

import math
from collections.abc import Callable, Sequence

from msgspec import Struct

LEVEL = 0.8
FEWEST = 3  # stretches; fewer tell nothing about their spread
_NORMAL = 1.2815515655446004  # the 90 % quantile, for a range of 80 %
_STEPS = 60
_SMALL = {1: 3.0776835371752527, 2: 1.8856180831641267}


class Forecast(Struct, frozen=True, kw_only=True):
    """Amounts in nano-USD at the end of the window; instants in seconds since the epoch, None: not before its end.

    `earliest` and `latest` bound the instant at which the limit is reached, with the same probability as `low`, `high`.
    `basis`: on how many stretches it rests.
    """

    spent: int
    low: int
    high: int
    runs_out: float | None
    earliest: float | None
    latest: float | None
    level: float
    basis: int


def forecast(
    past: Sequence[int], stretch: float, spent: int, limit: int | None, now: float, end: float
) -> Forecast | None:
    """None with fewer than three stretches of the past, or when the window is over.

    `past`: nano-USD of whole stretches of `stretch` seconds, the last one ending about now. `spent`: in the window so
    far. Never less than what is spent already.
    """
    if len(past) < FEWEST or end <= now:
        return None
    count = len(past)
    mean = sum(past) / count
    spread = math.sqrt(sum((one - mean) ** 2 for one in past) / (count - 1)) * _quantile(count - 1)

    def middle(ahead: float) -> float:
        return mean * ahead

    def low(ahead: float) -> float:
        return max(0.0, mean * ahead - spread * math.sqrt(ahead + ahead * ahead / count))

    def high(ahead: float) -> float:
        return mean * ahead + spread * math.sqrt(ahead + ahead * ahead / count)

    whole = (end - now) / stretch

    def reached(path: Callable[[float], float]) -> float | None:
        if limit is None:
            return None
        ahead = _first(path, limit - spent, whole)
        return None if ahead is None else now + ahead * stretch

    return Forecast(
        spent=spent + round(middle(whole)),
        low=spent + round(low(whole)),
        high=spent + round(high(whole)),
        runs_out=reached(middle),
        earliest=reached(high),
        latest=reached(low),
        level=LEVEL,
        basis=count,
    )


def _first(path: Callable[[float], float], room: float, whole: float) -> float | None:
    """How many stretches until `path` reaches `room`; None when it has not by the end.

    A lower path may stand at zero for a while; from there on it only rises, so halving finds the place.
    """
    if room <= 0:
        return 0.0
    if path(whole) < room:
        return None
    before, after = 0.0, whole
    for _ in range(_STEPS):
        half = (before + after) / 2
        if path(half) < room:
            before = half
        else:
            after = half
    return after


def _quantile(freedom: int) -> float:
    """Student's 90 % quantile: a table for 1 and 2 degrees of freedom, else its expansion (error below 0.3 %)."""
    if freedom <= 2:
        return _SMALL[max(1, freedom)]
    z, n = _NORMAL, float(freedom)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / n + second / n**2 + third / n**3
