"""Whether two stems are forms of one word: `deliver` and `delivery`, `subscribe` and `subscription`.

A stemmer keeps these apart. What they share must be followed by endings of words on both sides: that two words begin
alike says nothing (`astrology` and `astronomy`, `microscope` and `microwave`). Knows English endings and those words
which only look like forms of one another.
"""

from policies.reuse.english import bag, stem

# Of words whose shared beginning has four letters or more; without the e that stems lose, too.
_ENDINGS = (
    "y er or est ier iest al ial ally ment ion tion ation ition ication isation ization lation ration ant ent ance "
    "ence ancy ency able ible ability ibility ity ness ship ist ism ive ative itive ful age ate ative ize ise izer ify "
    "ic ical ics ian ous ious en ern hood dom ship tion ral lor ler ner mer ter ning ling ition ar ure ular ularity "
    "arity ality icity ivity osity ification ific ance enance ain anation ain cy"
)
_SUFFIXES = frozenset(word.removesuffix("e") for word in _ENDINGS.split()) | {""}
# Of words of three letters: `pay` and `payment`.
_SHORT = frozenset(word.removesuffix("e") for word in bag("ment er or ion tion al able ance ence ity ness ship y est"))
# `decide` and `decision`, `submit` and `submission`, `subscribe` and `subscription`, `retire` and `retirement`.
_CHANGES = frozenset(
    (
        *(("d", "sion"), ("t", "sion"), ("t", "ssion"), ("b", "ption"), ("d", "siv"), ("t", "siv"), ("ss", "ssion")),
        *(("s", "z"), ("d", "s"), ("", "ison"), ("", "u"), ("", "ement")),
        *(("n", "nation"), ("im", "amation"), ("ain", "enanc"), ("ain", "anation"), ("eiv", "eption"), ("v", "f")),
    )
)
# A word, and those that look like forms of it.
_FALSE_FRIENDS = """
universe: university|import: important importance|organ: organic organize organism organization organist|
organize: organism organic|intern: internal|person: personnel|physics: physical physician|physical: physician|
part: party|count: county|custom: customer customs|direct: directory|director: directory|fact: factor factory|
factor: factory|flow: flower|show: shower|general: generate generation generator generic|
generic: generate generation generator|state: station static statement|place: placement|station: static|
contract: contraction|
account: accountant|author: authority authorize|capital: capitalism|hospital: hospitality|mission: missionary|
miner: mineral|mine: mineral|commune: community communism|human: humanity humanist|social: socialism|test: testament|
depart: department|department: departure|apart: apartment|numb: number|butt: butter|sever: several|
form: formal former|formal: former|term: terminal|terminal: termination|critic: critical|critical: criticize|
novel: novelty|major: majority|minor: minority|material: materialism|medic: medication|native: nation national|
opera: operate operation operator|pension: pensioner|product: productive|rational: ration|section: sector|
sentence: sent|sign: signal signature|signal: signature|tail: tailor|tract: tractor|cellar: cell cellular|
brand: brandy|berry: bury|bank: banker|cook: cooker|motor: motion motive|text: texture|tuna: tune|wait: waiter|
past: paste pastor|post: poster|bus: busy business|busy: business|corn: corner|tow: tower|rock: rocker|hum: human|
temper: temperature|universal: universe|historic: historical|economic: economical|alternate: alternative|
stationary: stationery|vision: visionary|relative: relation|stationary: station|police: policy|server: service|
form: format formation|store: story|storage: story|list: listen|unit: unity|port: portal|
part: partner partition|community: communication|commit: commission|quality: qualify|object: objective|
class: classic|host: hostage|company: companion|inform: informal|information: informal|message: mess|rest: restore
"""


def related(word: str, others: frozenset[str]) -> bool:
    """Whether `word` is a form of one of `others`; stems all."""
    return any(word[:3] == other[:3] and _same_root(word, other) for other in others)


def _same_root(a: str, b: str) -> bool:
    if a == b or b in _UNRELATED.get(a, ()):
        return a == b
    # British and American: "favourite" and "favorite".
    a, b = (word.removesuffix("e").replace("our", "or") for word in (a, b))
    if a == b and len(a) > 4:
        return True
    most = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    # Without their e "car" and "care" are one, and are no forms of each other.
    return a != b and any(_ends_well(a[:at], a[at:], b[at:]) for at in range(most, max(2, most - 4), -1))


def _ends_well(shared: str, rest: str, other: str) -> bool:
    if len(shared) == 3:
        return (not rest and other in _SHORT) or (not other and rest in _SHORT)
    return (rest in _SUFFIXES and other in _SUFFIXES) or (rest, other) in _CHANGES or (other, rest) in _CHANGES


def _unrelated() -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for line in _FALSE_FRIENDS.replace("\n", "").split("|"):
        word, _, others = line.partition(":")
        base, looking = stem(word.strip()), frozenset(stem(other) for other in others.split())
        for one, unlike in ((base, looking), *((other, frozenset((base,))) for other in looking)):
            found[one] = found.get(one, frozenset()) | unlike
    return found


_UNRELATED = _unrelated()
