"""What is wanted and what is not, what comes first and what later: things that changed sides of `instead of`, `before`.

"Butter instead of oil", "oil in place of butter"; "ship it before it is paid", "pay before it ships". Knows the few
words after a connecting one. Does not parse: what is named on both sides, or in words of its own, is left to others.
"""

import re

from policies.reuse.english import bag, stem
from policies.reuse.facts import Facts

# Texts with the same connecting words are compared; in other words of it the question is another (`guards.logic`).
_CONNECTING = tuple(
    (bag(first), re.compile(rf"\b(?:{phrases})\s+((?:[^\s,.;:?!]+\s*){{1,6}})"))
    for first, phrases in (
        ("instead rather place opposed lieu", "instead of|rather than|in place of|as opposed to|in lieu of"),
        ("before", "before"),
        ("after", "after"),
        ("without", "without"),
        ("because due", "because(?: of)?|due to"),
    )
)
# "After a run can I eat", "before lunch is it open": the question itself, and no part of what comes first.
_GOES_ON = bag("can could may might should must shall will would do does did how what when where why who which")
_ANY = frozenset[str]().union(*(first for first, _ in _CONNECTING))


def changed_sides(a: Facts, b: Facts) -> bool:
    """Whether a thing stands after connecting words in `a` and apart from them in `b`, and another the other way."""
    if _ANY.isdisjoint(a.words) or _ANY.isdisjoint(b.words):
        return False
    for first, pattern in _CONNECTING:
        if first.isdisjoint(a.words) or first.isdisjoint(b.words):
            continue
        one, other = _governed(a, pattern), _governed(b, pattern)
        if (one - other) & b.content_set and (other - one) & a.content_set:
            return True
    return False


def _governed(facts: Facts, pattern: re.Pattern[str]) -> frozenset[str]:
    """The topic words that follow; none where the connecting words are not there exactly once."""
    phrases = pattern.findall(facts.text.casefold())
    words: list[str] = phrases[0].split() if len(phrases) == 1 else []
    end = next((i for i, word in enumerate(words) if i and word in _GOES_ON), len(words))
    return facts.content_set.intersection(stem(word.strip("'\"()")) for word in words[:end])
