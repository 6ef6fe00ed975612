"""A text without its manner of asking: "hi, what's the best way to do X?" and "how do I do X" are both "HOW do X".

Knows how English asks, and which short phrases stand for one another. Does not parse and does not compare; what is no
phrase stays as it is. Upper case marks what was put in for a phrase, so that no word of a text is taken for it.
"""

import re
from functools import lru_cache

from msgspec import Struct

from policies.reuse.english import bag, stem
from policies.reuse.facts import analyse
from policies.reuse.lexicon import STOP
from policies.reuse.roles import passive

_ASKER = r"(?:i|you|we|one|someone|somebody|anyone|people)"
_WHO = rf"(?: {_ASKER})?"
_BEST = r"(?:best|easiest|simplest|right|correct|proper|good|easy|simple|usual|recommended|preferred)"
_KNOW = r"(?:know|understand|find out|learn|ask|figure out|hear|see)"
_TELL = r"(?:tell|show|explain|help|give|remind|teach|advise|inform|let|walk|clarify|confirm|describe|list|name)"
_AGENT = r"(?:you|anyone|anybody|someone|somebody)"
_AUXILIARY = r"(?:is|are|was|were|am|do|does|did|has|have|had|can|could|will|would|shall|should|may|might|must|to)\b"
_WAY = r"(?:way|ways|method|process|procedure|steps|approach|instructions|guide)"

# What may stand before the matter itself, again and again.
_OPENERS = re.compile(
    rf"""^(?:
    (?:please|kindly|hi|hello|hey|there|ok|okay|so|well|sorry|excuse\ me|thanks|quick\ (?:one|question)|just|curious
      |question|and|also|hmm|um)\b
    |(?:can|could|would|will)\ {_AGENT}\ (?:(?:please|kindly|just|quickly)\ )*{_TELL}(?:\ to)?(?:\ me|\ us)?
      (?:\ know|\ through|\ understand|\ out)?(?:\ about|\ on|\ with)?\b
    |(?:i|we)\ (?:just\ )?(?:would\ like|want|need|wish|would\ love|am\ trying|am\ looking)\ to\ {_KNOW}
      (?:\ about|\ if|\ whether)?\b
    |(?:tell|show|teach|remind)\ (?:me|us)(?:\ about)?\b|help\ me(?:\ understand|\ to)?\b|let\ me\ know\b
    |(?:do|does)\ {_AGENT}\ (?:happen\ to\ )?know(?:\ if|\ whether)?\b
    |(?:have\ you\ |do\ you\ have\ )?(?:any|an)\ ideas?(?:\ on|\ about)?\b
    |i\ (?:was|am|have\ been)\ (?:just\ )?(?:wondering|curious|not\ sure)(?:\ if|\ whether|\ about)?\b
    |i\ wonder(?:\ if|\ whether)?\b|wondering(?:\ if|\ whether)?\b|not\ sure\b
    |(?:i\ )?(?:do\ not|can\ not)\ (?:know|understand|figure\ out|see)\b
    )\ *""",
    re.VERBOSE,
)
_CLOSERS = re.compile(
    r" *\b(?:please|thanks|thank you|thx|cheers|if possible|any ideas?|any thoughts|exactly|anyway|for me|do you know)$"
)
_MOST_PEELED = 8
# "A gallon of milk is how many ounces?"
_ASKED_LAST = re.compile(
    r"^(.+?) (?:is|are|has|have|equals?|contains?|holds?|makes?|takes?) how ((?:many|much|long|far)\b.*)$"
)

# How a question begins; the first that fits counts.
_FRAMES = tuple(
    (re.compile("^(?:" + pattern + r")\b"), mark)
    for pattern, mark in (
        (
            (
                r"(?:what is|what are|what would be|is there|which is|are there)? ?(?:the|a|an|any|some)? ?"
                rf"(?:{_BEST} )?{_WAY}(?: for (?:me|us|someone))? (?:to|for|of|in order to|on)"
            ),
            "HOW",
        ),
        (r"what (?:do|can|could|should|must|would|shall) (?:i|we|you|one) do", "what DO"),
        (r"in (?:what|which) way(?= did)", "how"),
        (rf"(?:in|by) (?:what|which) (?:way|means|ways) (?:do|does|can|could|should|would|is|are){_WHO}", "HOW"),
        (r"what (?:do|should|must|would|can) (?:i|we|you|one) (?:have to |need to )?do (?:in order )?to", "HOW"),
        (
            (
                r"what (?:are the )?steps (?:do|should|must|are|does it)?(?: i| we| you)?(?: need| have)?"
                r"(?: needed| required| take| involved| follow)?(?: to take| to follow)?(?: in order)?(?: to| in| for)"
            ),
            "HOW",
        ),
        (
            (
                r"(?:i|we) (?:(?:need|want|would like)(?: help| instructions| a way)|am trying|are trying)"
                r"(?: to| with| for| on)"
            ),
            "HOW",
        ),
        (r"(?:need|looking for) (?:help|instructions|a way)(?: to| with| for| on)?", "HOW"),
        (
            (
                rf"how (?:do|does|can|could|would|should|might|shall|am|is|are|to|will|must){_WHO}"
                r"(?: (?:best|easily|go about|possibly|properly|correctly|supposed to|actually|need to|have to))*"
            ),
            "HOW",
        ),
        (r"(?:am|are|is) (?:i|we|you|one) (?:able|allowed|permitted) to", "CAN"),
        (
            (
                r"(?:is|would) it (?:be )?(?:possible|ok|okay|fine|allowed|permitted|alright|all right|acceptable)"
                r"(?: for (?:me|us|someone))?(?: to| if i| if we| that i)?"
            ),
            "CAN",
        ),
        (
            r"(?:is there )?(?:a|any|some|an easy|a good) (?:way|possibility|option)(?: for (?:me|us))? (?:to|of|for)",
            "CAN WAY",
        ),
        (rf"(?:(?:can|could|may|might) {_ASKER}|(?:will|would) you)(?: be able to| be allowed to)?", "CAN"),
        (rf"(?:do|does|would|will|did) {_ASKER} (?:really |actually |still )?(?:need|have|be required) to", "MUST"),
        (r"must (?:i|we|you|one)|(?:am|are|is) (?:i|we|you|one) (?:required|obliged|obligated|supposed) to", "MUST"),
        (r"is it (?:necessary|required|mandatory|obligatory|compulsory|essential)(?: for (?:me|us))? to", "MUST"),
        (r"(?:should|ought|shall) (?:i|we|you|one)(?: to)?", "SHOULD"),
        (
            (
                r"(?:is|would) it (?:be )?(?:advisable|recommended|a good idea|wise|smart|better|best|sensible)"
                r" (?:for me )?to"
            ),
            "SHOULD",
        ),
        (rf"(?:at |on |in |by )?(?:what|which) (?:time|hour)(?= (?!to\b){_AUXILIARY})", "when HOUR"),
        (rf"(?:at |on |in |by )?(?:what|which) (?:date|day)(?= {_AUXILIARY})", "when DAY"),
        (rf"(?:at |on |in |by )?(?:what|which) point(?= {_AUXILIARY})", "when"),
        (r"what is the date (?:of|for|when)", "when DAY"),
        (r"what is the time (?:of|when)", "when HOUR"),
        (rf"(?:in |at |on )(?:what|which) (?:place|location|spot)(?= {_AUXILIARY})", "where"),
        (r"(?:what|which) (?:place|location|spot) (?=is|are|can|should)", "where "),
        (r"(?:for )?(?:what|which) (?:reason|is the reason|are the reasons)(?: why| that| for| behind)?", "why"),
        (r"how come|what makes", "why"),
        (r"how much time", "how long"),
        (r"what is the (?:total )?number of", "how many"),
    )
)
# "In May", "late May", "6 May": no modal.
_NO_MONTH = "".join(
    rf"(?<!{word} )"
    for word in (
        *("in", "of", "on", "by", "early", "mid", "late", "last", "next", "this", "since", "until", "till"),
        *("before", "after", "from", "to", "and", r"\d", "th", "st"),
    )
)
_SPAN = r"(?:second|minute|hour|day|night|morning|evening|week|month|quarter|year|time)"
# Phrases anywhere that stand for one another.
_PHRASES = tuple(
    (re.compile(rf"\b(?:{pattern})\b"), mark)
    for pattern, mark in (
        (r"prior to|ahead of|in advance of|in the run up to|earlier than|preceding|beforehand", "before"),
        (r"at once|simultaneously|at the same time", "and"),
        (r"in the wake of|subsequent to|afterwards|afterward|following|as soon as", "after"),
        # A "once" that counts is a number.
        (r"once(?! (?:a|an|per|every|each|in|more|again|daily|weekly|monthly|yearly)\b)(?= )", "after"),
        (r"up until|till|up to", "until"),
        (r"instead of|in place of|in lieu of|rather than", "INSTEAD"),
        (r"other than|apart from|aside from|except for|excluding|besides|but not", "except"),
        (r"(?:anything|everything|nothing|all) but", "except"),
        (r"such as|for example|for instance", "SUCH"),
        (r"not ever|never", "not EVER"),
        (r"not any ?more|no longer|not any longer", "not NOW"),
        (r"no|none of|(?:am|are|is|was|were) unable to", "not"),
        (r"not any", "not"),
        (r"tak(?:e|es|ing) place|took place", "happen"),
        (r"decimal places?", "decimals"),
        (r"the year (?=\d)", ""),
        (r"usually|normally|generally|typically|commonly", ""),
        (r"far away", "far"),
        (r"out of", "from"),
        (r"united states(?: of america)?", "us"),
        (r"allows?|permits?|lets", "let"),
        (r"(?:(?:am|are|is|be) )?(?:allowed|permitted|able) to|allowed|permitted", "CAN"),
        (
            r"must|(?:has|have|had|need|needs) to|(?:am|are|is|be) (?:required|obliged|obligated|supposed) to",
            "MUST",
        ),
        (rf"can|could|{_NO_MONTH}may(?! \d)|might", "CAN"),
        (r"c[ao]mes? out|coming out", "released"),
        (r"least expensive", "cheapest"),
        (r"final", "last"),
        (r"in favou?r of", "support"),
        (r"looks? like|looked like", "appearance"),
        (r"should|ought", "SHOULD"),
        (r"as well as|along with|together with|in addition to|alongside|plus|and also", "and"),
        (r"due to|because of|owing to|thanks to", "because"),
        (r"by means of|by using|making use of|with the help of|using|via", "with"),
        (r"in case|provided that|assuming", "if"),
        (rf"(?:each|every|per) (?={_SPAN}\b)", "a "),
        (r"every", "all"),
        (r"a (?:few|little)", "some"),
        (r"each other|one another", "MUTUAL"),
        (r"(?:younger|less|fewer|smaller|lower|shorter) than", "under"),
        (r"(?:older|more|greater|larger|bigger|higher|longer) than", "over"),
        (r"someone|somebody|anyone|anybody", "SOMEONE"),
        (r"myself|yourself|ourselves|oneself|himself|herself|itself|themselves", "SELF"),
        (r"will|would|shall|going to", "FUTURE"),
        (r"did|was|were|had", "PAST"),
        (r"to (?=(?:the|a|an|my|your|his|her|our|their|its|this|that)\b)", "TO "),
    )
)
# What these say is never said in passing.
FIRM = bag(
    "before after until since without except INSTEAD SUCH than unless against over under above below nor but "
    "only all each either neither not few little several most least more less same other another else own MUTUAL "
    "SELF SOMEONE let across beyond inside outside behind near back away off out up down next last enough mid late "
    "early pre post sub semi super latter former"
)
# These may come or go, but none of them stands for another.
LOOSE = bag(
    "with from by through within still already yet again then too and between around long first into "
    "onto during because TO both and or time place HOUR DAY EVER NOW"
)
_SMALL = FIRM | LOOSE
_PLURAL = frozenset("s")  # the 1990s
_OWNERS = {
    **dict.fromkeys(("my", "our", "your"), "i"),
    "YOUR": "you",
    "his": "he",
    "her": "she",
    "their": "they",
    "its": "it",
}
_FIRST_PERSON = bag("i my me we our us")
DETERMINERS = bag("the a an this that these those some any") | frozenset(_OWNERS)
_PREPOSITIONS = bag(
    "of for in from on at with about to TO by near during as many much after before until since without"
)
_OWNER = re.compile(r"\b(\w+)(?:'s|s')(?!\w)")


class Core(Struct, frozen=True):
    """`tokens` in order; `topics`: place and stem of each that carries the topic; `nominal`: places of those and of
    numbers; `owning`: stems with 's; `passive`: done by somebody."""

    tokens: tuple[str, ...]
    topics: tuple[tuple[int, str], ...]
    nominal: frozenset[int]
    owning: frozenset[str]
    passive: bool

    def owner(self, at: int) -> str:
        """Whose the thing at `at` is: "i", "he" …; "" if nobody says."""
        return _OWNERS.get(self.tokens[at - 1], "") if at else ""

    def led(self, at: int) -> tuple[str, int]:
        """The preposition before the words that the one at `at` is the last of, and its place; "" and -1: none."""
        at -= 1
        while at >= 0 and (at in self.nominal or self.tokens[at] in DETERMINERS):
            at -= 1
        return (self.tokens[at], at) if at >= 0 and self.tokens[at] in _PREPOSITIONS else ("", -1)

    def runs(self, one: int, other: int) -> bool:
        """Whether nothing but topic words and numbers stands between two places."""
        return all(place in self.nominal for place in range(one + 1, other))


@lru_cache(maxsize=4_096)
def core(text: str) -> Core:
    """Pure: the same text always gives the same core."""
    facts = analyse(text)
    said = _ASKED_LAST.sub(r"how \2 \1", _peeled(" ".join(facts.words)))
    for pattern, mark in _FRAMES:
        framed = pattern.sub(mark, said, count=1)
        if framed != said:
            said = framed
            break
    for pattern, mark in _PHRASES:
        said = pattern.sub(mark, said)
    if not _FIRST_PERSON.isdisjoint(facts.words):
        said = re.sub(r"\byour\b", "YOUR", said)  # no longer anybody's: "how do I change your plan"
    tokens = tuple(said.split())
    counted = frozenset(part for number in facts.numbers for part in number.text.split())
    no_topic = _SMALL | counted
    topics = tuple(
        (at, base)
        for at, token in enumerate(tokens)
        if token.islower()
        and token.isalpha()
        and token not in _PLURAL
        and token not in no_topic
        and (base := stem(token)) not in STOP
    )
    return Core(
        tokens=tokens,
        topics=topics,
        nominal=frozenset((*(at for at, _ in topics), *(at for at, token in enumerate(tokens) if token in counted))),
        owning=frozenset(stem(word) for word in _OWNER.findall(facts.text.casefold().replace("\u2019", "'"))),
        passive=passive(facts),
    )


def _peeled(said: str) -> str:
    """Without what stands before and behind the matter; never nothing at all."""
    for _ in range(_MOST_PEELED):
        less = _CLOSERS.sub("", _OPENERS.sub("", said))
        if less in ("", said):
            break
        said = less
    return said
