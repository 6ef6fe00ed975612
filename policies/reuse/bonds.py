"""What belongs together: "a slow player with a quick opponent" is not "a quick player with a slow opponent".

Knows how near to each other words stand and how often, what stands after a preposition, and what is whose. Does not
parse: of two texts with the same words it says only that two of them have exchanged their company, where both have it
plainly.
"""

import re
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

from policies.reuse.english import bag, stem, words
from policies.reuse.facts import Facts
from policies.reuse.lexicon import KIND_OF
from policies.reuse.roles import MUTUAL, passive

# No company to anything: small words, and those that belong to a sentence as a whole.
_EMPTY = bag(
    "a an the is are was were be been being am do does did to of in on at for from by with but as it its this that "
    "these those there here i me my mine we us our you your he him his she her they them their what which who whom "
    "whose when where why how can could would should will shall may might must please tell give show help let if then "
    "so just also about into onto over under not no whether while because has have had having get got out up some any "
    "each every all both after before during without within between inside more most other another actually really "
    "like need want know say said way many much long use used name still usually together once often ever only now "
    "today front down off back away instead yet already always never sometimes soon again little bit too very quite "
    "especially even although though one ones s ok okay safe possible something someone anything thing things people "
    "person everyone time times free simple"
)
_WRITTEN = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_COUNTS = {word: str(value) for value, word in enumerate(_WRITTEN, 2)}
_JOINS = bag("and or vs versus nor than")
# A word's place counts words; a join counts as two, and where a sentence pauses is half as much more.
_JOINED, _PAUSE = 1.0, 1.5
_PAUSES = re.compile(r"[,;:.?!]")
# As far as "opponent that is quick"; by so much nearer to the one than to the other.
_NEAR, _MARGIN = 3.5, 0.6
_PAIR, _MOST = 2, 24

_GOVERNING = bag("on from into over inside under about above below against behind")
_BEFORE_NOUN = bag("the a an my your his her our their its this that these those some any each every both all")
_AHEAD, _WHOSE = 6, 3
_OWNS = re.compile(r"\b(\w+)['\u2019]s\s+(\w+)")
_DIFFERS = bag("differ differs different distinguish distinguishes differentiate apart")


class _Places(NamedTuple):
    """Where the topic words stand that a text has once, how many stand before each, and how often it has any."""

    at: dict[str, float]
    rank: dict[str, int]
    times: dict[str, int]


def crossed(a: Facts, b: Facts) -> bool:
    """Two pairs stand together in `a`, and in `b` each stands with the other's: quick with player, slow with opponent.

    Pairs that moved as a whole stay what they were: "a belt and trousers, brown and black" says nothing here, "for
    black trousers and a brown belt" the same as "with a brown belt and black trousers".
    """
    one, other = _places(a.text), _places(b.text)
    shared = [word for word in one.at if word in other.at][:_MOST]
    if len(shared) < 2 * _PAIR or passive(a) != passive(b):
        return False
    nearest_a, nearest_b = (_company(places, shared) for places in (one, other))
    for x, y in combinations(shared, 2):
        if _neighbours(one, other, x, y):
            continue
        with_x = [w for w in nearest_a[x] if w != y and _nearer(one, w, x, y) and _nearer(other, w, y, x)]
        with_y = [w for w in nearest_a[y] if w != x and _nearer(one, w, y, x) and _nearer(other, w, x, y)]
        for v in with_x:
            for w in with_y:
                if v in nearest_b[y] and w in nearest_b[x] and _are_exchanged(one, other, (x, v), (y, w)):
                    return True
    return False


def _are_exchanged(a: _Places, b: _Places, first: tuple[str, str], second: tuple[str, str]) -> bool:
    """`a` has the pairs `first` and `second`; `b` has them with their second words exchanged, and as plainly."""
    (x, v), (y, w) = first, second
    if v == w or _neighbours(a, b, v, w):
        return False
    if not (_nearer(a, x, v, w) and _nearer(a, y, w, v) and _nearer(b, x, w, v) and _nearer(b, y, v, w)):
        return False
    if not (_apart(a, (x, v), (y, w)) and _apart(b, (x, w), (y, v))):
        return False
    return _follows(a, x, v) == _follows(a, y, w) and _follows(b, x, w) == _follows(b, y, v)


def _company(places: _Places, shared: list[str]) -> dict[str, frozenset[str]]:
    return {x: frozenset(w for w in shared if w != x and _gap(places, x, w) <= _NEAR) for x in shared}


def _gap(places: _Places, x: str, y: str) -> float:
    return abs(places.at[x] - places.at[y])


def _nearer(places: _Places, word: str, to: str, than: str) -> bool:
    return _gap(places, word, to) + _MARGIN < _gap(places, word, than)


def _follows(places: _Places, x: str, y: str) -> bool:
    return places.at[x] < places.at[y]


def _apart(places: _Places, first: tuple[str, str], second: tuple[str, str]) -> bool:
    """Whether one pair ends before the other begins."""
    ends = [sorted(places.at[word] for word in pair) for pair in (first, second)]
    return ends[0][1] < ends[1][0] or ends[1][1] < ends[0][0]


def _neighbours(a: _Places, b: _Places, x: str, y: str) -> bool:
    """No topic word between them, in neither text: "tap water", "water from the tap", which moves as one."""
    return abs(a.rank[x] - a.rank[y]) == abs(b.rank[x] - b.rank[y]) == 1


@lru_cache(maxsize=4_096)
def _places(text: str) -> _Places:
    at, end, rank = 0.0, 0, 0
    found: dict[str, list[float]] = {}
    ranks: dict[str, int] = {}
    for word in words(text):
        if word.form:
            at += _PAUSE * len(_PAUSES.findall(text[end : word.start]))
            end = word.start + len(word.form)
        at += 1.0
        if word.text in _JOINS:
            at += _JOINED
        if topic := _topic(word.text):
            found.setdefault(topic, []).append(at)
            ranks.setdefault(topic, rank)
            rank += 1
    at_once = {word: places[0] for word, places in found.items() if len(places) == 1}
    return _Places(at_once, ranks, {word: len(places) for word, places in found.items()})


def named_oftener(a: Facts, b: Facts) -> bool:
    """One of two that both texts name is named oftener in `a`, the other in `b`: each says more of another one.

    "The nurse told the patient … is the nurse late" and "… is the patient late"; all words are the same but one more.
    """
    one, other = _places(a.text).times, _places(b.text).times
    oftener = [one[word] - other[word] for word in one.keys() & other.keys()]
    return bool(oftener) and min(oftener) < 0 < max(oftener)


def _topic(word: str) -> str:
    """ "" for what is none."""
    empty = word in _EMPTY or word in _JOINS or (word.endswith("ly") and len(word) > 4)
    return "" if empty else _COUNTS.get(word) or stem(word)


def governed_by_other(a: Facts, b: Facts) -> bool:
    """After the same preposition another thing, and each thing in both texts: "apps for X on Y", "for Y on X"."""
    both = _GOVERNING.intersection(a.words, b.words)
    if not both or passive(a) != passive(b):
        return False
    if not (_DIFFERS | MUTUAL).isdisjoint((*a.words, *a.stems, *b.words, *b.stems)):
        return False
    for word in both:
        one, other = _after(a, word), _after(b, word)
        if one & b.content_set and other & a.content_set and not one & other:
            return True
    return False


def _after(facts: Facts, word: str) -> frozenset[str]:
    """The topic words right after `word`; none where it is there twice."""
    if facts.words.count(word) > 1:
        return frozenset()
    at = facts.words.index(word) + 1
    found: set[str] = set()
    for plain, stemmed in zip(facts.words[at : at + _AHEAD], facts.stems[at:], strict=False):
        if stemmed in facts.content_set and plain not in _GOVERNING:
            found.add(stemmed)
        elif found or plain not in _BEFORE_NOUN:
            break
    return frozenset(found)


def owned_by_other(a: Facts, b: Facts) -> bool:
    """ "The cover of the book" is "the book's cover", and not the book of the cover."""
    one = _owned(a)
    other = _owned(b) if one else one
    return any((y, x) in other and (y, x) not in one and (x, y) not in other for x, y in one)


def _owned(facts: Facts) -> frozenset[tuple[str, str]]:
    """(whose, what). A week owns nothing: "a week's work" is a week of work."""
    found = {(stem(who), stem(what)) for who, what in _OWNS.findall(facts.text.casefold())}
    for at, word in enumerate(facts.words[1:-1], 1):
        if word == "of" and facts.stems[at - 1] in facts.content_set:
            owner = next((x for x in facts.words[at + 1 : at + 1 + _WHOSE] if x not in _BEFORE_NOUN), "")
            if stem(owner) in facts.content_set:
                found.add((stem(owner), facts.stems[at - 1]))
    return frozenset((who, what) for who, what in found if who != what and "span" not in KIND_OF.get(who, ()))
