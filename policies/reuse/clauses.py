"""Who does what to whom, clause by clause: "whom did Plato teach" and "who was taught by Plato" say the same, "who
taught Plato" does not.

Knows auxiliaries, `by`, question words, relative pronouns and "the N of". Does not parse: a clause that has none of the
forms below is not read, and where one party of a clause is not found nothing is said about it.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

from policies.reuse.english import bag, stem
from policies.reuse.facts import Facts
from policies.reuse.lexicon import SYNONYMS
from policies.reuse.roles import MUTUAL, is_participle
from policies.reuse.roots import related

_BE = bag("is are was were be been being am")
_GET = bag("get gets got gotten getting")
_HELP = bag("do does did can could should would will may might must shall has have had")
_ASKED = bag("who whom which what whose")
_RELATIVE = bag("that who whom which")
_BEFORE_NOUN = bag(
    "the a an my your his her our their its this that these those any some all no every each own another other same"
)
_ARTICLES = bag("the a an my your his our their its no every some any of")
_BESIDE_VERB = bag(
    "ever also still just really not never always often already first then now only even actually legally once"
)
# What may stand between a subject and its verb.
_PASSED_OVER = _BESIDE_VERB | _HELP | bag("to be been being allowed permitted able supposed entitled allow")
_PRONOUNS = {
    **dict.fromkeys(("i", "me", "myself"), "i"),
    **dict.fromkeys(("you", "yourself"), "you"),
    **dict.fromkeys(("he", "him", "himself"), "he"),
    **dict.fromkeys(("she", "her", "herself"), "she"),
    **dict.fromkeys(("we", "us", "ourselves"), "we"),
    **dict.fromkeys(("they", "them", "themselves"), "they"),
    "it": "it",
}
# No noun phrase goes on past one of these.
_ENDS = (
    bag(
        "in on at for with about into from to by under over after before during against without through between than "
        "as and or but if because while then so not when where why how who whom which what whose that there"
    )
    | _BE
    | _HELP
    | _GET
)
_HELPERS = _BE | _GET | _HELP
_BEFORE_PASSIVE = _BE | _GET
_NOT_BETWEEN = _ENDS - {"not"}
_BEFORE_NAMED = _BEFORE_NOUN | _ENDS
# What follows `by` without doing anything.
_NOBODY = bag("default hand law mistake accident chance now then mail post email phone train car bus plane far itself")
# Verbs that say nothing of the topic, and yet of whom it is about.
_COMMON = frozenset(stem(word) for word in bag("call show give tell ask help send owe pay teach lend"))
_TOWARDS = bag("to into onto")
_NEW_CLAUSE = bag("and but if because when while how why where who whom which what that so then")
_FAR = 11
_OBLIQUE = bag("on to at upon under of")
_WHO = "?"
_EMPTY = bag("something somebody someone anything anybody anyone one thing")
_LONGEST = 6


class Clause(NamedTuple):
    """`verb` or the noun that relates them, as a stem, and the words for each party: who does it, to whom it is done,
    what it becomes or goes to, where it is from. `_WHO` is among the words of what is asked for."""

    verb: str
    agents: frozenset[str]
    patients: frozenset[str]
    goals: frozenset[str] = frozenset()
    sources: frozenset[str] = frozenset()

    @property
    def parties(self) -> tuple[frozenset[str], ...]:
        return self[1:]


def parts_exchanged(a: Facts, b: Facts) -> bool:
    """Whether of one doing two parties have changed places."""
    if not a.content_set & b.content_set:
        return False
    there = clauses(b)
    return any(_are_exchanged(one, other) for one in clauses(a) for other in _of_one_doing(one.verb, there))


def _of_one_doing(verb: str, there: tuple[Clause, ...]) -> Iterator[Clause]:
    """Clauses of the same verb, of a synonym, or of another form of it; none where both do it to each other."""
    if verb in MUTUAL:
        return
    alike, itself, begins = SYNONYMS.get(verb, ()), frozenset((verb,)), verb[:3]
    for other in there:
        same = other.verb == verb or other.verb in alike
        if (same or (other.verb[:3] == begins and related(other.verb, itself))) and other.verb not in MUTUAL:
            yield other


def _are_exchanged(one: Clause, other: Clause) -> bool:
    return any(
        _have_changed((one.parties[i], one.parties[j]), (other.parties[i], other.parties[j]))
        for i, j in combinations(range(len(one.parties)), 2)
    ) or _does_what_was_done(one, other)


def _have_changed(one: tuple[frozenset[str], frozenset[str]], other: tuple[frozenset[str], frozenset[str]]) -> bool:
    """Whether each of two parties has the other's part, and neither its own."""
    there, here = one[0] & other[1], one[1] & other[0]
    return bool(there and here and (there | here) - {_WHO}) and not one[0] & other[0] and not one[1] & other[1]


def _does_what_was_done(one: Clause, other: Clause) -> bool:
    """Where only one has changed parts the rest must be the same: "their employer's mail", "their staff's mail"."""
    if one.agents & other.agents or not one.patients & other.patients - {_WHO}:
        return False
    both = one.agents & one.patients | other.agents & other.patients | {_WHO}
    return bool((one.agents & other.patients | one.patients & other.agents) - both)


@lru_cache(maxsize=4_096)
def clauses(facts: Facts) -> tuple[Clause, ...]:
    """Those with two parties at least, in order."""
    found = (*_verbal(facts), *_nominal(facts), *_named_doings(facts))
    return tuple(clause for clause in found if sum(map(bool, clause.parties)) > 1)


def _verbal(facts: Facts) -> Iterator[Clause]:
    for i, word in enumerate(facts.words):
        if not i or not _may_be_verb(facts, i):
            continue
        helper = _helper(facts, i)
        if helper is not None and facts.words[helper] in _BEFORE_PASSIVE and not word.endswith("ing"):
            if is_participle(word):
                yield _clause(facts, i, _doers(facts, helper, i), _subject(facts, helper, i))
        elif helper is not None:
            between = _phrase(facts, range(helper + 1, i))
            found = _objects(facts, i, helper, inverted=bool(between))
            yield _clause(facts, i, between or _before(facts, helper), found)
        elif _is_alone(facts, i):
            yield _clause(facts, i, _before(facts, i), _objects(facts, i, i, inverted=False))


def _clause(facts: Facts, i: int, agents: frozenset[str], patients: frozenset[str]) -> Clause:
    """With what `to`, `into` and `from` say after the verb at `i`."""
    goals = sources = frozenset[str]()
    for j in range(i + 1, min(i + _FAR, len(facts.words))):
        if facts.words[j] in _NEW_CLAUSE:
            break
        if facts.words[j] in _TOWARDS:
            goals = goals or _after(facts, j)
        elif facts.words[j] == "from":
            sources = sources or _after(facts, j)
    return Clause(facts.stems[i], agents, patients, goals - patients, sources - patients)


def _may_be_verb(facts: Facts, i: int) -> bool:
    base = facts.stems[i]
    if (base not in facts.content_set and base not in _COMMON) or base in facts.names:
        return False
    if facts.words[i] in _BESIDE_VERB or _is_adverb(facts, i):
        return False
    return facts.words[i - 1] not in _ARTICLES and facts.words[i + 1 : i + 2] != ("of",)


def _is_alone(facts: Facts, i: int) -> bool:
    """Whether the word at `i` is a verb without an auxiliary: after `to`, or where who does it is asked for, is a
    person, a name, or the antecedent of a clause. "Unsaved documents" have none of these."""
    word, before = facts.words[i], facts.words[i - 1]
    if before in ("to", "who"):
        return True
    if word.endswith("ing"):
        return False
    after = facts.words[i + 1 : i + 2]
    if before in _ASKED:
        return before == "what" and word != facts.stems[i] and _HELP.isdisjoint(after)
    subject, j = _phrase_back(facts, i - 1)
    if _WHO in subject:
        return True
    if word == facts.stems[i]:
        return False
    return (
        before in _PRONOUNS
        or (j > 0 and facts.words[j] in _RELATIVE)
        or facts.stems[i - 1] in facts.names
        or not _ASKED.isdisjoint(after)
    )


def _helper(facts: Facts, i: int) -> int | None:
    """The auxiliary that belongs to the verb at `i`: next to it, or with a subject between that is no clause itself."""
    for j in range(i - 1, max(-1, i - 2 - _LONGEST), -1):
        word = facts.words[j]
        if word in _HELPERS:
            return j
        if word in _PRONOUNS and any(stem in facts.content_set for stem in facts.stems[j + 1 : i]):
            return None  # "can I use expired …": the verb is `use`
        if word in _NOT_BETWEEN or (word not in _BESIDE_VERB and _looks_finite(facts, j)):
            return None
    return None


def _looks_finite(facts: Facts, j: int) -> bool:
    return facts.words[j].endswith("ed") and len(facts.words[j]) > 4 and facts.stems[j] in facts.content_set


def _subject(facts: Facts, helper: int, i: int) -> frozenset[str]:
    """Between auxiliary and verb in a question, before the auxiliary elsewhere."""
    return _phrase(facts, range(helper + 1, i)) or _before(facts, helper)


def _before(facts: Facts, i: int) -> frozenset[str]:
    """The noun phrase that ends before `i`, with what introduces it where that is asked for."""
    j = i - 1
    while j >= 0 and (facts.words[j] in _PASSED_OVER or _is_adverb(facts, j)):
        j -= 1
    if j >= 0 and facts.words[j] in _ASKED:
        return _antecedent(facts, j) | {_WHO}  # relative or asking: commas are not words
    if j >= 0 and facts.words[j] == "that":
        return _antecedent(facts, j)
    return _phrase_back(facts, j)[0]


def _antecedent(facts: Facts, j: int) -> frozenset[str]:
    """What the relative pronoun at `j` stands for; nothing where it asks."""
    return _phrase_back(facts, j - 1)[0] if j else frozenset()


def _is_adverb(facts: Facts, j: int) -> bool:
    return facts.words[j].endswith("ly") and len(facts.words[j]) > 4


def _phrase_back(facts: Facts, j: int) -> tuple[frozenset[str], int]:
    """The noun phrase that ends at `j`, and where what stands before it ends."""
    end = j
    while j >= 0 and end - j < _LONGEST and facts.words[j] not in _ENDS:
        j -= 1
    found = _phrase(facts, range(j + 1, end + 1))
    if j >= 0 and found and facts.words[j] in ("which", "what", "whose"):
        return found | {_WHO}, j - 1
    if found and found <= _EMPTY | {_WHO} and j > 0 and facts.words[j] in _BE:
        return _phrase_back(facts, j - 1)
    return found, j


def _phrase(facts: Facts, span: range) -> frozenset[str]:
    """The topic words and persons of a stretch that is one noun phrase, with other names for them."""
    found: set[str] = set()
    for k in span:
        word, base = facts.words[k], facts.stems[k]
        if word in _PRONOUNS:
            found.add(_PRONOUNS[word])
        elif base in facts.content_set or base in _EMPTY:
            found |= {base, *SYNONYMS.get(base, ())}
    return frozenset(found)


def _after(facts: Facts, i: int) -> frozenset[str]:
    """The noun phrase that begins after `i`."""
    j = i + 1
    while j < len(facts.words) and facts.words[j] in _BESIDE_VERB:
        j += 1
    if j < len(facts.words) and facts.words[j] in _ASKED:
        return frozenset({_WHO})
    start = j
    while j < len(facts.words) and j - start < _LONGEST and facts.words[j] not in _ENDS:
        j += 1
    return _phrase(facts, range(start, j))


def _objects(facts: Facts, i: int, helper: int, *, inverted: bool) -> frozenset[str]:
    """What stands after the verb at `i`, and what was fronted: "whom did …", "the country that …"."""
    found = _after(facts, i)
    if inverted and helper:
        return _fronted(facts, helper, found)
    if found or inverted:
        return found
    _, j = _phrase_back(facts, i - 1 if helper == i else helper - 1)
    if j <= 0 or facts.words[j] not in _RELATIVE:
        return found
    asked = not _ASKED.isdisjoint(facts.words[:j])
    return _antecedent(facts, j) | (frozenset({_WHO}) if asked else found)


def _fronted(facts: Facts, helper: int, found: frozenset[str]) -> frozenset[str]:
    """What a question asks for before its auxiliary, where nothing but `found` follows the verb."""
    before = facts.words[helper - 1]
    if before in ("who", "whom"):
        return found | {_WHO}
    if found:
        return found
    if before == "what":
        return frozenset({_WHO})
    fronted, _ = _phrase_back(facts, helper - 1)
    return fronted if _WHO in fronted else found


def _doers(facts: Facts, helper: int, i: int) -> frozenset[str]:
    """Of a passive: after `by`, or "by whom" and "who … by" in front."""
    for j in range(i + 1, min(i + 2 + _LONGEST, len(facts.words))):
        if facts.words[j] == "by":
            if not _NOBODY.isdisjoint(facts.words[j + 1 : j + 2]):
                return frozenset()
            asked = not _ASKED.isdisjoint(facts.words[:helper])
            return _after(facts, j) or frozenset({_WHO} if asked else ())
    for j in range(helper):
        if facts.words[j] == "by" and j + 1 < helper and facts.words[j + 1] in _ASKED:
            return _phrase(facts, range(j + 2, helper)) | {_WHO}
    return frozenset()


def _nominal(facts: Facts) -> Iterator[Clause]:
    """ "Was Socrates a student of Plato", "who was the father of Zeus", "Zeus was the father of whom"."""
    words = facts.words
    for i in range(1, len(words) - 1):
        if words[i + 1] != "of" or facts.stems[i] not in facts.content_set:
            continue
        of = _after(facts, i + 1)
        j = i - 1
        while j >= 0 and facts.words[j] not in _BEFORE_NAMED:
            j -= 1
        if j < 0 or not of:
            continue
        at = j if words[j] in _BE else j - 1
        if at >= 0 and words[at] in _BE:
            holder = _before(facts, at)
        else:
            helper = next((k for k in range(at, max(-1, at - _LONGEST), -1) if words[k] in _BE), None)
            holder = _phrase(facts, range(helper + 1, at + 1)) if helper is not None else frozenset[str]()
        yield from (Clause(name, holder, of) for name in _named(facts.stems[i]))


def _named(noun: str) -> Iterator[str]:
    """The noun, and the verb it comes from: a teacher teaches."""
    yield f"{noun} of"
    for ending, more in (("er", ""), ("er", "e"), ("or", ""), ("or", "e")):
        if noun.endswith(ending) and len(noun) > 5:
            yield stem(noun.removesuffix(ending) + more)


def _named_doings(facts: Facts) -> Iterator[Clause]:
    """ "The conquest of Greece by Rome", "Rome's conquest of Greece", "the effect of statins on the liver", "what
    effect do statins have on the liver"."""
    words = facts.words
    for i in range(1, len(words) - 2):
        if words[i + 1] == "of" and facts.stems[i] in facts.content_set:
            of = _after(facts, i + 1)
            joined = next(
                (j for j in range(i + 3, min(i + 3 + _LONGEST, len(words))) if words[j] in ("by", "on")), None
            )
            if joined is not None and words[joined] == "by":
                yield Clause(facts.stems[i], _after(facts, joined), of)
            elif joined is not None:
                yield Clause(facts.stems[i], of, _after(facts, joined))
            elif facts.stems[i - 1] in facts.names:
                yield Clause(facts.stems[i], _phrase(facts, range(i - 1, i)), of)
        elif words[i] == "have" and words[i + 1] == "on" and (helper := _helper(facts, i)):
            for noun in _phrase_back(facts, helper - 1)[0] & facts.content_set:
                yield Clause(noun, _subject(facts, helper, i), _after(facts, i + 1))
