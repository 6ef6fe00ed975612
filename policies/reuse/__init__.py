"""When an answer given to one text may serve another: the protocol every reuse policy obeys, and how to find one.

Knows texts, similarities and verdicts. Does not know tenants (only candidates of the asker's own scope get here),
stores, clocks or chance: the same question and neighbours always get the same verdict.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Literal, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace


class Neighbour(Struct, frozen=True, kw_only=True):
    """A kept text near the question. `similarity`: cosine of the embeddings. `age` in seconds.

    `answer_id`: texts that share an answer (an approved paraphrase is one more key of it) share this; None: the entry
    has its answer to itself. `good`, `bad`: how often reuse of this answer was judged right and wrong so far.
    `reading`: log odds that one answer does for both texts, by a model that has read them together; None: none has.
    """

    entry_id: int
    text: str
    similarity: float
    age: float = 0.0
    answer_id: int | None = None
    good: float = 0.0
    bad: float = 0.0
    reading: float | None = None

    @property
    def answer(self) -> int:
        return self.entry_id if self.answer_id is None else self.answer_id


class Budget(Struct, frozen=True, kw_only=True):
    """How much error is allowed: wrong answers over all requests, and over answers served from the cache."""

    max_error_rate: float = 0.01
    max_wrong_hit_rate: float = 0.05


class Note(Struct, frozen=True, kw_only=True):
    """What was thought of one neighbour: the guard that forbade it, if one did."""

    entry_id: int
    guard: str | None = None
    confidence: float | None = None


class Evidence(Struct, frozen=True, kw_only=True):
    """What a learning policy saw of one answer, kept until it is known whether that answer was right.

    `probability` that it is right and `risk` = 1 - the cautious bound of that. `features`: float32, as the policy
    laid them out. `guards`: those that spoke against it, `veto`: the one that forbids it. `best`: the least risky of
    its request, served or not. `wanted`: it was, or would have been, the one to serve; only these tell how often hits
    are wrong. `chance`: how likely a label was. No text.
    """

    entry_id: int
    answer_id: int
    probability: float = 0.0
    risk: float = 1.0
    features: bytes = b""
    guards: tuple[str, ...] = ()
    veto: str | None = None
    wanted: bool = False
    chance: float = 1.0
    best: bool = False


class Outcome(Struct, frozen=True, kw_only=True):
    """Whether the answer in `evidence` was the `same` as a fresh one.

    `kind`: "explore" for a request that went to the model anyway, "audit" for a hit checked by chance, "feedback" for
    a person's word. `flip`: how often whoever says so is known to be wrong.
    """

    evidence: Evidence
    same: bool
    kind: Literal["explore", "audit", "feedback"] = "explore"
    flip: float = 0.0


# What is left of a probability where a guard forbids the pair: guards are right about nine of ten.
_VETOED = 0.1


def believed(evidence: Evidence, flip: float) -> float:
    """The chance that an answer is the same which a judge calls so who errs with chance `flip`.

    Most of what is compared is different: of a hundred such pairs, a judge who errs on four calls four the same.
    A guard that knows a reason makes it unlikely; `unexplained` only says that nobody knows of none.
    """
    known = evidence.veto not in {None, "unexplained"}
    likely = min(evidence.probability, _VETOED) if known else evidence.probability
    right, wrong = likely * (1.0 - flip), (1.0 - likely) * flip
    return right / (right + wrong) if right > 0.0 else float(flip <= 0.0)


class Serve(Struct, frozen=True, kw_only=True):
    """Answer with this entry. `confidence`: estimated probability that its answer is right here.

    `audit`: the chance with which the caller has this hit checked against a fresh answer, by a coin of its own.
    """

    entry_id: int
    confidence: float
    notes: tuple[Note, ...] = ()
    risk: float = 1.0
    audit: float = 0.0
    evidence: tuple[Evidence, ...] = ()


class Explore(Struct, frozen=True, kw_only=True):
    """Ask the model, then compare its answer with this entry's: that is how boundaries are learned.

    With `evidence`, compare with the answer of each; the first that is the same gets the text as one more key.
    `unread`: entries one of which might be served once a model has read both texts: whoever has one asks again with
    these neighbours' `reading`.
    """

    entry_id: int
    notes: tuple[Note, ...] = ()
    reason: str = "explore"
    evidence: tuple[Evidence, ...] = ()
    unread: tuple[int, ...] = ()


class Regenerate(Struct, frozen=True, kw_only=True):
    """Ask the model. `reason` in a word: far, guard, budget …"""

    reason: str
    notes: tuple[Note, ...] = ()


Verdict = Serve | Explore | Regenerate


def unread(verdict: Verdict) -> tuple[int, ...]:
    """The entries whose texts are to be read together with the question before it can be decided."""
    return verdict.unread if isinstance(verdict, Explore) else ()


def told(neighbours: Sequence[Neighbour], readings: Mapping[int, float]) -> list[Neighbour]:
    """The same neighbours, those in `readings` (log odds by entry) read. What is no number has told nothing."""
    known = {entry_id: odds for entry_id, odds in readings.items() if not math.isnan(odds)}
    return [replace(item, reading=known[item.entry_id]) if item.entry_id in known else item for item in neighbours]


class ReusePolicy(Protocol):
    """Pure: no memory between calls, no clock, no chance."""

    @property
    def floor(self) -> float:
        """No neighbour below this similarity can ever be served, so it need not be fetched."""
        ...

    def judge(self, text: str, neighbours: Sequence[Neighbour], budget: Budget) -> Verdict:
        """What to do with `text`, given the nearest kept texts in any order."""
        ...


S = TypeVar("S")


class LearningPolicy(ReusePolicy, Protocol[S]):
    """A policy that learns per scope. All it knows is in the state: a value, replaced and never changed.

    Folding the same outcomes over the same state gives the same state wherever it is done.
    """

    @property
    def aliases(self) -> bool:
        """Whether a text judged to have the same answer becomes one more key of that answer; else it is not kept."""
        ...

    def fresh(self) -> S:
        """The state of a scope that was never asked."""
        ...

    def decide(self, state: S, text: str, neighbours: Sequence[Neighbour], budget: Budget) -> Verdict:
        """`judge` with what the scope has learned."""
        ...

    def count(self, state: S, verdict: Verdict, *, served: bool) -> S:
        """After every verdict, once: how it ended. A hit that was answered fresh for an audit is not `served`."""
        ...

    def learn(self, state: S, outcome: Outcome) -> S:
        """After every label, in any order."""
        ...


# What policies are made of.
_PARTS = frozenset(
    (
        *("guards", "english", "facts", "lexicon", "relations", "roles", "agents", "clauses", "moods", "places"),
        *("roots", "signs", "unexplained", "wordings", "phrases", "idioms", "days", "dates", "bonds"),
        *("pairs", "logistic", "curve", "prior", "spending"),
    )
)


def known() -> list[str]:
    """Policies have a module of their own with a class `Policy`."""
    return list(_in_folders(tuple(__path__)))


@cache
def _in_folders(folders: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(module.name for module in iter_modules(folders) if module.name not in _PARTS))


def load(name: str) -> ModuleType:
    """The module of a policy. Raises LookupError naming the known ones."""
    if name not in known():
        raise LookupError(f"Unknown reuse policy {name!r}. Known: {', '.join(known())}.")
    return import_module(f"{__name__}.{name}")
