"""What guards need to know of a text, read once: words, numbers, dates, names, negation, persons, question, code.

Knows one text at a time; comparing two is `guards`. `analyse` remembers what it read last, for a kept text meets many
questions.
"""

import re
from collections import Counter
from functools import lru_cache
from itertools import pairwise

from msgspec import Struct

from policies.reuse.dates import dates_of
from policies.reuse.english import Number, Word, bag, numbers, plainly, stem, words
from policies.reuse.idioms import plainer
from policies.reuse.lexicon import KIND_OF, OPPOSITES, STOP, SYNONYMS
from policies.reuse.signs import Marks, marks, operators, symbols

# Words that turn a statement round, and words that only speak of failure, which "did not work" may paraphrase.
_NEGATORS = bag(
    "not non no never without neither nor none nobody nothing nowhere hardly barely scarcely unable except excluding "
    "unless avoid avoids avoiding avoided prevent prevents preventing prevented lack lacks lacking "
    "barred banned prohibited forbidden disallowed exempt exempted exclude excludes excluded ineligible"
)
_FAILURES = bag(
    "fail fails failed failing failure refuse refuses refused deny denies denied decline declines declined "
    "declining reject rejects rejected rejecting incorrect wrong unsuccessful unsuccessfully missing broken "
    "forgot forget forgetting forgotten lost lose losing trouble problem problems issue issues error errors "
    "blocked stuck invalid instead despite unavailable disabled pending still incorrectly stopped different "
    "difficulty difficulties"
)
# "has yet to ship", "fails to start", "keep it from rusting"
_NOT_DONE = re.compile(
    r"\b(?:(?:have|has|had|am|are|is|was|were|be) yet to|(?:fail|fails|failed|failing|refuse|refuses|refused) to"
    r"|(?:keep|keeps|kept|keeping)(?: \w+){1,3} from \w+ing)\b",
    re.IGNORECASE,
)
# "prevent it from sticking", in other words: it turns round as much, but need not.
_HALTED = re.compile(r"\bstop(?:s|ped|ping)? (?!at\b|in\b|by\b|on\b|for\b|near\b)(?:\w+ ){1,5}?\w+ing\b")
# "stop repeating" turns round, "stop the alarm" is a command of its own.
_STOPPERS = bag("stop stops stopped stopping quit quits quitting")
_SILENT_NEGATION = re.compile(
    r"\b(?:or not|not only|if not|why not|why don'?t (?:you|we)|no\.? ?\d|no matter|no problem"
    r"|(?:do|does|did|can|could)(?:n'?t| not)(?: really| quite)? (?:know|understand|figure|see why|get why)"
    r"|(?:am|'m|are|'re) not sure|not sure)\b",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"`([^`]+)`|\"([^\"]+)\"|\u201c([^\u201d]+)\u201d|(?<!\w)'([^']{1,80})'(?!\w)")
_CODE = re.compile(
    r"https?://\S+|www\.\S+|(?<![\w.+-])[\w.+-]+@[\w-]+\.[\w.]+"  # addresses
    r"|(?<![\w.])(?:~|\.{1,2})?/[\w.-]+(?:/[\w.-]*)*"  # paths
    r"|\b\w+_\w+\b|\b[a-z]+[A-Z]\w*\b|\b\w+\((?:[^(),\n]*,[^()\n]*)?\)|\b\w+(?:\.\w{2,})+\b|(?<!\w)--?[a-zA-Z][\w-]*|\b[^\W\d]*\d[^\Wa-zA-Z]*[a-zA-Z]\w*\b"
    r"|\b[a-zA-Z]+-?\d+\w*\b|[A-Za-z]\+\+|\b[CFc]#|(?<!\S)[&*@#~^][A-Za-z_]\w*(?![\w*])|[\\%][A-Za-z]\b"
)
# "16th", "5k" and "7pm" are quantities, which other spellings may equal.
_QUANTITY = re.compile(
    r"\d[\d.,:]*(?:st|nd|rd|th|k|m|mn|bn|x|am|pm|s|kg|km|cm|mm|lb|lbs|mb|gb|tb|ml|h|hrs?|mins?)", re.IGNORECASE
)
_PERSONS = {
    "he": "he",
    "him": "he",
    "his": "he",
    "himself": "himself",
    "she": "she",
    "her": "she",
    "hers": "she",
    "herself": "herself",
    "they": "they",
    "them": "they",
    "their": "they",
    "theirs": "they",
}
_SUBJECTS = bag("i you he she we they it")
_FOCUSING = bag("only solely merely exclusively even every each some no most few")
_CASES = {
    word: (person, case)
    for case, words_of in (
        ("subject", {"i": "i", "he": "he", "she": "she", "we": "we", "they": "they"}),
        ("object", {"me": "i", "him": "he", "us": "we", "them": "they"}),
        ("owner", {"my": "i", "mine": "i", "his": "he", "her": "she", "hers": "she", "our": "we", "ours": "we"}),
        ("owner", {"their": "they", "theirs": "they"}),
    )
    for word, person in words_of.items()
}
_FIRST = bag("i me my mine myself we us our ours")
_SECOND = bag("you your yours yourself")
# "can I", "should one", "to": whoever it is about, the answer is the same.
_ANYBODY_AFTER = bag("can could should would may might must if when to let")
_ASKING = bag("and know tell me wonder exactly about since until from")
_TELLING = bag("tell give show help let teach send ask remind call get bring")
_SMALL_IN_TITLES = bag("of the a an in on and or to for with at by from")
_NAME_BREAKS = re.compile(r"[.!?:;\n]\s*$|^\s*$|[\"'(\u201c]\s*$")
# "for somebody who knows SQL" asks for nobody.
_SOMEBODY = bag("someone somebody anyone anybody everyone everybody nobody person people those")
_ANSWER_WORDS = frozenset(("what", "which", "who", "whom", "whose", "when", "where", "why", "how"))
_HOW = {"many": "count", "much": "amount", "long": "duration", "often": "frequency", "far": "distance", "old": "age"}
_HOW_MORE = {
    "tall": "height",
    "high": "height",
    "big": "size",
    "large": "size",
    "fast": "speed",
    "quickly": "speed",
    "soon": "when",
    "come": "why",
    "frequently": "frequency",
    "expensive": "amount",
    "costly": "amount",
    "heavy": "weight",
    "wide": "width",
    "deep": "depth",
    "hot": "temperature",
    "cold": "temperature",
    "close": "distance",
}
_WHAT = {"time": "when", "day": "when", "date": "when", "year": "when", "place": "where", "reason": "why"}
_ADVISING = bag("can could should may might must")
_AUXILIARIES = bag("is are was were do does did can could will would shall should may might must has have had")
_MODALS = {
    **dict.fromkeys(("can", "could", "may", "might"), "can"),
    **dict.fromkeys(("should", "ought"), "should"),
    **dict.fromkeys(("must",), "must"),
    **dict.fromkeys(("will", "would", "shall"), "will"),
    **dict.fromkeys(("is", "are", "am"), "is"),
    **dict.fromkeys(("was", "were", "did"), "was"),
    **dict.fromkeys(("do", "does", "has", "have", "had"), "does"),
}
_FOREIGN = bag(
    "der die das und ist nicht wie ich ein eine mit fur auf wo warum kann le la les des une est pour dans que qui "
    "avec comment pourquoi je el los las una por para como porque donde cual il gli sono che perche dove di o os "
    "uma nao puedo mi cuando quiero necesito tengo hola bitte mein meine minha meu posso quel quelle voudrais mon "
    "ma mio het een van niet hoe waar waarom och att det som hur"
)
# Words the lexicon knows that are members of no kind: capitals make no names of them ("How do I Increase …").
_EVERYDAY = (frozenset(SYNONYMS) | frozenset(OPPOSITES)) - frozenset(KIND_OF)
_LETTER = re.compile(r"[^\W\d_]")


class Facts(Struct, frozen=True, kw_only=True):
    """One text, taken apart. `content`: stems that carry the topic, in order; `stems`: all of them. `trigrams`: of its
    words, with one space between them."""

    text: str
    words: tuple[str, ...]
    stems: tuple[str, ...]
    stem_set: frozenset[str]
    content: tuple[str, ...]
    content_set: frozenset[str]
    trigrams: frozenset[str]
    numbers: tuple[Number, ...]
    dates: frozenset[str]
    negations: int
    failures: frozenset[str]
    names: frozenset[str]
    quoted: frozenset[str]
    codes: frozenset[str]
    operators: tuple[str, ...]
    symbols: tuple[str, ...]
    marks: Marks
    persons: tuple[str, ...]
    cases: frozenset[tuple[str, str]]
    denied: frozenset[str]
    focus: frozenset[tuple[str, str]]
    first: bool
    second: bool
    question: str
    polar: str
    foreign: bool


@lru_cache(maxsize=4_096)
def analyse(text: str) -> Facts:
    """Everything guards compare. Pure: the same text always gives the same facts."""
    if not text.isascii():
        text = plainly(text).replace("\u2044", "/")  # "x\u00b2", "\u00bd" and "\u2163" are numbers
    found = plainer(words(text))
    plain = tuple(word.text for word in found)
    stems = tuple(stem(word) for word in plain)
    counted = numbers(found)
    in_numbers = Counter(part for number in counted for part in number.text.split())
    content = tuple(
        s for s, w in zip(stems, plain, strict=True) if s not in STOP and not in_numbers.get(w) and s.isalpha()
    )
    first, second = _own_persons(plain)
    return Facts(
        text=text,
        words=plain,
        stems=stems,
        stem_set=frozenset(stems),
        content=content,
        content_set=frozenset(content),
        trigrams=_trigrams(plain),
        numbers=tuple(counted),
        dates=dates_of(plain, stems, in_numbers),
        negations=_negations(text, plain),
        failures=_failures(plain, stems),
        names=_names(text, found),
        quoted=frozenset("".join(match.groups("")).strip().casefold() for match in _QUOTED.finditer(text)),
        codes=frozenset(
            match[0].rstrip(".,;:!?)").casefold() for match in _CODE.finditer(text) if not _QUANTITY.fullmatch(match[0])
        ),
        operators=operators(text, plain),
        symbols=symbols(text, plain),
        marks=marks(text),
        persons=tuple(_PERSONS[word] for word in plain if word in _PERSONS),
        cases=_cases(plain),
        denied=_denied(plain),
        focus=_focus(plain, stems, frozenset(content)),
        first=first,
        second=second,
        question=_question(plain),
        polar=_MODALS.get(plain[0], "") if plain and plain[0] in _AUXILIARIES | {"ought"} else "",
        foreign=_foreign(text, plain),
    )


def _trigrams(plain: tuple[str, ...]) -> frozenset[str]:
    joined = f" {' '.join(plain)} "
    return frozenset(joined[i : i + 3] for i in range(len(joined) - 2))


def _negations(text: str, plain: tuple[str, ...]) -> int:
    """How many words turn the meaning round."""
    stops = sum(word in _STOPPERS and after.endswith("ing") for word, after in pairwise(plain))
    undone = len(_NOT_DONE.findall(" ".join(plain)))
    return max(0, stops + undone + sum(word in _NEGATORS for word in plain) - len(_SILENT_NEGATION.findall(text)))


def _failures(plain: tuple[str, ...], stems: tuple[str, ...]) -> frozenset[str]:
    """Words that say "not" without saying it."""
    halted = {"stop"} if _HALTED.search(" ".join(plain)) else set[str]()
    return frozenset(s for s, w in zip(stems, plain, strict=True) if w in _FAILURES) | halted


def _denied(plain: tuple[str, ...]) -> frozenset[str]:
    """Who does not: the pronouns that are subject of a negated verb ("they can not", "can not they")."""
    found: set[str] = set()
    for i, word in enumerate(plain):
        if word == "not" or word == "never":
            beside = (*plain[max(0, i - 2) : i], *plain[i + 1 : i + 2])
            found |= {other for other in beside if other in _SUBJECTS}
    return frozenset(found)


def _focus(plain: tuple[str, ...], stems: tuple[str, ...], content: frozenset[str]) -> frozenset[tuple[str, str]]:
    """What `only`, `every` and their like point at: the next topic word."""
    return frozenset(
        (word, next((s for s in stems[i + 1 : i + 4] if s in content), ""))
        for i, word in enumerate(plain)
        if word in _FOCUSING
    )


def _cases(plain: tuple[str, ...]) -> frozenset[tuple[str, str]]:
    """Persons with their parts: who acts, who is acted on, whose it is."""
    found: set[tuple[str, str]] = set()
    for i, word in enumerate(plain):
        after = plain[i + 1] if i + 1 < len(plain) else ""
        if word == "her" and (not after or stem(after) in STOP):
            found.add(("she", "object"))
        elif word in _CASES:
            found.add(_CASES[word])
        if i and plain[i - 1] in {"let", "lets"} and word in _CASES:
            found.add((_CASES[word][0], "subject"))  # "should I let him go": it is he who goes
    return frozenset(found)


def _names(text: str, found: list[Word]) -> frozenset[str]:
    """Capitalised words that are not so because a sentence begins or the whole text is written in capitals."""
    written = [word for word in found if word.form and word.form[0].isalpha() and len(word.form) > 1]
    capital = [word for word in written if word.form[0].isupper()]
    if len(written) > 4 and all(word.form[0].isupper() or word.text in _SMALL_IN_TITLES for word in written):
        return frozenset()  # A Title In Capitals, or SHOUTING, says nothing
    names: set[str] = set()
    for word in capital:
        starts = _NAME_BREAKS.search(text[max(0, word.start - 3) : word.start]) is not None
        shouted = word.form.isupper() and len(word.form) > 1
        base = stem(word.text)
        everyday = base in STOP or (not shouted and base in _EVERYDAY)
        if (not starts or shouted) and word.text not in {"i", "i'm", "ok", "okay"} and not everyday:
            names.add(base)
    return frozenset(names)


def _own_persons(plain: tuple[str, ...]) -> tuple[bool, bool]:
    """Whether the text speaks of its writer, and of its reader, beyond "how do I", "can you tell me".

    Who asks how "I" or "you" can do something to what is "my" or "your" own asks how anybody can.
    """
    first = second = False
    asker = _anybody(plain)
    for i, word in enumerate(plain):
        before = plain[i - 1] if i else ""
        if word in {"i", "you", "we"} and before in _ANYBODY_AFTER:
            continue
        if word in {"i", "you", "we"} and before in {"do", "does", "did"} and i > 1 and plain[i - 2] == "how":
            continue
        if (word == "me" and before in _TELLING) or (word == "you" and before in {"can", "could", "will", "would"}):
            continue
        first = first or (word in _FIRST and asker not in _FIRST)
        second = second or (word in _SECOND and asker not in _SECOND)
    return first, second


def _anybody(plain: tuple[str, ...]) -> str:
    """The subject that stands for anybody ("" where there is none): "how do I", "what should you", "do I have to"."""
    for i, word in enumerate(plain):
        if word not in {"i", "we", "you"} or not i or plain[i - 1] not in _ADVISING | {"do", "will"}:
            continue
        before, after = plain[max(0, i - 3) : i - 1], plain[i + 1 : i + 3]
        if "how" in before or after in {("have", "to"), ("need", "to")}:
            return word
        if plain[i - 1] in _ADVISING and not _ANSWER_WORDS.isdisjoint(before):
            return word
    return ""


def _question(plain: tuple[str, ...]) -> str:
    """What kind of answer is asked for: when, where, why, who, count, how … ("" when no question word is there)."""
    for i, word in enumerate(plain):
        if word not in _ANSWER_WORDS or (i and _is_relative(word, plain[i - 1])):
            continue
        if word == "how":
            return _how(plain[i + 1 :])
        if word in {"what", "which"}:
            asked = [_WHAT[other] for other in plain[i + 1 : i + 4] if other in _WHAT]
            return asked[0] if asked else "what"
        if word in {"when", "where"} and i > 0 and plain[i - 1] not in _ASKING:
            continue  # "the app crashes when I …" tells of a situation, it does not ask for one
        if word == "when" and i == 0 and _goes_on_asking(plain):
            continue  # "When the app crashes, what …"
        return "who" if word in {"whom", "whose"} else word
    return ""


def _is_relative(word: str, before: str) -> bool:
    """ "Somebody who knows", "a table whose rows": not asked for."""
    return (word == "who" and before in _SOMEBODY) or (word == "whose" and before not in _ASKING)


def _goes_on_asking(plain: tuple[str, ...]) -> bool:
    return plain[1:2] != () and plain[1] not in _AUXILIARIES and not _ANSWER_WORDS.isdisjoint(plain[2:])


def _how(after: tuple[str, ...]) -> str:
    """`how many hours` asks for a duration, `how many miles` for a distance, `how many apples` for a count."""
    first = after[0] if after else ""
    if first in {"many", "much"} and len(after) > 1:
        kinds = KIND_OF.get(stem(after[1]), frozenset())
        if after[1] == "times":
            return "frequency"
        if kinds & {"span", "length"}:
            return "age" if "old" in after[2:5] else "duration" if "span" in kinds else "distance"
    return _HOW.get(first) or _HOW_MORE.get(first) or "how"


def _foreign(text: str, plain: tuple[str, ...]) -> bool:
    """Whether the text is not (recognisably) English: then none of what is known here applies."""
    letters = _LETTER.findall(text)
    if sum(not letter.isascii() for letter in letters) > 0.15 * len(letters):
        return True
    strange = sum(word in _FOREIGN for word in plain)
    return strange >= 2 and strange > sum(stem(word) in STOP for word in plain)
