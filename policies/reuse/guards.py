"""Reasons why a near text must not be answered with a kept one: pure functions of two texts' facts, each with a name.

A guard can only forbid. It is free to be wrong in that direction: then the model is asked, which costs a little. None
of them needs a model; together they stop what no similarity threshold can, since embeddings of "with" and "without",
Monday and Tuesday, or a name and another are nearly the same.
"""

from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise

from policies.reuse.agents import asks_for_other, other_agent, other_owner, other_person
from policies.reuse.bonds import crossed, governed_by_other, named_oftener, owned_by_other
from policies.reuse.clauses import parts_exchanged
from policies.reuse.days import other_days
from policies.reuse.english import Number, bag, stem
from policies.reuse.facts import Facts, analyse
from policies.reuse.lexicon import (
    AMBIGUOUS,
    COUNTED_KINDS,
    COUNTERPARTS,
    KIND_OF,
    KINDS,
    NAMING_KINDS,
    OPPOSITES,
    SYNONYMS,
)
from policies.reuse.moods import becoming, other_mood, other_time
from policies.reuse.phrases import changed_sides
from policies.reuse.places import other_particle, placed_elsewhere
from policies.reuse.relations import (
    aimed_elsewhere,
    asked_of_other,
    counts_exchanged,
    either_or_both,
    focused_elsewhere,
    numbered,
    other_bound,
    other_connective,
    recast,
    turned_about,
)
from policies.reuse.roles import swapped
from policies.reuse.roots import related
from policies.reuse.signs import other_case, other_signs, other_sums, other_symbols, unquoted
from policies.reuse.unexplained import differs

Guard = Callable[[Facts, Facts], bool]

# Kinds of answer that never serve for one another; "how" and "what" overlap too much to be told apart.
_FIRM_QUESTIONS = bag(
    "when where why who count amount duration frequency distance age height size speed weight width depth temperature"
)
# What else each may be asked as: "why" and "for what reason", "when" and "in what year".
_LOOSE = {
    "count": frozenset(("what", "amount")),
    "amount": frozenset(("what", "count")),
    "duration": frozenset(("what", "when")),
    "frequency": frozenset(("what", "when")),
    "speed": frozenset(("what", "how")),
    "why": frozenset(("what", "how")),
    "where": frozenset(("what", "how")),
}
_ANY = frozenset(("what",))
# Yes-or-no questions that ask for leave, advice, duty or a forecast.
_MODAL_CLASHES = {
    frozenset(pair)
    for pair in (
        ("can", "should"),
        ("can", "must"),
        ("should", "must"),
        ("should", "will"),
        ("must", "will"),
        ("should", "was"),
    )
}
_NEGATIVE_PREFIXES = ("un", "in", "im", "il", "ir", "dis", "non", "mis", "de", "anti")
# "switch the light" and "switch the light off": the particle is the request.
_PARTICLES = frozenset(("off", "up", "down"))
_SWITCHES = frozenset(stem(word) for word in ("switch", "turn", "power", "shut", "dim", "put", "set", "make"))
_ENDED = frozenset(
    stem(word) for word in ("disable", "deactivate", "shutoff", "shut", "stop", "kill", "end", "cancel", "off")
)
# "this one", "which one": a pronoun, not a quantity.
_ONE_AFTER = bag("this that which the new any another right wrong each every old good better best other no")
_QUANTIFIERS = {
    **dict.fromkeys(("all", "every", "each", "always", "everyone", "everything"), "all"),
    **dict.fromkeys(("some", "any", "few", "several", "sometimes", "couple"), "some"),
    **dict.fromkeys(("only", "just", "solely"), "only"),
    **dict.fromkeys(("most", "mostly", "usually"), "most"),
    **dict.fromkeys(("both",), "both"),
    **dict.fromkeys(("either",), "either"),
    **dict.fromkeys(("least",), "least"),
    **dict.fromkeys(("no", "none", "nobody"), "none"),
}
_PHRASES = {("one", "of"): "one", ("every", "other"): "alternate"}
_SHARES = frozenset(("percent", "percentage"))
_IS = frozenset(("is", "are", "was", "were"))
# Units that are members of no kind: "five times" is not "five minutes".
_UNITS = frozenset(stem(word) for word in ("am", "pm", "%", "percent", "time"))
_INJECTION = (
    "ignore previous",
    "ignore all previous",
    "ignore the above",
    "disregard previous",
    "disregard the above",
    "system prompt",
    "you are now",
    "new instructions",
    "forget your instructions",
)


def language(a: Facts, b: Facts) -> bool:
    """Texts that are not English: what is known here does not apply to them."""
    return a.foreign or b.foreign


def injection(a: Facts, b: Facts) -> bool:
    """Texts that talk to the model about its instructions neither give nor get answers by meaning."""
    return any(phrase in facts.text.lower() for facts in (a, b) for phrase in _INJECTION)


def length(a: Facts, b: Facts) -> bool:
    """One text holds much more than the other: what it adds can change everything (or hide a target prompt)."""
    short, long = sorted((len(a.words), len(b.words)))
    return long > 2 * short + 4


def number(a: Facts, b: Facts) -> bool:
    """Other quantities, ordinals, times, years, percentages; or the same quantity of something else, or in another
    part: by 20 and to 20, batches of ten and ten batches."""
    values_a, values_b = _values(a.numbers, b.numbers), _values(b.numbers, a.numbers)
    if values_a != values_b:
        return True
    if other_sums(a.marks, b.marks) or counts_exchanged(a, b) or other_bound(a, b):
        return True
    if aimed_elsewhere(a, b) or numbered(a, b) or numbered(b, a):
        return True
    units_a, units_b = _carried(a.numbers), _carried(b.numbers)
    return any(
        units_a[value] and units_b[value] and not units_a[value] & _also(units_b[value])
        for value in units_a.keys() & units_b.keys()
    )


def date(a: Facts, b: Facts) -> bool:
    """Other days, months, seasons or parts of the day, and also one more of them; what is and what was."""
    if other_days(a, b):
        return True
    return becoming(a, b) or (_is_one_topic(a, b) and other_time(a, b))


def negation(a: Facts, b: Facts) -> bool:
    """One says what the other denies.

    Speaking of failure may be the other's "not" ("did not go through", "was declined"), unless both speak of it. Where
    the topic words are the same, two turnings are told from one.
    """
    if bool(a.negations) != bool(b.negations):
        denying, other = (a, b) if a.negations else (b, a)
        return other.failures <= denying.stem_set
    if a.denied and b.denied and not a.denied & b.denied and a.denied <= set(b.words) and b.denied <= set(a.words):
        return True
    return a.negations % 2 != b.negations % 2 and a.content_set == b.content_set


def antonym(a: Facts, b: Facts) -> bool:
    """A word here, its opposite there: before/after, buy/sell, enable/disable, possible/impossible, turn on/off,
    sign up/sign in."""
    only_a, only_b = a.stem_set - b.stem_set, b.stem_set - a.stem_set
    if any(OPPOSITES.get(word, frozenset()) & only_b for word in only_a):
        return True
    if _is_prefixed(only_a, only_b) or _is_prefixed(only_b, only_a) or other_particle(a, b):
        return True
    if a.stem_set & _ENDED and b.stem_set & _ENDED:
        return False  # "shut the light off" and "turn it off"
    return a.stem_set & _PARTICLES != b.stem_set & _PARTICLES and bool(
        a.stem_set & _SWITCHES and b.stem_set & _SWITCHES
    )


def kind(a: Facts, b: Facts) -> bool:
    """Other members of one kind: red/blue, Paris/London, python/ruby, even in lower case; or one more of them."""
    return _adds_member(a, b) or _adds_member(b, a)


def name(a: Facts, b: Facts) -> bool:
    """A proper name here that the other does not mention, unless spelled out there (TTFT, time to first token)."""
    return any(_unknown_name(word, b) for word in a.names) or any(_unknown_name(word, a) for word in b.names)


def quote(a: Facts, b: Facts) -> bool:
    """Other quoted words, code, addresses, versions, operators or signs: exact things must match exactly.

    An encoder knows few emoji: it reads all others as one unknown token, so their texts have the same vector.
    """
    if a.operators != b.operators or other_symbols(a.symbols, _measured(a), b.symbols, _measured(b)):
        return True
    if other_signs(a.marks, b.marks) or other_case(a.marks, b.marks):
        return True
    return unquoted(a.quoted | a.codes, b.text) or unquoted(b.quoted | b.codes, a.text)


def _measured(facts: Facts) -> frozenset[str]:
    """The words that say of what an amount is, and those that ask for a share."""
    return frozenset(number.follows for number in facts.numbers) | _SHARES.intersection(facts.words)


def person(a: Facts, b: Facts) -> bool:
    """He or she or they; mine or yours; whom we hired or who hired us: whose matter it is."""
    if recast(a, b) or (_is_one_topic(a, b) and (other_agent(a, b) or other_owner(a, b))):
        return True
    if other_person(a, b):
        return True
    return (a.first, a.second) in {(True, False), (False, True)} and (a.second, a.first) == (b.first, b.second)


def question(a: Facts, b: Facts) -> bool:
    """When is not where, how many is not how long, and should is not can."""
    if a.question and b.question:
        if a.question == b.question:
            return other_mood(a, b) and _is_one_topic(a, b)
        return _is_firm(a.question, b.question) and _is_firm(b.question, a.question)
    if a.question or b.question or not a.polar or not b.polar:
        return False
    return frozenset((a.polar, b.polar)) in _MODAL_CLASHES


def logic(a: Facts, b: Facts) -> bool:
    """And against or, if against unless, all against some, before against after, only this against only that."""
    if other_connective(a, b) or focused_elsewhere(a, b) or either_or_both(a, b):
        return True
    has_a, has_b = set(a.words), set(b.words)
    if ("or" in has_a) != ("or" in has_b) and ("and" in has_a) != ("and" in has_b):
        return True
    amounts_a, amounts_b = _amounts(a), _amounts(b)
    return bool((amounts_a ^ amounts_b) - {"only"} and amounts_a and amounts_b)


def _amounts(facts: Facts) -> set[str]:
    """ "not any" is none."""
    found = {_QUANTIFIERS[word] for word in facts.words if word in _QUANTIFIERS}
    found |= {_PHRASES[pair] for pair in pairwise(facts.words) if pair in _PHRASES}
    return found - {"some"} | {"none"} if facts.negations and "any" in facts.words else found


def order(a: Facts, b: Facts) -> bool:
    """From A to B against from B to A; who bites whom; mail from her and mail to her."""
    found = swapped(a, b) or turned_about(a, b) or placed_elsewhere(a, b) or asked_of_other(a, b)
    found = found or asks_for_other(a, b) or changed_sides(a, b) or parts_exchanged(a, b)
    return found or named_oftener(a, b) or crossed(a, b) or governed_by_other(a, b) or owned_by_other(a, b)


def substitution(a: Facts, b: Facts) -> bool:
    """The same sentence with one topic word exchanged for another that is no known synonym of it."""
    only_a, only_b = unmatched(a, b), unmatched(b, a)
    if a.negations:
        only_b -= b.failures  # "did not go through" and "was declined"
    if b.negations:
        only_a -= a.failures
    return len(only_a) == 1 and len(only_b) == 1


def unexplained(a: Facts, b: Facts) -> bool:
    """A difference that is not known to change nothing."""
    return differs(a, b, unmatched(a, b), unmatched(b, a))


# In the order in which they are asked: cheap and telling ones first.
GUARDS: dict[str, Guard] = {
    "language": language,
    "injection": injection,
    "length": length,
    "number": number,
    "date": date,
    "negation": negation,
    "antonym": antonym,
    "kind": kind,
    "name": name,
    "quote": quote,
    "person": person,
    "question": question,
    "logic": logic,
    "order": order,
    "substitution": substitution,
    "unexplained": unexplained,
}


def forbids(a: Facts, b: Facts) -> str | None:
    """The name of the first guard that knows why `a` must not be answered with what was kept for `b`.

    `unexplained` knows no reason, only that there might be one: it asks for labels that excuse it, so it is left to
    the policy that learns.
    """
    if is_same(a, b):
        return None
    return next((name for name, guard in GUARDS.items() if name != "unexplained" and guard(a, b)), None)


def is_same(a: Facts, b: Facts) -> bool:
    """The same text but for letter case, where that says nothing."""
    return a.words == b.words and a.text.casefold() == b.text.casefold() and not other_case(a.marks, b.marks)


def _is_one_topic(a: Facts, b: Facts) -> bool:
    return not unmatched(a, b) and not unmatched(b, a)


def _is_prefixed(words: frozenset[str], others: frozenset[str]) -> bool:
    """ "insurance" here, "uninsured" there."""
    for prefix in _NEGATIVE_PREFIXES:
        for rest in (word.removeprefix(prefix) for word in others if word.startswith(prefix)):
            # Of "de", "in" and "im" only the very word: "deliver" is no opposite of "live".
            if len(rest) > 2 and (rest in words or (prefix == "un" and len(rest) > 3 and related(rest, words))):
                return True
    return False


def _adds_member(a: Facts, b: Facts) -> bool:
    """Whether `a` names a member of a kind in place of one of `b`'s, one more, or one where `b` names none."""
    exchanged = b.stem_set - a.stem_set
    for word in a.stem_set - b.stem_set:
        if SYNONYMS.get(word, frozenset()) & b.stem_set:
            continue
        for label in KIND_OF.get(word, frozenset()):
            members = KINDS[label]
            if members & exchanged or (label in COUNTED_KINDS and members & b.stem_set):
                return True
            if label in NAMING_KINDS and word not in AMBIGUOUS:
                return True
    return False


def _values(found: tuple[Number, ...], others: tuple[Number, ...]) -> Counter[float]:
    """Quantities; a spelled `one` ("this one", "one card") counts only where the other text counts as well."""
    spoken = any(not _is_idle(item) for item in others)
    return Counter(item.value for item in found if spoken or not _is_idle(item))


def _is_idle(item: Number) -> bool:
    """`one` as an article or a pronoun; "radio one" and "chapter one" are names."""
    return item.value == 1.0 and item.text.isalpha() and (bool(item.follows) or item.precedes in _ONE_AFTER)


def _carried(found: tuple[Number, ...]) -> dict[float, frozenset[str]]:
    """What stands after each quantity, when it is of a kind that excludes others (units, currencies, spans, am/pm)."""
    carried: dict[float, frozenset[str]] = {}
    for item in found:
        unit = "" if item.follows in _IS else stem(item.follows)  # whose stem is that of "8 am"
        known = unit in _UNITS or bool(KIND_OF.get(unit))
        carried[item.value] = carried.get(item.value, frozenset()) | (frozenset((unit,)) if known else frozenset())
    return carried


def _also(units: frozenset[str]) -> frozenset[str]:
    return units.union(*(SYNONYMS.get(unit, frozenset()) for unit in units))


def _unknown_name(word: str, other: Facts) -> bool:
    if word in other.stem_set or SYNONYMS.get(word, frozenset()) & other.stem_set:
        return False
    joined = "".join(other.words)
    if len(word) >= 4 and word in joined:
        return False  # "PostgreSQL" and "postgre sql"
    return not _is_spelled_out(word, other)


def _is_spelled_out(word: str, facts: Facts) -> bool:
    """Whether `word` is an acronym of words in a row: TTFT, time to first token."""
    return 2 <= len(word) <= 6 and word in "".join(other[0] for other in facts.words)


def _is_firm(asked: str, other: str) -> bool:
    return (asked in _FIRM_QUESTIONS or other in _FIRM_QUESTIONS) and other not in _LOOSE.get(asked, _ANY)


def unmatched(a: Facts, b: Facts) -> frozenset[str]:
    """Topic words of `a` that `b` does not have in any known form."""
    return _unmatched(a.text, b.text)


@lru_cache(maxsize=256)
def _unmatched(one: str, other: str) -> frozenset[str]:
    """Half of the guards ask for the same pair."""
    a, b = analyse(one), analyse(other)
    begun = frozenset(word[:3] for word in b.stem_set)
    return frozenset(
        word
        for word in a.content_set - b.content_set
        if COUNTERPARTS.get(word, frozenset()).isdisjoint(b.stem_set)
        and not (word[:3] in begun and related(word, b.stem_set))
        and not (word in a.names and _is_spelled_out(word, b))
    )
