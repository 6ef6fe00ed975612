"""Days, months, seasons, parts of the day and spans that a text names: Monday, overnight, next week, every year.

Knows words and their stems. Does not know the calendar, what day it is, or when two of them are the same
(`policies.reuse.days`).
"""

from collections import Counter
from itertools import pairwise

from policies.reuse.english import bag
from policies.reuse.lexicon import KINDS

_DATES = KINDS["month"] | KINDS["weekday"] | KINDS["season"] | KINDS["part of day"] | KINDS["tense"]
_PERIODS = {
    **{word: word for word in bag("daily weekly monthly quarterly yearly hourly biweekly fortnightly")},
    **dict.fromkeys(("annual", "annually"), "yearly"),
}
_PLAYED = frozenset(("song", "episod", "one"))
_SPANS = KINDS["span"] | _PLAYED | {"weekend"}
# "the day after tomorrow", "the year before last"
_BESIDE = frozenset(("after", "before"))
_AFTER_THE = frozenset(("coming", "following"))
_WHICH = {
    **{word: word for word in ("this", "next", "last", "past", "another")},
    "previous": "last",
    **dict.fromkeys(_AFTER_THE, "next"),
}
_PARTS = {"overnight": "night", "nighttime": "night", "wintertime": "winter", "summertime": "summer"}
# Month names that are everyday words count as months only beside a number or after a preposition.
_DOUBTFUL_DATES = frozenset(("may", "march", "spring", "fall", "mar", "sun", "sat", "jan", "second"))
_BEFORE_DATE = bag("in on of this next last until till by since during every each early late from to")


def dates_of(plain: tuple[str, ...], stems: tuple[str, ...], in_numbers: Counter[str]) -> frozenset[str]:
    """All that a text names, in one form each. `in_numbers`: words that belong to quantities."""
    found: set[str] = set()
    for i, word in enumerate(_PARTS.get(*both) for both in zip(plain, stems, strict=True)):
        if word not in _DATES:
            continue
        beside = {plain[j] for j in (i - 1, i + 1) if 0 <= j < len(plain)}
        if plain[i] in _DOUBTFUL_DATES and not (
            any(in_numbers.get(other) or other[0].isdigit() for other in beside) or (i and plain[i - 1] in _BEFORE_DATE)
        ):
            continue
        found.add(word)
    return frozenset(found) | _spans(plain, stems) | {_PERIODS[word] for word in plain if word in _PERIODS}


def _spans(plain: tuple[str, ...], stems: tuple[str, ...]) -> frozenset[str]:
    """ "this week", "the coming year" as "next year", "the day after"; "following years of practice" is no such one."""
    found: set[str] = set()
    for i, (one, other) in enumerate(pairwise(stems)):
        which = _WHICH.get(plain[i], "")
        if plain[i] in _AFTER_THE and plain[i - 1 : i] != ("the",):
            which = ""
        if which and (other in _SPANS or other in _DATES) and not (which == "this" and other in _PLAYED):
            found.add(f"{which} {other}")
        elif one in _SPANS and other in _BESIDE:
            found.add(f"{one} {other}")
    return frozenset(found)
