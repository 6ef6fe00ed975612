"""Small words beside a topic word that make another thing of it: to or from, near or inside, sign up or sign in.

Knows prepositions before a word both texts share, and particles after a verb both share. Does not parse; where only one
text has such a word it says nothing.
"""

from policies.reuse.english import bag, stem
from policies.reuse.facts import Facts
from policies.reuse.lexicon import KIND_OF

_PARTICLES = bag("up down out off in on over away back through")
_SAME = bag("in on")
# After one verb these can mean the same: "log in" and "log on", "fill in", "fill out" and "fill up".
_ALIKE = {"fill": bag("in out up"), "top": bag("up off"), "shut": bag("down off"), "power": bag("down off")}
# These stand before a noun as well: particles they are only at the end, or before one of those.
_DOUBTFUL, _ENDING = bag("in on through"), bag("to with at from and or again please using by for when")
_MEANINGS = {
    **dict.fromkeys(("from", "off"), "from"),
    **dict.fromkeys(("to", "into", "onto", "toward", "towards"), "to"),
    "for": "for",
    "by": "by",
    "about": "about",
    **dict.fromkeys(("near", "nearby", "beside", "around"), "near"),
    **dict.fromkeys(("inside", "within"), "inside"),
    "outside": "outside",
    "behind": "behind",
    **dict.fromkeys(("above", "over"), "above"),
    **dict.fromkeys(("under", "below", "beneath", "underneath"), "under"),
    "between": "between",
    "opposite": "opposite",
    "through": "through",
}
_PLACES = bag("near inside outside behind above under between opposite")
_CLASHES = frozenset(
    frozenset(pair)
    for pair in (
        *(("from", "to"), ("by", "to"), ("by", "for"), ("by", "about"), ("from", "about")),
        *((one, other) for one in _PLACES for other in _PLACES if one < other),
    )
)
_BETWEEN = bag("the a an my your his her our their its this that these those all any some")


def placed_elsewhere(a: Facts, b: Facts) -> bool:
    """The same word with another preposition: "mail from Anna" and "mail to Anna", "near" and "inside the station"."""
    if a.content_set != b.content_set:
        return False
    before_a, before_b = _prepositions(a), _prepositions(b)
    for word in before_a.keys() & before_b.keys():
        one, other = before_a[word], before_b[word]
        if _clash(one, other) or ({*one, *other} == {"from", "for"} and _is_person(word, a)):
            return True
    return False


def other_particle(a: Facts, b: Facts) -> bool:
    """The same verb with another particle: "sign up" and "sign in", "take out" and "take over a loan"."""
    after_a, after_b = _particles(a), _particles(b)
    for verb in after_a.keys() & after_b.keys():
        both = after_a[verb] | after_b[verb]
        alike = both <= _ALIKE.get(verb, _SAME)
        if not after_a[verb] & after_b[verb] and not alike:
            return True
    return False


def _clash(one: frozenset[str], other: frozenset[str]) -> bool:
    return not one & other and all(frozenset((x, y)) in _CLASHES for x in one for y in other)


def _is_person(word: str, facts: Facts) -> bool:
    return word in facts.names or bool(KIND_OF.get(word, frozenset()) & {"family", "given name"})


def _prepositions(facts: Facts) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for i, word in enumerate(facts.words):
        meaning = _MEANINGS.get(word)
        if meaning is None:
            continue
        for j in range(i + 1, min(i + 4, len(facts.words))):
            if facts.stems[j] in facts.content_set and not facts.words[j].endswith("ing"):
                found[facts.stems[j]] = found.get(facts.stems[j], frozenset()) | {meaning}
            if facts.words[j] not in _BETWEEN:
                break
    return found


def _particles(facts: Facts) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for i, word in enumerate(facts.words[1:], 1):
        after = facts.words[i + 1 : i + 2]
        if word in _PARTICLES and not (word in _DOUBTFUL and after and after[0] not in _ENDING):
            # "log back in" is "log in"
            verb = facts.stems[i - 1]
            if word == "back" and after and after[0] in _PARTICLES:
                continue
            if verb == "back" and i > 1 and facts.stems[i - 2] not in _NO_VERBS:
                verb = facts.stems[i - 2]
            if verb.isalpha() and verb not in _NO_VERBS:
                found[verb] = found.get(verb, frozenset()) | {word}
    return found


_NO_VERBS = frozenset(
    stem(word) for word in bag("i you he she it we they me him us them is are was were be the a an and or so to not do")
)
