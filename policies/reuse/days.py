"""Which days, months, parts of the day two texts name, and how often: December and dec, daily and every day.

Knows dates as `policies.reuse.facts` finds them. Does not know now from then (`policies.reuse.moods`).
"""

from itertools import pairwise

from policies.reuse.english import bag
from policies.reuse.facts import Facts
from policies.reuse.lexicon import SYNONYMS

_SHORT = bag(
    "jan january feb february mar march apr april jun june jul july aug august sep sept september oct october nov "
    "november dec december noon midday"
)
_EACH = bag("every each per a an once")
_SPAN_OF = {"daily": "day", "weekly": "week", "monthly": "month", "quarterly": "quarter", "yearly": "year"}
_SPAN_OF["hourly"] = "hour"


def other_days(a: Facts, b: Facts) -> bool:
    """Whether one names a day, a part of it, or a turn, that the other does not name in any form."""
    one, other = _canonical(a.dates), _canonical(b.dates)
    return not (_recur(one - other, b) and _recur(other - one, a))


def _canonical(stems: frozenset[str]) -> frozenset[str]:
    return frozenset(min(SYNONYMS.get(word, frozenset()) & _SHORT | {word}) for word in stems)


def _recur(dates: frozenset[str], other: Facts) -> bool:
    """Whether all of them are said in other words there: "every day", "twice a day"."""
    spans = {after for word, after in pairwise(other.stems) if word in _EACH}
    return all(_SPAN_OF.get(word) in spans for word in dates)
