"""Who does it: the subject after an auxiliary, and whether a question word asks for who does it or for what is done.

Knows the first auxiliary, what stands behind it, and the word after that. Does not parse; where voices differ or the
verb is another one it says nothing.
"""

from collections import Counter
from typing import NamedTuple

from policies.reuse.english import bag
from policies.reuse.facts import Facts
from policies.reuse.roles import MUTUAL, is_participle, passive

_SUPPORT = bag("do does did")
_AUXILIARIES = _SUPPORT | bag("can could should would will may might must is are am was were has have had")
_BE, _FOR, _PERSON = bag("is are was were"), bag("for to"), bag("who whom")
_ASKING = bag("who whom which what")
_QUESTIONS = _ASKING | bag("when where why how")
_PRONOUNS = {
    **dict.fromkeys(("i", "me", "my", "mine"), "i"),
    **dict.fromkeys(("you", "your", "yours"), "you"),
    **dict.fromkeys(("he", "him", "his"), "he"),
    **dict.fromkeys(("she", "her", "hers"), "she"),
    **dict.fromkeys(("we", "us", "our", "ours"), "we"),
    **dict.fromkeys(("they", "them", "their", "theirs"), "they"),
    "its": "it",
}
_WHO = {
    **dict.fromkeys(("i", "me", "you", "we", "us"), "near"),
    **dict.fromkeys(("my", "mine", "your", "yours", "our", "ours", "own", "myself"), "near's"),
    **dict.fromkeys(("they", "them", "their", "theirs"), "they"),
    **dict.fromkeys(("it", "its", "itself"), "it"),
}
_SUBJECTS = bag("i you he she we they")
_ACTING = bag("i me you he him she we us they them")
_NEARER = bag("i you we")
_BEFORE_NOUN = bag("the a an this that these those any some all my your his her our their")
_BESIDE_VERB = _BEFORE_NOUN | bag("not be been being ever also still just really to")
_JOINS = bag("and or nor")
_LONGEST_SUBJECT = 4


class _Agent(NamedTuple):
    """`head`: a pronoun, or the stem of a noun; `owner`: whose, in pronouns; `verb`: the stem that follows."""

    head: str
    owner: str
    verb: str


def other_person(a: Facts, b: Facts) -> bool:
    """He for she, or one of them oftener; or one whom the other text leaves out, where it says somebody else instead.

    Who is named can be left unsaid: "should I let my child sleep", "should I let her". Between "her garden" and "my
    garden" it is whose, and "after the mayor published it" tells whom "after she published it" does not.
    """
    one, other = ([who for who in x.persons if who != "they"] for x in (a, b))
    if one and other and one != other:
        return True
    speaking, silent = (a, b) if one else (b, a)
    if bool(one) != bool(other) and (len({*one, *other}) > 1 or _says_instead(silent, speaking)):
        return True
    many, few = (a, b) if "they" in a.persons else (b, a)
    apart = ("they" in many.persons) != ("they" in few.persons) and (a.first or a.second) != (b.first or b.second)
    return apart and (not _said(few).total() or _says_instead(few, many))


def _says_instead(silent: Facts, speaking: Facts) -> bool:
    """Whether there is more of somebody near, of another pronoun or of any topic word, than where one is spoken of.

    Where the topic words stand in another order, nothing tells whom "her" meant.
    """
    if _said(silent) - _said(speaking) or not _in_order(silent, speaking):
        return True
    again = Counter(silent.content) - Counter(speaking.content)
    return any(word in speaking.content_set for word in again)


def _in_order(a: Facts, b: Facts) -> bool:
    one, other = ([word for word in x.content if word in y.content_set] for x, y in ((a, b), (b, a)))
    return list(dict.fromkeys(one)) == list(dict.fromkeys(other))


def _said(facts: Facts) -> Counter[str]:
    """How often the text says I and its like, my and its like, they and it."""
    return Counter(_WHO[word] for word in facts.words if word in _WHO)


def other_agent(a: Facts, b: Facts) -> bool:
    """The same is done by somebody else: "can my boss read my mail", "can I read my boss's mail"."""
    one, other = _agent(a), _agent(b)
    if one is None or other is None or one.verb != other.verb or passive(a) != passive(b):
        return False
    if one.head == other.head:
        return bool(one.owner and other.owner) and (one.owner in _NEARER) != (other.owner in _NEARER)
    persons = frozenset((one.head, other.head)) & _SUBJECTS
    if len(persons) == 2:
        # "Can you help your neighbour" and "can I"; "can you reset my password" is the asker's wish either way.
        if persons == _mentioned(a) == _mentioned(b):
            return True  # "can you teach me", "can I teach you"
        return persons <= _NEARER and _owners(a) == _owners(b) == frozenset(("you",))
    # Whoever acts here must be somewhere in the other text; else it only stands for anybody.
    return one.verb not in MUTUAL and all(_mentions(a, head) and _mentions(b, head) for head in (one.head, other.head))


def other_owner(a: Facts, b: Facts) -> bool:
    """His, hers, its or theirs here, mine or yours there; or each has the other's."""
    one, other = _owners(a), _owners(b)
    if len(one) > 1 and one == other:
        held_a, held_b = _owned(a), _owned(b)
        return any(held_a[what] != held_b[what] for what in held_a.keys() & held_b.keys())
    if not one or not other or one & other:
        return False
    return (one <= _NEARER and not other & _NEARER) or (other <= _NEARER and not one & _NEARER)


def asks_for_other(a: Facts, b: Facts) -> bool:
    """Who or which does it, against to whom or to which: "who taught him", "whom did he teach", "who was taught"."""
    return _asks(a, b) or _asks(b, a) or _has_done(a, b) or _has_done(b, a)


def _has_done(a: Facts, b: Facts) -> bool:
    """Whether `a` asks who does what is done to the one, or for the one, that `b` asks for."""
    at = next((i for i, word in enumerate(a.words) if word in _ASKING), None)
    if at is None or passive(a):
        return False
    return not _done_to_asked(b).isdisjoint(_verbs_of_asked(a, at))


def _done_to_asked(facts: Facts) -> frozenset[str]:
    """ "Who is painted in it", "written for whom", but "who was it that wrote it" asks for the writer."""
    words = facts.words
    at = next((i for i, word in enumerate(words) if word in _ASKING), len(words))
    if at and words[at - 1] in _FOR and not _PERSON.isdisjoint(words[at : at + 1]):
        return facts.content_set
    beside = words[at + 1 : at + 3]
    # "Who's viewed it" may have viewed it.
    if len(beside) < 2 or "by" in words or "'s" in facts.text.replace("\u2019", "'"):
        return frozenset()
    return frozenset((facts.stems[at + 2],)) if beside[0] in _BE and is_participle(beside[1]) else frozenset()


def _asks(a: Facts, b: Facts) -> bool:
    at_a, at_b = (next((i for i, word in enumerate(x.words) if word in _ASKING), None) for x in (a, b))
    if at_a is None or at_b is None or passive(a):
        return False
    helped = next((i for i in range(at_b + 1, min(at_b + 4, len(b.words))) if b.words[i] in _SUPPORT), None)
    done = frozenset(b.stems[helped + 2 :]) if helped is not None else frozenset[str]()
    verb = next((verb for verb in _verbs_of_asked(a, at_a) if verb in done), None)
    if helped is None or verb is None:
        return False
    between = b.words[helped + 1 : helped + 1 + b.stems[helped + 1 :].index(verb)]
    if len(between) > _LONGEST_SUBJECT:
        return False
    subject = [stem for stem, word in zip(b.stems[helped + 1 :], between, strict=False) if word not in _BEFORE_NOUN]
    persons = {_PRONOUNS[word] for word in between if word in _SUBJECTS}
    if persons:
        return any(word in _PRONOUNS and _PRONOUNS[word] in persons for word in a.words)
    return any(stem in a.content_set for stem in subject)


def _verbs_of_asked(facts: Facts, at: int) -> list[str]:
    """What the asked one may do: the topic word after "who" or "what", or after "which" and its noun; none where
    others act."""
    if not _AUXILIARIES.isdisjoint(facts.words[at + 1 :]):
        return []
    topic = [i for i in range(at + 1, len(facts.words)) if facts.stems[i] in facts.content_set][:2]
    if not topic or not _SUBJECTS.isdisjoint(facts.words[at + 1 : topic[0]]):
        return []
    asked = facts.words[at]
    return [facts.stems[i] for i in (topic[1:] if asked == "which" else topic if asked == "what" else topic[:1])]


def _agent(facts: Facts) -> _Agent | None:
    words, stems = facts.words, facts.stems
    at = next((i for i, word in enumerate(words) if word in _AUXILIARIES), None)
    if at is None or (at and _QUESTIONS.isdisjoint(words[max(0, at - 3) : at])):
        return None
    owner = ""
    for i in range(at + 1, min(at + 1 + _LONGEST_SUBJECT, len(words))):
        if words[i] in _SUBJECTS or stems[i] in facts.content_set:
            if words[i + 1 : i + 2] and words[i + 1] in _JOINS:
                return None  # "are Ann and Bob …": neither alone
            verb = next((s for s, w in zip(stems[i + 1 :], words[i + 1 :], strict=True) if w not in _BESIDE_VERB), "")
            return _Agent(words[i] if words[i] in _SUBJECTS else stems[i], owner, verb) if verb else None
        if words[i] not in _BEFORE_NOUN:
            return None
        owner = _PRONOUNS.get(words[i], owner)
    return None


def _owned(facts: Facts) -> dict[str, str]:
    """Whose each thing is, where a pronoun says so."""
    return {
        facts.stems[i + 1]: _PRONOUNS[word]
        for i, word in enumerate(facts.words[:-1])
        if word in _PRONOUNS and word not in _ACTING and facts.stems[i + 1] in facts.content_set
    }


def _owners(facts: Facts) -> frozenset[str]:
    return frozenset(_PRONOUNS[word] for word in facts.words if word in _PRONOUNS and word not in _ACTING)


def _mentioned(facts: Facts) -> frozenset[str]:
    return frozenset(_PRONOUNS[word] for word in facts.words if word in _PRONOUNS)


def _mentions(facts: Facts, head: str) -> bool:
    if head in _SUBJECTS:
        return any(_PRONOUNS.get(word) == head for word in facts.words)
    return head in facts.stem_set
