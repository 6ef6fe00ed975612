"""Days on which spending was not what the days before would lead one to expect.

Knows: amounts per day, robust statistics. Does not know: databases, time zones, who spent what, the clock.

Method: the modified z-score of Iglewicz and Hoaglin, "How to Detect and Handle Outliers" (ASQC 1993): distance from the
median over 1.4826 times the median absolute deviation, an outlier above 3.5. The median is that of the same weekday in
the four weeks before, so that a quiet Sunday is no anomaly; a day is judged once three of them are known.
"""

from collections.abc import Sequence
from statistics import median

from msgspec import Struct

THRESHOLD = 3.5
_WEEKS = 4
_WEEK = 7
_FEWEST = 3  # days of one weekday that say what that weekday is like
_SIGMA = 1.4826  # makes the median absolute deviation of a normal distribution its standard deviation
LEAST = 0.35  # of the expected amount: a difference below is never worth a look


class Flag(Struct, frozen=True):
    """`day` is an index into what was given; amounts in nano-USD; `score` above 0 is dearer than expected."""

    day: int
    amount: int
    expected: int
    score: float


def flags(amounts: Sequence[int], floor: int, threshold: float = THRESHOLD) -> list[Flag]:
    """The days out of line, in order. `floor`: nano-USD that a day may be off without anybody caring."""
    found: list[Flag] = []
    for day, amount in enumerate(amounts):
        known = [amounts[day - week * _WEEK] for week in range(1, _WEEKS + 1) if day >= week * _WEEK]
        if len(known) < _FEWEST:
            continue
        expected = float(median(known))
        scale = _SIGMA * float(median(abs(before - expected) for before in known))
        scale = max(scale, LEAST / threshold * expected, floor / threshold, 1.0)
        score = (amount - expected) / scale
        if abs(score) >= threshold:
            found.append(Flag(day, amount, round(expected), round(score, 2)))
    return found


def causes(today: dict[str, int], usual: dict[str, int], most: int = 3) -> list[tuple[str, int]]:
    """The groups whose spending moved most against their usual day, largest first: (name, nano-USD more or less)."""
    moved = {name: today.get(name, 0) - usual.get(name, 0) for name in {*today, *usual}}
    ordered = sorted(moved.items(), key=lambda item: (-abs(item[1]), item[0]))
    return [(name, change) for name, change in ordered[:most] if change]
