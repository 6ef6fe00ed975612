"""English text as words, stems and numbers: what guards compare instead of characters.

Knows contractions, number words and a light stemmer. Does not know meaning; wherever it is unsure, two texts come out
more different than they are, which costs a hit and never an answer.
"""

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple


def bag(text: str) -> frozenset[str]:
    """The words of a list written in one line."""
    return frozenset(text.split())


_WORD = re.compile(
    r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*"  # letters, apostrophes inside
    r"|\d+(?:[.,:/]\d+)*"  # 1,000  3.5  10:30  24/7
    r"|[%$\u20ac\u00a3\u00a5\u00b0]"  # what a number may carry
)
_CONTRACTED = {
    "cannot": "can not",
    "cant": "can not",
    "dont": "do not",
    "doesnt": "does not",
    "didnt": "did not",
    "isnt": "is not",
    "arent": "are not",
    "wasnt": "was not",
    "werent": "were not",
    "wont": "will not",
    "wouldnt": "would not",
    "couldnt": "could not",
    "shouldnt": "should not",
    "hasnt": "has not",
    "havent": "have not",
    "hadnt": "had not",
    "im": "i am",
    "ive": "i have",
    "whats": "what is",
    "hows": "how is",
    "wheres": "where is",
    "whos": "who is",
    "thats": "that is",
    "gonna": "going to",
    "wanna": "want to",
    "let's": "let us",
    "won't": "will not",
    "can't": "can not",
    "shan't": "shall not",
    "y'all": "you",
    "u": "you",
    "pls": "please",
    "plz": "please",
}
_ENDINGS = {"'re": " are", "'ve": " have", "'ll": " will", "'m": " am", "n't": " not", "'d": " would"}
_IS_AFTER = bag("what where who when why how that there here it he she this everything everyone")
_IRREGULAR_FORMS = (
    ":men:man women:woman children:child people:person feet:foot teeth:tooth mice:mouse wives:wife knives:knife "
    "went:go gone:go goes:go did:do done:do does:do doing:do bought:buy sold:sell lost:lose sent:send paid:pay "
    "made:make took:take taken:take got:get gotten:get gave:give given:give wrote:write written:write "
    "forgot:forget forgotten:forget broke:break broken:break chose:choose chosen:choose spent:spend built:build "
    "kept:keep left:leave met:meet read:read ran:run saw:see seen:see sat:sit spoke:speak spoken:speak "
    "stood:stand stole:steal stolen:steal taught:teach told:tell thought:think understood:understand won:win "
    "wore:wear began:begin begun:begin came:come became:become drew:draw drove:drive driven:drive ate:eat eaten:eat "
    "fell:fall fallen:fall felt:feel found:find flew:fly froze:freeze frozen:freeze grew:grow grown:grow heard:hear "
    "held:hold knew:know known:know led:lead meant:mean rose:rise said:say sang:sing slept:sleep swam:swim "
    "threw:throw woke:wake is:be are:be was:be were:be been:be being:be am:be has:have had:have having:have "
    "better:better analyses:analysis criteria:criterion data:data dying:die lying:lie tying:tie using:use "
    "used:use uses:use born:birth bitten:bite bit:bite beaten:beat caught:catch brought:bring hidden:hide "
    "drawn:draw blown:blow flown:fly sung:sing sunk:sink torn:tear worn:wear shown:show fed:feed fought:fight "
    "lent:lend laid:lay rode:ride ridden:ride shot:shoot shook:shake stuck:stick struck:strike swept:sweep news:news "
    "kgs:kg lbs:lb hrs:hr freed:free agreed:agree guaranteed:guarantee "
    "sued:sue suing:sue owed:owe owing:owe died:die tied:tie lied:lie dyed:dye aged:age aging:age iced:ice "
    "thrown:throw rang:ring rung:ring drank:drink drunk:drink sought:seek bred:breed dealt:deal dug:dig hung:hang "
    "forgave:forgive forgiven:forgive forbade:forbid forbidden:forbid mistook:mistake mistaken:mistake lit:light "
    "overcame:overcome overthrew:overthrow overthrown:overthrow sank:sink shaken:shake shrank:shrink shrunk:shrink "
    "spun:spin sprang:spring stung:sting swore:swear sworn:swear swung:swing undertook:undertake undertaken:undertake "
    "withdrew:withdraw withdrawn:withdraw wove:weave woven:weave woken:wake crept:creep knelt:kneel leapt:leap "
    "slid:slide evening:evening evenings:evening morning:morning mornings:morning"
)
_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_SMALL_ORDINALS = (
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth fifteenth "
    "sixteenth seventeenth eighteenth nineteenth twentieth"
)
_IRREGULAR = {form: base for form, _, base in (pair.partition(":") for pair in _IRREGULAR_FORMS.split(" "))}
_SCALES = {"hundred": 100.0, "thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}
_VALUES: dict[str, float] = {
    "dozen": 12.0,
    "half": 0.5,
    "twice": 2.0,
    "double": 2.0,
    "triple": 3.0,
    "once": 1.0,
    "single": 1.0,
    "ii": 2.0,
    "iii": 3.0,
    "iv": 4.0,
    "vi": 6.0,
    "vii": 7.0,
    "viii": 8.0,
    "ix": 9.0,
    "xi": 11.0,
    "xii": 12.0,
    "xiii": 13.0,
    "xiv": 14.0,
    "xv": 15.0,
    "xvi": 16.0,
    "xvii": 17.0,
    "xviii": 18.0,
    "xix": 19.0,
}
_VALUES.update((word, float(value)) for value, word in enumerate(_SMALL.split(" ")))
_FEW = bag(_SMALL)
_VALUES.update((word, 20.0 + 10.0 * tens) for tens, word in enumerate(_TENS.split(" ")))
_VALUES.update((word.removesuffix("y") + "ies", 20.0 + 10.0 * tens) for tens, word in enumerate(_TENS.split(" ")))
_ORDINALS: dict[str, float] = {word: float(i + 1) for i, word in enumerate(_SMALL_ORDINALS.split(" "))}
_SUFFIX = {"k": 1e3, "m": 1e6, "mn": 1e6, "bn": 1e9, "st": 1.0, "nd": 1.0, "rd": 1.0, "th": 1.0, "x": 1.0}
# Floats tell whole numbers of so many digits apart; the greatest prime below 2^53.
_EXACT_DIGITS, _PRIME = 15, 9_007_199_254_740_881
_BE = bag("is are was were has have had")
_ARTICLES = bag("a an the another")
_DEGREES, _SCALES_OF_HEAT = bag("degree degrees"), bag("celsius fahrenheit kelvin centigrade c f")
_ASKS = _BE | bag("do does did can could will would shall should may might must")
_VOWEL = re.compile(r"[aeiouy]")
# "caring" is of "care": had it been of "car", the r would be doubled.
_LOST_E = re.compile(r"[^aeiou][aeiouy][^aeiouwxy]")
# They lose their e to no other word: "plane" is not "plan".
_KEEP_E = bag("quite plane paste stripe scare stare spare severe premiere morale humane twine")


class Word(NamedTuple):
    """`text` lower case and expanded; `form` as written (empty for the added half of a contraction)."""

    text: str
    form: str
    start: int


class Number(NamedTuple):
    """`value`, written as `text`; `follows` and `precedes` are the words after and before it ("" at either end)."""

    value: float
    text: str
    follows: str
    precedes: str


def plainly(text: str) -> str:
    """NFKC: one way to write each letter. Where that makes a text long (one sign can become 18) it stays as it is."""
    folded = unicodedata.normalize("NFKC", text)
    return folded if len(folded) <= 2 * len(text) else text


def words(text: str) -> list[Word]:
    """The words of `text` in order, contractions expanded, possessive 's dropped."""
    return list(_words(text))


@lru_cache(maxsize=512)
def _words(text: str) -> tuple[Word, ...]:
    found: list[Word] = []
    shouted = text.isupper()
    for match in _WORD.finditer(text):
        # "US" in a text that does not shout is a country.
        parts = ["usa"] if match[0] == "US" and not shouted else _expand(_plain(match[0].lower()))
        found += [Word(part, match[0] if i == 0 else "", match.start()) for i, part in enumerate(parts)]
    return tuple(found)


def _plain(word: str) -> str:
    """Straight apostrophes, and no accents where English writes none ("caf\u00e9"); other scripts stay as they are."""
    if word.isascii():
        return word
    straight = word.replace("\u2019", "'")
    bare = "".join(letter for letter in unicodedata.normalize("NFD", straight) if not unicodedata.combining(letter))
    return bare if bare.isascii() else straight


def _expand(word: str) -> list[str]:
    if word in _CONTRACTED:
        return _CONTRACTED[word].split()
    for ending, full in _ENDINGS.items():
        if word.endswith(ending) and len(word) > len(ending):
            return (word.removesuffix(ending) + full).split()
    if word.endswith("'s"):
        base = word[:-2]
        return [base, "is"] if base in _IS_AFTER else [base]
    return [word.rstrip("'")]


def stem(word: str) -> str:
    """One form for plural, tense and -ing: `policies` and `policy`, `stopped` and `stop`. Cruder than a dictionary."""
    if word in _IRREGULAR:
        return _tidy(_IRREGULAR[word])
    if len(word) <= 3 or not word.isalpha():
        return word
    return _tidy(_without_tense(word) or _without_plural(word))


def _without_tense(word: str) -> str | None:
    if word.endswith("eed"):
        return None
    for ending in ("ing", "ed"):
        base = word.removesuffix(ending)
        if base != word and len(base) >= 3 and _VOWEL.search(base):
            doubled = len(base) > 3 and base[-1] == base[-2] and base[-1] not in "lsz"
            return base[:-1] if doubled else base + "e" if _LOST_E.fullmatch(base) else base
    return None


def _without_plural(word: str) -> str:
    if word.endswith(("ies", "ied")) and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "xes", "ches", "shes", "zes")):
        return word[:-2]
    if word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word.removesuffix("ly") if len(word) > 5 else word


def _tidy(base: str) -> str:
    """`change` and `changing`, `verify` and `verifies` meet; `car` and `care` do not."""
    if len(base) > 4 and base.endswith("e") and base not in _KEEP_E:
        base = base[:-1]
    if len(base) > 5 and base.endswith("ll"):
        base = base[:-1]
    return base[:-1] + "y" if len(base) > 3 and base.endswith("i") else base


def numbers(sequence: Sequence[Word]) -> list[Number]:
    """Quantities in digits or words: `1,000` and `a thousand`, `21st` and `twenty first`, `3.50`, `10:30`."""
    found: list[Number] = []
    i = 0
    while i < len(sequence):
        value, used = _number_at(sequence, i)
        if value is None:
            i += 1
            continue
        after = sequence[i + used].text if i + used < len(sequence) else ""
        if after in _DEGREES and i + used + 1 < len(sequence) and sequence[i + used + 1].text in _SCALES_OF_HEAT:
            after = sequence[i + used + 1].text
        before = sequence[i - 1].text if i else ""
        found.append(Number(value, " ".join(word.text for word in sequence[i : i + used]), after, before))
        i += used
    return found


def _number_at(sequence: Sequence[Word], i: int) -> tuple[float | None, int]:
    word = sequence[i].text
    if word[0].isdigit():
        return _digits(sequence, i)
    if (word == "one" and _is_anybody(sequence, i)) or (word == "second" and _is_time(sequence, i)):
        return None, 0
    if word in _ORDINALS:
        return _ORDINALS[word], 1
    if word not in _VALUES and not (word == "a" and i + 1 < len(sequence) and sequence[i + 1].text in _SCALES):
        return None, 0
    return _spelled(sequence, i)


def _is_anybody(sequence: Sequence[Word], i: int) -> bool:
    """ "how does one", "one should", "a lunar one", "renting or buying one": a pronoun."""
    before = sequence[i - 1].text if i else ""
    after = sequence[i + 1].text if i + 1 < len(sequence) else ""
    if not after:
        return before.endswith("ing") or (i > 1 and sequence[i - 2].text in _ARTICLES)
    return before in _ASKS or after in _ASKS - _BE


def _is_time(sequence: Sequence[Word], i: int) -> bool:
    """ "Five second", "longer than a second": sixty of them are a minute."""
    before = sequence[i - 1].text if i else ""
    return before[:1].isdigit() or before in _FEW or (before == "a" and i + 1 == len(sequence))


def _digits(sequence: Sequence[Word], i: int) -> tuple[float | None, int]:
    """`1,000` `3.5` `10:30` `7/8`; a suffix glued to it (`5k`, `21st`) belongs to it."""
    word = sequence[i]
    plain = re.sub(r",(?=\d{3}(\D|$))", "", word.text)
    pieces = [piece for piece in re.split(r"[:/,]", plain) if piece]
    try:
        # Times and dates become one number that no other time or date shares.
        value = sum(float(piece) * 1_000.0**k for k, piece in enumerate(reversed(pieces)))
    except (ValueError, OverflowError):
        value = _token(plain)  # versions and addresses: 1.2.3, 192.168.0.1; a hundred numbers with commas between
    if len(plain) > _EXACT_DIGITS or (plain.isdigit() and plain.startswith("00")):
        value = _token(plain)
    fraction = plain.partition(".")[2]
    if fraction.endswith("0") and fraction.strip("0"):
        value += 1e-9  # version 3.10 is not version 3.1; 5.00 is 5
    after = sequence[i + 1] if i + 1 < len(sequence) else None
    used = 1
    if after is not None and after.start == word.start + len(word.form) and after.text in _SUFFIX:
        return value * _SUFFIX[after.text], 2
    if after is not None and after.text in _SCALES:
        return value * _SCALES[after.text], 2
    return value, used


def _token(digits: str) -> float:
    """One number for a string of digits and dots, another one for any other: floats end at sixteen digits."""
    return float(int.from_bytes(digits.encode(), "big") % _PRIME)


def _spelled(sequence: Sequence[Word], i: int) -> tuple[float, int]:
    """`twenty one`, `two hundred and five`, `a million`; stops where the words stop adding up."""
    total, current, used = 0.0, 0.0, 0
    while i + used < len(sequence):
        word = sequence[i + used].text
        if word in _SCALES:
            current = (current or 1.0) * _SCALES[word]
            if _SCALES[word] >= 1e3:
                total, current = total + current, 0.0
        elif word in _VALUES and _adds_up(current, _VALUES[word]):
            current += _VALUES[word]
        elif word in _ORDINALS and current >= 20 and _ORDINALS[word] < 10:
            return total + current + _ORDINALS[word], used + 1
        elif not (word == "a" and used == 0) and not (
            word == "and" and current >= 100 and _goes_on(sequence, i + used)
        ):
            break
        used += 1
    return total + current, max(1, used)


def _adds_up(current: float, value: float) -> bool:
    """`twenty` + `one` and `hundred` + `five` are one number; `nineteen` + `eighty` are two."""
    return (
        current == 0.0
        or (current % 100 >= 20 and current % 10 == 0 and 0 < value < 10)
        or (current >= 100 and current % 100 == 0)
    )


def _goes_on(sequence: Sequence[Word], at: int) -> bool:
    return at + 1 < len(sequence) and sequence[at + 1].text in _VALUES
