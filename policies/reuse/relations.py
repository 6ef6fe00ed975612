"""Small words that relate things: what a quantity is for, who has which part, what comes when, what `only` points at.

Knows two texts' facts and closed classes of words. Does not parse; where the topic differs it says nothing.
"""

from policies.reuse.english import bag, stem
from policies.reuse.facts import Facts
from policies.reuse.roles import passive

_TIMES = {
    **dict.fromkeys(("before", "until", "till", "prior", "preceding", "ahead", "beforehand", "pre"), "before"),
    **dict.fromkeys(("after", "following", "afterwards", "afterward", "subsequently", "post"), "after"),
    **dict.fromkeys(("during", "while", "whilst", "amid"), "while"),
}
# "by 20 percent" and "to 20 percent"
_AIMS = bag("by to from")
_ORDINAL_WORDS = bag("first second third fourth fifth sixth seventh eighth ninth tenth")


def aimed_elsewhere(a: Facts, b: Facts) -> bool:
    """Whether one quantity is a goal here, a step or a start there."""
    aims_a, aims_b = ({(n.value, n.precedes) for n in facts.numbers if n.precedes in _AIMS} for facts in (a, b))
    return any(value == other and aim != aims for value, aim in aims_a - aims_b for other, aims in aims_b - aims_a)


def numbered(a: Facts, b: Facts) -> bool:
    """Whether `a` counts what `b` only numbers or divides: "ten batches", "batches of ten", "room 3"."""
    for item in a.numbers:
        counted = stem(item.follows)
        for other in b.numbers if counted in a.content_set and item.text not in _ORDINAL_WORDS else ():
            if other.value == item.value and stem(other.follows) != counted:
                at = b.words.index(other.text.split()[0])
                if counted in b.stems[max(0, at - 2) : at]:
                    return True
    return False


def recast(a: Facts, b: Facts) -> bool:
    """The same topic and the same persons, two of whom have other parts, or one was acted on and acts now.

    "Get me a card" and "I need a card" are one wish.
    """
    if a.cases == b.cases or a.content_set != b.content_set or passive(a) != passive(b):
        return False
    parts_a, parts_b = ({who: {part for one, part in x.cases if one == who} for who, _ in x.cases} for x in (a, b))
    if parts_a.keys() != parts_b.keys():
        return False
    changed = [who for who in parts_a if not parts_a[who] & parts_b[who]]
    return len(changed) > 1 or any(who != "i" and "owner" not in parts_a[who] | parts_b[who] for who in changed)


def other_time(a: Facts, b: Facts) -> bool:
    """Before, while and after exclude one another."""
    times_a, times_b = _times(a), _times(b)
    return bool(times_a - times_b) and bool(times_b - times_a)


def _times(facts: Facts) -> set[str]:
    found = {_TIMES[word] for word in facts.words if word in _TIMES}
    if "when" in facts.words and facts.question != "when":
        found.add("while")
    return found


def focused_elsewhere(a: Facts, b: Facts) -> bool:
    only_a, only_b = a.focus - b.focus, b.focus - a.focus
    return any(
        one == other and first in b.content_set and second in a.content_set
        for one, first in only_a
        for other, second in only_b
    )
