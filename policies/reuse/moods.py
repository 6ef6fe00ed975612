"""When, and whether at all, what is asked about happens: "does it close" and "did it close", "can I" and "must I".

Knows the first auxiliary of a question. Does not parse; that one's own things are, or were, out of order is one
question.
"""

import re
from itertools import pairwise

from policies.reuse.english import bag, stem
from policies.reuse.facts import Facts

_ASKING = bag("what which who whom whose when where why how")
_DID, _DO = bag("did"), bag("do does")
_WAS, _IS = bag("was were"), bag("is are")
_CAN, _MUST, _SHOULD = bag("can could may might"), bag("must"), bag("should ought")
_DOUBTING = bag("could might")
_ASKERS = bag("i we one you")
_FAR = 4
_USED_TO = re.compile(
    r"(?<!is )(?<!are )(?<!be )(?<!get )\bused to (?!use|do)\w|\bdid (?:\w+ ){1,3}use to\b|\bformer(?:ly)?\b"
)
_FOR_USE = re.compile(r"\b(?:is|are) (?:the|a|an) (?:\w+ )?\w+ used to\b")  # "what is the command used to list files"
_BECOME = stem("become")
_BECOMING = bag("get gets getting got gotten go goes going went grow grows grew turn turns turned come comes came will")
_BECOMES_OF = re.compile(r"\bbec(?:omes?|ame) of\b")


def other_time(a: Facts, b: Facts) -> bool:
    """Now here, then there. "Who is" and "who was" a person are one question, the head of something is not."""
    if "why" in (a.question, b.question):
        return False
    one, other = _auxiliary(a), _auxiliary(b)
    if _either(one, other, _DO, _DID) or _is_over(a, other) != _is_over(b, one):
        return True
    return _either(one, other, _IS, _WAS) and _is_of_office(a) and _is_of_office(b)


def becoming(a: Facts, b: Facts) -> bool:
    """Whether somebody is something here and becomes it there."""
    if a.content_set ^ b.content_set != frozenset((_BECOME,)):
        return False
    if any(_BECOMES_OF.search(" ".join(x.words)) for x in (a, b)):
        return False  # what becomes of it is what happens to it
    # How to be one is how to become one; will it be is will it become.
    return not (a.question == b.question == "how" or any(not _BECOMING.isdisjoint(x.words) for x in (a, b)))


def other_mood(a: Facts, b: Facts) -> bool:
    """May, must and did, asked with a question word; "can I" and "should I" overlap too much but for who may."""
    one, other = _auxiliary(a), _auxiliary(b)
    if not a.question or a.question != b.question or a.question == "why":
        return False
    if _either(one, other, _CAN, _MUST) or (
        a.question == "who" and _either(one, other, _CAN, _SHOULD) and not (_asker_acts(a) and _asker_acts(b))
    ):
        return True
    done = _DID | _WAS
    if a.question == "how" and {one, other} & _DOUBTING:
        return False  # "how could this happen"
    return _either(one, other, _CAN | _MUST | _SHOULD, done)


def _either(one: str, other: str, these: frozenset[str], those: frozenset[str]) -> bool:
    return (one in these and other in those) or (one in those and other in these)


def _auxiliary(facts: Facts) -> str:
    """The first auxiliary after the question word, or that the text begins with."""
    words = facts.words
    at = next((i for i, word in enumerate(words) if word in _ASKING), None)
    after = words[:1] if at is None else words[at + 1 : at + 1 + _FAR]
    return next((word for word in after if word in _ALL), "")


def _asker_acts(facts: Facts) -> bool:
    """ "Who can I contact" is "who should I contact"; "who can sign" is not "who should sign"."""
    return any(word in _ALL and after in _ASKERS for word, after in pairwise(facts.words))


def _is_of_office(facts: Facts) -> bool:
    """ "Who is the head of …", not "who is Marie Curie" or "the best ever", and nothing of one's own."""
    words = facts.words
    at = next((i for i, word in enumerate(words) if word in _IS | _WAS), None)
    return at is not None and words[at + 1 : at + 2] == ("the",) and not facts.first and "ever" not in words


def _is_over(facts: Facts, other: str) -> bool:
    """What used to be, where the other text does not speak of the past anyway."""
    return other not in _DID | _WAS and _USED_TO.search(_FOR_USE.sub("", " ".join(facts.words))) is not None


_ALL = _DID | _DO | _WAS | _IS | _CAN | _MUST | _SHOULD
