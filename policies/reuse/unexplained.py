"""Whether two wordings differ in anything that is not known to change nothing.

All other guards know what must not differ, and what nobody has thought of passes them. This one is the other way round:
every topic word needs its counterpart, every small word that can matter must be in both, what stands behind "before",
"without" or "except" must be the same, and topic words may change places only as English lets them without changing
who does what. What it forbids is often a true paraphrase: a scope's own labels excuse it there.
Knows `wordings.Core`. Does not parse.
"""

from collections import Counter
from collections.abc import Collection
from itertools import combinations

from policies.reuse.english import Number, bag, stem
from policies.reuse.facts import Facts
from policies.reuse.lexicon import COUNTERPARTS, KIND_OF, KINDS, NAMING_KINDS
from policies.reuse.roots import related
from policies.reuse.wordings import DETERMINERS, FIRM, LOOSE, Core, core

_ALIKE = frozenset(
    frozenset(pair.split("/"))
    for pair in bag(
        "with/from with/by with/and through/with over/for over/above under/below then/and until/up into/TO onto/TO "
        "since/because each/all"
    )
)
_MODALS = bag("CAN MUST SHOULD")
# What comes next belongs to them.
_DIRECTED = bag(
    "before after until since without except INSTEAD because than unless over under above below only SUCH by"
)
# They add nothing: "list the signs", "laws that apply in Texas".
_LIGHT = frozenset(
    stem(word)
    for word in bag(
        "list name contain include consider count value worth locate apply number among date exist ought usual"
    )
)
_MEASURES = frozenset(
    stem(word)
    for word in bag("price cost weight value area distance height length size speed count hour day amount population")
)
_NOT_A_SUM = _MEASURES - frozenset(stem(word) for word in bag("price cost weight value count amount"))
_CAUSE = stem("cause")
_ASKING = bag("what which who whom where when how")
_WHICH, _WHO = bag("which what"), bag("who whom when where")
# "Is X safe" and "is it safe to X": they may stand anywhere.
_PREDICATES = frozenset(
    stem(word)
    for word in bag(
        "okay safe normal worth possible dangerous good bad healthy legal enough necessary needed better worse weigh "
        "difference differ different same"
    )
)
_DAYS = KINDS["month"] | KINDS["weekday"] | KINDS["season"] | KINDS["part of day"] | KINDS["tense"]
# A text that begins with one of these begins with a clause or a phrase that could as well stand at its end.
_FRONTING = bag(
    "when if unless while after before until since because in on at for with from as during given by without to my our "
    "the i we under over of about between"
)
# Phrases with these may stand anywhere; with some of them the thing may as well stand before what it belongs to.
_PHRASING = bag("of for in on at with about near during as after before until since without")
_COMPOUND = bag("of for in on at TO")
_JOINING = bag("and or vs versus")
_COUNTING = bag("many much")
_BEING = bag("is are was were be PAST that which who the a an")
_LONGEST_CLAUSE = 12
_MOST_MOVED = 60  # comparing every two costs their square
# Who takes part, and whose: their order is who does what to whom.
_PERSONS = {
    **dict.fromkeys(("i", "me", "we", "us"), "i"),
    **dict.fromkeys(("SOMEONE", "else"), "someone"),
    **dict.fromkeys(("he", "him"), "he"),
    **dict.fromkeys(("they", "them"), "they"),
    "she": "she",
}
_OWNERS = {
    "my": "i",
    "our": "i",
    "his": "he",
    "her": "she",
    "their": "they",
    "another": "another",
    "SOMEONE": "someone",
}
_NOW = bag("is are do does")
_ADVISED = bag("who whom where")
# What a question that is answered with yes or no begins with.
_POLAR = bag("CAN MUST SHOULD PAST FUTURE is are am do does has have")
# As what else one may ask for these.
_ASKED_FOR = {
    "when": bag("when HOUR DAY date dates hour time times year month week deadline schedule long soon"),
    "where": bag("where location locations located country city town part parts address directions"),
    "why": bag("why reason reasons cause causes caused because purpose explain make makes made motive lead led"),
}
# Where one can is how one can.
_FOUND = bag("find get buy download see check view watch")
_COUNTED = bag("many much number numbers count total") | KINDS["measure"]
_CHOOSING = ("what", "which", "who")
# Before the same word one says something else than the other: "drive in" and "drive from Mexico", a poem for and about.
_APART = frozenset(
    frozenset((one, other))
    for one, others in (("from", "in at on for to TO"), ("about", "for to TO with by"), ("with", "for"))
    for other in others.split()
)
_DOERS, _DONE_TO = bag("i we he she they"), bag("me us him them")


def differs(a: Facts, b: Facts, missing_a: frozenset[str], missing_b: frozenset[str]) -> bool:
    """`missing_a`: topic words of `a` without a counterpart in `b`, `missing_b` the other way round."""
    one, other = core(a.text), core(b.text)
    if _left(one, other, a.content_set - missing_a) or _left(other, one, b.content_set - missing_b):
        return True
    if _ordinals(a.numbers) != _ordinals(b.numbers) or _asks_otherwise(one, other, (a.question, b.question)):
        return True
    if (
        _small_words_differ(one, other)
        or _other_modal(one, other)
        or _parts_exchanged(one, other)
        or _acted_on(one, other)
    ):
        return True
    names = _counterparts(one, other)
    places = _places(one, {}), _places(other, names)
    if _attached_elsewhere(one, other, names) or _led_by_another(one, other, *places):
        return True
    if _owned_by_another(one, other, names) or _nations_exchanged(names):
        return True
    loose = _PREDICATES | _MEASURES | _degrees(one) | {names[base] for base in _degrees(other)}
    return not _moved_freely(one, other, *places, loose)


def _left(text: Core, other: Core, matched: frozenset[str]) -> bool:
    """Whether a topic word without counterpart is more than the manner of asking.

    "Which actor plays" is "who plays", "how large is the population" is "what is the population".
    """
    stems = frozenset(base for _, base in other.topics)
    asked_for = _MEASURES if not {"how", "much", "many"}.isdisjoint(other.tokens) else frozenset[str]()
    if "much" in other.tokens:
        asked_for -= _NOT_A_SUM  # "how much is a flight" is not how long it is
    for at, base in text.topics:
        if base in matched or base in stems or base in _LIGHT or base in asked_for:
            continue
        before = text.tokens[at - 1] if at else ""
        if before == "how" or (before in _WHICH and not _WHO.isdisjoint(other.tokens)):
            continue
        if base == _CAUSE and "why" in other.tokens:
            continue
        if not (COUNTERPARTS.get(base, frozenset()) & stems or related(base, stems)):
            return True
    return False


def _asks_otherwise(a: Core, b: Core, questions: tuple[str, str]) -> bool:
    """Yes or no, how many, which ones and when are four answers; "is there a way to" wants to know how."""
    return _asks_for_more(a, b, *questions) or _asks_for_more(b, a, *questions[::-1])


def _asks_for_more(text: Core, other: Core, question: str, asked: str) -> bool:
    if question and not _is_polar(text) and _is_polar(other):
        way = "HOW" in text.tokens and "WAY" in other.tokens
        choice = question in _CHOOSING and "or" in text.tokens and "or" in other.tokens
        if not way and not choice:
            return True
    if "HOW" in text.tokens and "HOW" not in other.tokens and other.tokens[:1] in (("i",), ("we",)):
        return True  # who says what he wants or has to do does not ask how
    if "many" in text.tokens and _COUNTED.isdisjoint(other.tokens):
        what = _after(text, ("many",))
        if what and not KIND_OF.get(what) and (not asked or what == _after(other, _CHOOSING)):
            return True
    if question == "where" and "HOW" in other.tokens and not _FOUND.isdisjoint(text.tokens):
        return False
    return question in _ASKED_FOR and question in text.tokens and _ASKED_FOR[question].isdisjoint(other.tokens)


def _is_polar(text: Core) -> bool:
    return not _POLAR.isdisjoint(text.tokens[:1])


def _after(text: Core, words: Collection[str]) -> str:
    """The stem of what follows the first of `words`: "which states", "what are the states"; "" if nothing does."""
    for at, word in enumerate(text.tokens):
        if word in words:
            rest = (stem(said) for said in text.tokens[at + 1 :] if said not in _BEING)
            return next(rest, "")
    return ""


def _acted_on(a: Core, b: Core) -> bool:
    """ "Who can I sue", "who can sue me", "who sues"."""
    if "who" not in a.tokens or "who" not in b.tokens:
        return False
    one, other = (not _DOERS.isdisjoint(text.tokens) for text in (a, b))
    objects = any(not _DONE_TO.isdisjoint(text.tokens) for text in (a, b))
    return one != other and (objects or _who_acts(a) or _who_acts(b))


def _who_acts(text: Core) -> bool:
    """ "Who pays", not "who do I pay" or "who to pay"."""
    rest = [word for word in text.tokens[text.tokens.index("who") + 1 :] if word not in _MODALS]
    return bool(rest) and rest[0] not in _DOERS | {"do", "to", "is", "are", "PAST", "FUTURE"}


def _ordinals(numbers: tuple[Number, ...]) -> Counter[float]:
    """The second one is not two of them; the 6th of January is 6 January."""
    months = KINDS["month"]
    counted = (
        item for item in numbers if item.text.endswith(("st", "nd", "rd", "th")) and not item.text.endswith("thousand")
    )
    return Counter(
        item.value
        for item in counted
        if stem(item.follows) not in months | {"of"} and stem(item.precedes) not in months
    )


def _small_words_differ(a: Core, b: Core) -> bool:
    one, other = (Counter(token for token in text.tokens if token in FIRM or token in LOOSE) for text in (a, b))
    more, less = one - other, other - one
    if a.passive != b.passive:
        del more["by"], less["by"]
    if more and less:
        if {*more, *less} == {"each", "all"} and not _COUNTING.isdisjoint(a.tokens):
            return True  # of all three together, or of each
        return not all(frozenset((x, y)) in _ALIKE for x in more for y in less)
    return any(token in FIRM for token in (*more, *less))


def _other_modal(a: Core, b: Core) -> bool:
    """Can I, must I, should I; what will be and what was. A text that says none of them says nothing."""
    one, other = (_MODALS.intersection(text.tokens) for text in (a, b))
    asked = any(not _ASKING.isdisjoint(text.tokens) for text in (a, b))
    advised = not any(_ADVISED.isdisjoint(text.tokens) for text in (a, b))
    alike = (advised and one | other == bag("CAN SHOULD")) or (asked and one | other == bag("MUST SHOULD"))
    if (one and other and one != other and not alike) or _either(a, b, "HOW", "why"):
        return True
    if "who" not in a.tokens and "who" not in b.tokens and (_tense(a), _tense(b)) in (("past", "now"), ("now", "past")):
        return True
    return any(_either(a, b, said, "FUTURE") for said in ("PAST", "CAN", "SHOULD"))


def _tense(text: Core) -> str:
    """That of the first auxiliary."""
    first = next((said for said in text.tokens if said in _NOW or said in ("PAST", "HOW")), "")
    return {"": "", "PAST": "past"}.get(first, "now")


def _either(a: Core, b: Core, one: str, other: str) -> bool:
    return any(
        one in x.tokens and other not in x.tokens and other in y.tokens and one not in y.tokens
        for x, y in ((a, b), (b, a))
    )


def _parts_exchanged(a: Core, b: Core) -> bool:
    """ "If someone blocked me", "if I blocked someone"."""
    for known in (_PERSONS, _OWNERS):
        one, other = (list(dict.fromkeys(known[token] for token in text.tokens if token in known)) for text in (a, b))
        both = set(one) & set(other)
        if [part for part in one if part in both] != [part for part in other if part in both]:
            return True
    return False


def _counterparts(a: Core, b: Core) -> dict[str, str]:
    """What each topic word of `b` is called in `a`."""
    known = dict.fromkeys(base for _, base in a.topics)
    found: dict[str, str] = {}
    for _, base in b.topics:
        alike = (other for other in known if other in COUNTERPARTS.get(base, ()) or related(base, frozenset((other,))))
        found[base] = base if base in known else next(alike, base)
    return found


def _attached_elsewhere(a: Core, b: Core, names: dict[str, str]) -> bool:
    """ "Paint before sanding" and "before painting, sand"."""
    for word in _DIRECTED.intersection(a.tokens, b.tokens):
        if word == "by" and a.passive != b.passive:
            continue
        one, other = _behind(a, word, {}), _behind(b, word, names)
        if one and other and one[0] != other[0] and set(one) != set(other):
            return True
    return False


def _led_by_another(a: Core, b: Core, at_a: dict[str, int], at_b: dict[str, int]) -> bool:
    """ "A poem for my wife", "a poem about my wife"."""
    shared = at_a.keys() & at_b.keys()
    return any(frozenset((a.led(at_a[word])[0], b.led(at_b[word])[0])) in _APART for word in shared)


def _nations_exchanged(names: dict[str, str]) -> bool:
    """ "Germans in France", "the French in Germany"."""
    nations = KINDS["country"] | KINDS["people"]
    return sum(one != other and one in nations and other in nations for other, one in names.items()) > 1


def _behind(text: Core, word: str, names: dict[str, str]) -> list[str]:
    """The two topic words that follow: "before adding tax", "before tax is added"."""
    start = text.tokens.index(word)
    return [names.get(base, base) for at, base in text.topics if at > start][:2]


def _owned_by_another(a: Core, b: Core, names: dict[str, str]) -> bool:
    """My flat and his flat. "The flat" is anybody's."""
    one = {base: owner for at, base in a.topics if (owner := a.owner(at))}
    other = {names[base]: owner for at, base in b.topics if (owner := b.owner(at))}
    return any(one[word] != other[word] for word in one.keys() & other.keys())


def _moved_freely(a: Core, b: Core, at_a: dict[str, int], at_b: dict[str, int], loose: Collection[str]) -> bool:
    """Whether topic words stand in one order, or those that changed places did so as English lets them; `loose` ones
    may stand anywhere."""
    one = [word for word in at_a if word in at_b and word not in loose]
    other = [word for word in at_b if word in at_a and word not in loose]
    if a.passive != b.passive:
        return _is_voice(one, other)
    if one == other:
        return True
    if len(one) > _MOST_MOVED:
        return False
    turned = any(other == one[at:] + one[:at] for at in range(1, len(one)))
    said = bool(_PREDICATES & at_a.keys() & at_b.keys())  # "is it safe to eat X", "is X safe to eat"
    said = said or any(text.tokens[1:2] == ("it",) for text in (a, b))
    if turned and (said or any(text.tokens[0] in _FRONTING for text in (a, b))):
        return True
    order = {word: at for at, word in enumerate(other)}
    return all(
        _is_free(a, (at_a[x], at_a[y]), b, (at_b[x], at_b[y])) or _is_free(b, (at_b[y], at_b[x]), a, (at_a[y], at_a[x]))
        for x, y in combinations(one, 2)
        if order[x] > order[y]
    )


def _places(text: Core, names: dict[str, str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for at, base in text.topics:
        found.setdefault(names.get(base, base), at)
    return found


def _degrees(text: Core) -> set[str]:
    """What stands behind "how", tall, far, expensive, and adverbs: they may stand anywhere."""
    return {
        base
        for at, base in text.topics
        if base in _DAYS or text.tokens[at].endswith("ly") or (at and text.tokens[at - 1] == "how")
    }


def _is_voice(one: list[str], other: list[str]) -> bool:
    """ "A dog bit him", "he was bitten by a dog"; the doer may be the question word. In the same order roles differ."""
    start, end = 0, min(len(one), len(other))
    while start < end and one[start] == other[start]:
        start += 1
    last = 0
    while last < end - start and one[-1 - last] == other[-1 - last]:
        last += 1
    x, y = one[start : len(one) - last], other[start : len(other) - last]
    if len(x) > _LONGEST_CLAUSE:
        return False
    return any(y == x[j:] + x[i:j] + x[:i] for i in range(len(x)) for j in range(i + 1, len(x)))


def _is_listed(text: Core, first: int, second: int) -> bool:
    """ "TCP and UDP", "a passport or an ID card"; not "two truths and a lie"."""
    topics = {at for at, _ in text.topics}
    if any(at - 1 in text.nominal and at - 1 not in topics for at in (first, second)):
        return False
    between = {text.tokens[at] for at in range(first + 1, second) if at not in topics} - DETERMINERS
    return bool(between) and between <= _JOINING


def _is_free(a: Core, in_a: tuple[int, int], b: Core, in_b: tuple[int, int]) -> bool:
    """In `a` the second of two words follows the first, in `b` it stands before it: as part of a phrase that moved, as
    owner, in a compound, or as what the other is said to be."""
    first, second = in_a
    if _is_listed(a, first, second) and _is_listed(b, in_b[1], in_b[0]):
        return True
    ahead, at = a.led(second)
    compound = _COMPOUND if a.passive or b.passive else _COMPOUND | {"by"}  # an opera by Verdi
    if at > first and (ahead in _PHRASING or ahead in compound):
        before, _ = b.led(in_b[1])
        moved = stem(b.tokens[in_b[1]])
        counted = before in _COUNTING and ahead == "in" and NAMING_KINDS.isdisjoint(KIND_OF.get(moved, ()))
        if before == ahead or counted or moved in b.owning:
            return True
        return ahead in compound and in_b[1] + 1 in b.nominal
    return _BEING.issuperset(a.tokens[first + 1 : second]) and second > first + 1 and b.runs(in_b[1], in_b[0])
