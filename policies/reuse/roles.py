"""Who does what to whom: the same words in another order may ask for the opposite.

Knows word order around a few connecting words and passive voice. Does not parse: what stands between two exchanged
words must be the same in both texts, which free word order rarely leaves so. Being wrong costs a hit only.
"""

import re
from collections import Counter
from functools import lru_cache

from policies.reuse.english import bag, stem
from policies.reuse.facts import Facts
from policies.reuse.lexicon import KIND_OF, OPPOSITES, STOP, SYNONYMS

# What follows one of these is a goal, a source or a measure; exchanging it with what stands before changes the request.
_DIRECTED = bag("from to into onto than over under against before after until since minus")
# "Make a list from the recipe" and "turn the recipe into a list", "wash before you eat" and "eat after you wash".
_ONE_WAY = {frozenset((goal, "from")) for goal in ("to", "into")} | {frozenset(("before", "after"))}
# Between two things these leave them equals: "A and B", "A or B", "A vs B".
_EVEN = bag("and or vs versus nor both either with the a an my your is are of in on at for")
_PASSIVE = bag("is are was were be been being get gets got")
_FILLERS = bag(
    "the a an my your his her their our some any do does did is are was were be been being by will would can"
)
# Only these let two things change places in an otherwise equal sentence.
_JOINING = bag("and or but vs versus nor the a an my your")
# Whoever does one of these with somebody has it done to them: it is the same whoever is named first.
MUTUAL = frozenset(
    stem(word)
    for word in bag(
        "meet marry integrate sync synchronize pair compatible differ compare collide resemble equal border divorce "
        "date cousin friend neighbour neighbor sibling brother sister spouse partner colleague twin rival ally enemy "
        "combine mix match intersect overlap touch connect link correlate relate compete correspond communicate talk "
        "chat agree similar identical separate adjacent parallel blend interact share different difference"
    )
)
# So it is with what these connect, where little more is said.
_EQUALS = re.compile(
    r"\b(?:related|similar|identical|equal|equivalent|adjacent|parallel|next(?: door)?) to\b"
    r"|\bfar is it from\b|\bdistance from\b"
)
_LITTLE = 4
_PLACES = frozenset(("country", "people", "city", "continent"))
_OWNED = re.compile(r"\b(\w+)(?='s\s+(\w+))")
# They go before a noun as well as after it: "tickets online", "password reset".
_MOVABLE = bag(
    "online offline abroad overseas home alone together fast safely reset cancel change update delete request refund "
    "renew track install upgrade download upload export import login return exchange transfer backup restart"
)
_PERSONS = bag("people person someone somebody anyone anybody everyone everybody nobody i me he him she her they them")
_PARTICIPLES = ("ed", "en", "wn", "ught", "ung")
_SAME_FORM = bag(
    "read put cut hit let set beat hurt shut run come overcome bid cast cost split spread hired bred led fed"
)
_FAR = 7
_BEFORE_BY = 5
_LONGEST_PART = 3


def swapped(a: Facts, b: Facts) -> bool:
    """Whether two words both texts share have changed places in a way that changes who does what."""
    equals = len(a.content) <= _LITTLE and a.content_set == b.content_set and _are_equals(a) and _are_equals(b)
    if (not equals and _exchanged(a, b)) or any((y, x) in _owned(b) for x, y in _owned(a)):
        return True
    if equals:
        return False
    in_a, in_b = Counter(a.stems), Counter(b.stems)
    shared = [word for word in a.content if in_a[word] == in_b[word] == 1]
    order_b = {word: place for place, word in enumerate(b.stems)}
    turned = passive(a) != passive(b)
    if not turned and _beside_other(a, b):
        return True
    for i, x in enumerate(shared):
        for y in shared[i + 1 : i + 1 + _FAR]:
            if (order_b[x] > order_b[y]) != turned and _says_so(a, b, (x, y), turned=turned):
                return True
    return False


def _beside_other(a: Facts, b: Facts) -> bool:
    """Two places or peoples stand beside what the other stood beside: "a Spanish licence in the US"."""
    one, other = _named_places(a), _named_places(b)
    if len(one) != 2 or len(other) != 2 or not one[0][0] & other[1][0] or not one[1][0] & other[0][0]:
        return False
    (_, first), (_, second) = one
    return first != second and (first, second) == (other[0][1], other[1][1])


def _named_places(facts: Facts) -> list[tuple[frozenset[str], str]]:
    """Each with its other names, and the topic word it stands right before ("" where it stands alone)."""
    following = (*facts.stems, "")[1:]
    return [
        (frozenset((word, *SYNONYMS.get(word, ()))), after if after in facts.content_set else "")
        for word, after in zip(facts.stems, following, strict=True)
        if not _PLACES.isdisjoint(KIND_OF.get(word, ()))
    ]


def _are_equals(facts: Facts) -> bool:
    return _EQUALS.search(" ".join(facts.words)) is not None


def _owned(facts: Facts) -> frozenset[tuple[str, str]]:
    """ "my mother's sister" is not "my sister's mother"."""
    return frozenset((stem(who), stem(what)) for who, what in _OWNED.findall(facts.text.casefold()))


def _exchanged(a: Facts, b: Facts) -> bool:
    """The same sentence, word for word, but for a few of its own topic words that stand in each other's places.

    "Subtract x from y", "Eva gave Ruth her book, is it Eva's?". What `and` and its like connect may change places.
    """
    if len(a.stems) != len(b.stems) or a.stem_set != b.stem_set:
        return _turned(a.words, b.words)
    places = [i for i, (x, y) in enumerate(zip(a.stems, b.stems, strict=True)) if x != y]
    if not places or len(places) > 3:
        return _turned(a.words, b.words)
    if len(places) == 2 and places[1] == places[0] + 1:
        return _is_compound(a, places[0]) and _is_compound(b, places[0])
    if len(places) > 1 and _is_even(a.words[: places[0]], a.words[places[0] + 1 : places[-1]], _joining(a)):
        return False
    opposite = len(places) == 2 and a.stems[places[1]] in OPPOSITES.get(a.stems[places[0]], ())
    # "people" and "someone" are no topic, but they and a topic can change parts.
    persons = len(places) == 2 and not _PERSONS.isdisjoint(a.words[i] for i in places)
    return (opposite or persons) or all(a.stems[i] not in STOP or len(a.stems[i]) == 1 for i in places)


def _joining(facts: Facts) -> frozenset[str]:
    return _JOINING if MUTUAL.isdisjoint(facts.stems) else _JOINING | {"with"}


def _is_compound(facts: Facts, at: int) -> bool:
    """Two topic words with but a space between them: "milk chocolate". "Tickets online" are "online tickets"."""
    one, other = facts.words[at : at + 2]
    topic = all(stem in facts.content_set for stem in facts.stems[at : at + 2])
    return topic and _MOVABLE.isdisjoint((one, other)) and f"{one} {other}" in facts.text.casefold()


def _turned(a: tuple[str, ...], b: tuple[str, ...]) -> bool:
    """`p X m Y s` against `p Y m X s`, X and Y of one or more words, m more than an even connection."""
    start = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    if start is None or sorted(a) != sorted(b):
        return False
    end = next(i for i, (x, y) in enumerate(zip(reversed(a), reversed(b), strict=True)) if x != y)
    x_m_y, y_m_x = a[start : len(a) - end], b[start : len(b) - end]
    for i in range(1, min(_LONGEST_PART, len(x_m_y) - 1) + 1):
        for j in range(1, min(_LONGEST_PART, len(x_m_y) - i - 1) + 1):
            middle = x_m_y[i : len(x_m_y) - j]
            if x_m_y[:i] == y_m_x[-i:] and x_m_y[-j:] == y_m_x[:j] and middle == y_m_x[j : len(y_m_x) - i]:
                # "in Berlin in March": two phrases of one kind, in either order.
                return middle != a[max(0, start - len(middle)) : start] and not _is_even(a[:start], middle, _JOINING)
    return False


def _is_even(before: tuple[str, ...], middle: tuple[str, ...], joining: frozenset[str]) -> bool:
    """Whether `middle` only joins two things, with what stands `before` the first said again: "a tornado watch and a
    tornado warning"."""
    again = tuple(word for word in middle if word not in joining)
    return len(again) < len(middle) and before[len(before) - len(again) :] == again


def _says_so(a: Facts, b: Facts, pair: tuple[str, str], *, turned: bool) -> bool:
    """`x` stands before `y` in `a`. Does what is between them, there and in `b`, give each a part of its own?"""
    x, y = pair
    between_a = _between(a, x, y)
    between_b = _between(b, x, y) if turned else _between(b, y, x)
    if not between_a or not between_b:
        return False
    link_a, link_b = _link(between_a), _link(between_b)
    if turned:
        # Only across the verb: inside "the first Star Wars film" nothing turns round.
        return ("by" in between_a) != ("by" in between_b) and bool(link_a) and link_a == link_b
    if link_a and link_a == link_b and not link_a <= _EVEN | (_before(a, x) & _before(b, y)):
        return True  # "a tornado watch and a tornado warning" are even, too
    aim_a, aim_b = _aim(a, x, y), _aim(b, y, x)
    return bool(aim_a and aim_b) and not _is_one_way((a, b), pair, (aim_a, aim_b))


def _is_one_way(texts: tuple[Facts, Facts], pair: tuple[str, str], aims: tuple[str, str]) -> bool:
    """Whether "x to y" and "y from x" say the same. A bare `to` may belong to a verb: there one has both words."""
    (a, b), (x, y) = texts, pair
    if frozenset(aims) not in _ONE_WAY:
        return False
    return "to" not in aims or _governor(a, x) == aims[1] or _governor(b, y) == aims[0]


def _governor(facts: Facts, word: str) -> str:
    """The nearest word before it that is no article, no "my"."""
    before = facts.words[: facts.stems.index(word)]
    return next((other for other in reversed(before) if other not in _FILLERS), "")


def _before(facts: Facts, word: str) -> frozenset[str]:
    at = facts.stems.index(word)
    return frozenset(facts.stems[max(0, at - 1) : at])


def _aim(facts: Facts, x: str, y: str) -> str:
    """The directed word after which `y` is the first thing, following `x`: "… x … to y"; "" where there is none."""
    between = _between(facts, x, y) or ()
    for i, word in enumerate(between):
        if word in _DIRECTED:
            return "" if any(stem(other) in facts.content_set for other in between[i + 1 :]) else word
    return ""


def _link(between: tuple[str, ...]) -> frozenset[str]:
    return frozenset(stem(word) for word in between if word not in _FILLERS)


def _between(facts: Facts, x: str, y: str) -> tuple[str, ...] | None:
    """The words between `x` and `y`; None when `y` comes first or they are far apart."""
    at_x, at_y = facts.stems.index(x), facts.stems.index(y)
    return facts.words[at_x + 1 : at_y] if at_x < at_y <= at_x + _FAR else None


def passive(facts: Facts) -> bool:
    """ "was bitten by", "was handed to Ann by": an auxiliary, a participle, `by`."""
    return "by" in facts.words and _is_passive(facts.words)


@lru_cache(maxsize=4_096)
def _is_passive(words: tuple[str, ...]) -> bool:
    for i, word in enumerate(words):
        if word == "by":
            for k in range(i - 1, max(-1, i - 1 - _BEFORE_BY), -1):
                if is_participle(words[k]) and not _PASSIVE.isdisjoint(words[max(0, k - _FAR) : k]):
                    return True
    return False


def is_participle(word: str) -> bool:
    """By its ending, or by being another form of its stem; the -ing form is none."""
    if word.endswith("ing"):
        return False
    return word.endswith(_PARTICIPLES) or word in _SAME_FORM or (stem(word) != word and not word.endswith("s"))
