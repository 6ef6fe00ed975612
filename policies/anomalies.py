"""Days on which spending was not what the days before would lead one to expect: of all together, and of each part.

Knows: amounts per day, robust statistics. Does not know: databases, time zones, what the parts are, the clock.

Method: the modified z-score of Iglewicz and Hoaglin, "How to Detect and Handle Outliers" (ASQC 1993): distance from the
median over 1.4826 times the median absolute deviation, an outlier above 3.5. The median is that of the same weekday in
the four weeks before, so that a quiet Sunday is no anomaly; a day is judged once three of them are known.

A hundred parts have a hundred chances a day to be out of line by chance. So a part is held to the threshold at which
all of them together are as seldom beyond it as one is beyond 3.5 (Bonferroni); and, since four days say little of how
much a part's spending varies, it must have cost twice its dearest day of four weeks, and more than was to be expected
by a twentieth of what everybody spends on a usual day.
"""

from collections.abc import Mapping, Sequence
from statistics import NormalDist, median
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

Part = TypeVar("Part")

THRESHOLD = 3.5
_WEEKS = 4
_WEEK = 7
_MONTH = _WEEKS * _WEEK
_FEWEST = 3  # days of one weekday that say what that weekday is like
_SIGMA = 1.4826  # makes the median absolute deviation of a normal distribution its standard deviation
LEAST = 0.35  # of the expected amount: a difference below is never worth a look
PART_LEAST = 0.05  # of everybody's usual day: a part's difference below is never worth a look
PART_TIMES = 2  # a part's dearest day before


class Flag(Struct, frozen=True):
    """`day` is an index into what was given; amounts in nano-USD; `score` above 0 is dearer than expected."""

    day: int
    amount: int
    expected: int
    score: float


def flags(amounts: Sequence[int], floor: int) -> list[Flag]:
    """The days out of line, in order. `floor`: nano-USD that a day may be off without anybody caring."""
    found = (_judged(amounts, day, floor, THRESHOLD) for day in range(len(amounts)))
    return [flag for flag in found if flag is not None]


def _judged(amounts: Sequence[int], day: int, floor: float, threshold: float) -> Flag | None:
    known = [amounts[day - week * _WEEK] for week in range(1, _WEEKS + 1) if day >= week * _WEEK]
    if len(known) < _FEWEST:
        return None
    expected = float(median(known))
    scale = _SIGMA * float(median(abs(before - expected) for before in known))
    scale = max(scale, LEAST / threshold * expected, floor / threshold, 1.0)
    score = (amounts[day] - expected) / scale
    return Flag(day, amounts[day], round(expected), round(score, 2)) if abs(score) >= threshold else None


def threshold_among(series: int) -> float:
    """Beyond which one of so many is by chance as seldom as a single one is beyond `THRESHOLD`, were they normal."""
    normal = NormalDist()
    return -normal.inv_cdf(normal.cdf(-THRESHOLD) / max(1, series))


def part_flags(parts: Mapping[Part, Sequence[int]], whole: Sequence[int], floor: int) -> list[tuple[Part, Flag]]:
    """Parts that were dearer on a day than can be expected, in order of the days; dearest first on each.

    All have as many days as `whole`, what everybody spent. A part is judged from three weeks after its first day on:
    a new one, and one that fell silent, show in the day as a whole.
    """
    threshold = threshold_among(len(parts) + 1)
    least = [max(floor, PART_LEAST * median(whole[max(0, day - _MONTH) : day] or [0])) for day in range(len(whole))]
    found = [(name, flag) for name, amounts in parts.items() for flag in _of_part(amounts, least, threshold)]
    return sorted(found, key=lambda item: (item[1].day, item[1].expected - item[1].amount))


def _of_part(amounts: Sequence[int], least: Sequence[float], threshold: float) -> list[Flag]:
    begun = next((day for day, amount in enumerate(amounts) if amount), len(amounts))
    lived = amounts[begun:]
    found: list[Flag] = []
    for day, amount in enumerate(lived):
        if amount < least[begun + day]:
            continue
        # What went wrong yesterday must not hide today; what comes back after a week is the part's own way.
        news = {other.day for other in found if other.day > day - _WEEK}
        before = [lived[other] for other in range(max(0, day - _MONTH), day) if other not in news]
        if amount < PART_TIMES * max(before, default=0):
            continue
        flag = _judged(lived, day, least[begun + day], threshold)
        if flag is not None and flag.score > 0:
            found.append(flag)
    return [replace(flag, day=begun + flag.day) for flag in found]


def causes(today: dict[str, int], usual: dict[str, int], most: int = 3) -> list[tuple[str, int]]:
    """The groups whose spending moved most against their usual day, largest first: (name, nano-USD more or less)."""
    moved = {name: today.get(name, 0) - usual.get(name, 0) for name in {*today, *usual}}
    ordered = sorted(moved.items(), key=lambda item: (-abs(item[1]), item[0]))
    return [(name, change) for name, change in ordered[:most] if change]
