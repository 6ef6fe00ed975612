"""Small words that relate things: what a quantity is for, who has which part, what comes when, what `only` points at.

Knows two texts' facts and closed classes of words. Does not parse; where the topic differs it says nothing.
"""

import re
from itertools import pairwise

from policies.reuse.english import Number, bag, stem
from policies.reuse.facts import Facts
from policies.reuse.lexicon import KINDS
from policies.reuse.roles import passive

# What a connective can mean; two that share no meaning say different things.
_MEANINGS = {
    word: frozenset(meanings.split())
    for words, meanings in (
        ("if", "case once-if"),
        ("whether", "case asks"),
        ("when", "case at after against"),
        ("whenever", "case at after"),
        ("once", "at after once-if"),
        ("after following afterwards afterward subsequently post", "after"),
        ("before prior preceding ahead beforehand pre", "before"),
        ("until till", "before until"),
        ("while whilst", "at against"),
        ("during amid", "at"),
        ("since", "after cause"),
        ("because", "cause"),
        ("although though despite", "against"),
        ("unless", "unless"),
    )
    for word in words.split()
}
_SEQUENCE = bag("then before after until because than instead so while unless although")
_BEFORE = bag("before prior preceding until till")
_BEFORE_STEMS = frozenset(stem(word) for word in _BEFORE)
_ONE_SIDED = bag("if unless because")
_MONTHS = frozenset(stem(word) for word in KINDS["month"]) | {stem("may")}
_COUNTED_ONCE = bag("a an per every each in daily weekly monthly yearly again more")
# "by 20 percent" and "to 20 percent", "until 1714" and "since 1714"
_AIMS = {"by": "by", "to": "to", "until": "to", "till": "to", "from": "from", "since": "from", "after": "from"}
_HOW_MANY = {("how", "many"), ("how", "much"), ("number", "of"), ("amount", "of")}
_BEFORE_COUNTED = bag("the a an of us usa my our these those")
_JOINS = bag("and or")
_HOW_LONG = re.compile(r"\bhow long (before|until|till)\b")
_SLASHED = re.compile(r"[^\W\d_]{2}/[^\W\d_]{2}")
_AGAINST = bag("vs versus")
_MANY = bag("men women children people feet teeth mice")
_ORDINAL_WORDS = bag("first second third fourth fifth sixth seventh eighth ninth tenth")


_BOUNDS = (
    (
        "most",
        re.compile(r"\b(?:at most|no (?:more|later|longer|larger|older) than|up to|maximum of|or (?:less|fewer))\b"),
    ),
    ("least", re.compile(r"\b(?:at least|no (?:less|fewer|earlier|younger) than|minimum of|or more|more than)\b")),
    ("most", re.compile(r"\b(?:less|fewer) than\b")),
    ("exact", re.compile(r"\b(?:exactly|precisely)\b")),
)


def aimed_elsewhere(a: Facts, b: Facts) -> bool:
    """Whether one quantity is a goal here, a step or a start there."""
    aims_a, aims_b = ({(n.value, _AIMS[n.precedes]) for n in facts.numbers if n.precedes in _AIMS} for facts in (a, b))
    return any(value == other and aim != aims for value, aim in aims_a - aims_b for other, aims in aims_b - aims_a)


def numbered(a: Facts, b: Facts) -> bool:
    """Whether `a` counts what `b` only numbers or divides: "ten batches", "batches of ten", "room 3"."""
    for item in a.numbers:
        counted = _what(a, item)
        if counted in _MONTHS or item.text in _ORDINAL_WORDS:
            continue  # "14 May" and "May 14"
        for other in b.numbers if counted else ():
            if other.value == item.value and stem(other.follows) != counted:
                at = b.words.index(other.text.split()[0])
                if counted in b.stems[max(0, at - 2) : at]:
                    return True
    return False


def counts_exchanged(a: Facts, b: Facts) -> bool:
    """Whether two counts have changed what they count: "3 floors and 2 baths", "2 floors and 3 baths"."""
    counted_a, counted_b = _counted(a), _counted(b)
    return any(counted_a[what] != counted_b[what] for what in counted_a.keys() & counted_b.keys())


def asked_of_other(a: Facts, b: Facts) -> bool:
    """Whether it is asked how many of one thing in the other: pints in an ounce, ounces in a pint."""
    one, other = _asked_count(a), _asked_count(b)
    return bool(one and other) and not one & other and one <= b.content_set and other <= a.content_set


def _asked_count(facts: Facts) -> frozenset[str]:
    """The topic words that "how many" or "the number of" counts; none where more than one thing may be meant."""
    at = next((i for i, pair in enumerate(pairwise(facts.words)) if pair in _HOW_MANY), len(facts.words))
    found: list[str] = []
    for word, stemmed in zip(facts.words[at + 2 :], facts.stems[at + 2 :], strict=True):
        if stemmed in facts.content_set:
            found.append(stemmed)
        elif word in _JOINS:
            return frozenset()
        elif found or word not in _BEFORE_COUNTED:
            break
    return frozenset(found)


def _counted(facts: Facts) -> dict[str, set[float]]:
    counted: dict[str, set[float]] = {}
    for item in facts.numbers:
        if what := _what(facts, item):
            counted.setdefault(what, set()).add(item.value)
    return counted


def _what(facts: Facts, item: Number) -> str:
    """The stem of what is counted; "" where a number only stands before a word: "a 500 error", "Windows 11 update"."""
    follows = item.follows
    many = (follows.endswith("s") and follows not in _AGAINST) or follows in _MANY
    counts = many or item.value == 1.0 or not item.text[0].isdigit()
    return what if counts and (what := stem(follows)) in facts.content_set else ""


def other_bound(a: Facts, b: Facts) -> bool:
    """At least so many here, at most or exactly so many there."""
    if not a.numbers or not b.numbers:
        return False
    bound_a, bound_b = _bound(a), _bound(b)
    return bool(bound_a and bound_b and bound_a != bound_b)


def _bound(facts: Facts) -> str:
    said = " ".join(facts.words)
    return next((name for name, pattern in _BOUNDS if pattern.search(said)), "")


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


def other_connective(a: Facts, b: Facts) -> bool:
    """Before, while, after, if, unless, because: one here and one there that cannot mean the same; or another "if"."""
    only_a, only_b = _connectives(a) - _connectives(b), _connectives(b) - _connectives(a)
    if only_a and only_b:
        senses_a, senses_b = (frozenset[str]().union(*(_MEANINGS[word] for word in x)) for x in (only_a, only_b))
        if not senses_a & senses_b:
            return True
    if (
        (a.content_set ^ b.content_set) <= _BEFORE_STEMS
        and bool(only_a) != bool(only_b)
        and (only_a | only_b) <= _BEFORE
    ):
        return True  # "the year before the war", "the year of the war"
    return (
        a.content_set == b.content_set
        and passive(a) == passive(b)
        and any(_next_topic(a, word) != _next_topic(b, word) for word in _ONE_SIDED & set(a.words) & set(b.words))
    )


def _connectives(facts: Facts) -> frozenset[str]:
    """A `when` that asks is none, and neither is a `once` that counts, nor `before` in "how long before it comes"."""
    found = {word for word in facts.words if word in _MEANINGS}
    if facts.question == "when":
        found.discard("when")
    if facts.question == "duration" and (begun := _HOW_LONG.search(" ".join(facts.words))):
        found.discard(begun[1])
    if "once" in found:
        after = facts.words[facts.words.index("once") + 1 :][:1]
        if not after or after[0] in _COUNTED_ONCE:
            found.discard("once")
    return frozenset(found)


def _next_topic(facts: Facts, word: str) -> str | None:
    at = facts.words.index(word)
    return next((stem for stem in facts.stems[at + 1 :] if stem in facts.content_set), None)


def either_or_both(a: Facts, b: Facts) -> bool:
    """One of two here, both there: "students or seniors", "students who are seniors", "cheap but good"."""
    return a.content_set == b.content_set and _has_choice(a) != _has_choice(b)


def _has_choice(facts: Facts) -> bool:
    """ "Is it free or not" is "is it free", "upgrade/downgrade" is "upgrade or downgrade"."""
    return ("or", "not") not in pairwise(facts.words) and ("or" in facts.words or bool(_SLASHED.search(facts.text)))


def turned_about(a: Facts, b: Facts) -> bool:
    """What comes first here comes last there: "warm up, then drive", "drive, then warm up"."""
    if a.content_set != b.content_set:
        return False
    for word in _SEQUENCE.intersection(a.words, b.words):
        (early_a, late_a), (early_b, late_b) = _parted(a, word), _parted(b, word)
        if early_a - late_a and early_b - late_b and early_a & late_b and early_b & late_a:
            return not early_a & early_b
    return False


def _parted(facts: Facts, word: str) -> tuple[frozenset[str], frozenset[str]]:
    """Topic words before and after `word`."""
    at = facts.words.index(word)
    return frozenset(facts.stems[:at]) & facts.content_set, frozenset(facts.stems[at + 1 :]) & facts.content_set


def focused_elsewhere(a: Facts, b: Facts) -> bool:
    only_a, only_b = a.focus - b.focus, b.focus - a.focus
    return any(
        one == other and first in b.content_set and second in a.content_set
        for one, first in only_a
        for other, second in only_b
    )
