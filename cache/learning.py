"""What a scope has learned, kept and shared: the policy's state, each answer's record, and what is quarantined.

Knows how a learning policy's state is folded and written down, and how a policy that learns nothing is treated alike.
Does not know entries, texts, or who judges. A state of another policy, of another version of it or on another basis
(the prior that says what its numbers are about) is put aside, and found again by whoever goes back to that.
"""

from collections.abc import Callable
from typing import Any, cast

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from cache.vectors import Vector, pack, unpack
from policies.reuse import (
    Budget,
    Evidence,
    Explore,
    LearningPolicy,
    Neighbour,
    Outcome,
    Regenerate,
    ReusePolicy,
    Serve,
    Verdict,
)
from policies.reuse.pairs import NAMES
from policies.reuse.spending import proves

# So many answers' records are kept in each scope, those judged last; and so many neighbourhoods are shut.
_MOST_RECORDS = 512
MOST_SPOTS = 32
_MOST_CHECKED = 2_000  # by a fixed policy's audits; then old ones count half
_FALSE_ALARM = 0.05
# A spot reaches at most so far, and a little beyond what half precision blurs.
_WIDEST, _SLACK = 0.6, 1e-3


class Spot(Struct, frozen=True, array_like=True):
    """A neighbourhood in which nothing is served by meaning: all within `reach` (cosine) of `vector` (packed).

    `firm`: a person shut it; it never gives way to others.
    """

    vector: bytes
    reach: float
    firm: bool = False


class Record(Struct, frozen=True):
    """All that is kept of one scope. `answers`: right and wrong reuses by answer. `shut`: people shut all of it.

    `policy`: whose `state` it is, and on which basis. `aside`: the same of the one before, so that two releases that
    share a store for a while do not undo each other's learning.
    """

    policy: str = ""
    state: bytes = b""
    answers: dict[int, tuple[float, float]] = {}
    spots: tuple[Spot, ...] = ()
    shut: bool = False
    aside: tuple[str, bytes] = ("", b"")


class Counted(Struct, frozen=True):
    """A verdict was given, and this is how it ended."""

    verdict: Verdict
    served: bool


class Judged(Struct, frozen=True):
    """Somebody has said whether answers were the same. `near`: where that was; `verified`: it opens what was shut."""

    outcomes: tuple[Outcome, ...]
    near: bytes = b""
    verified: bool = False


class Shut(Struct, frozen=True):
    """Nothing near is to be served until newly verified."""

    spot: Spot


Event = Counted | Judged | Shut


class Scope(Struct, frozen=True):
    """A record with its state decoded, ready to decide with."""

    state: Any
    record: Record
    vectors: Any = None

    def shuts(self, vector: Vector) -> bool:
        """Whether `vector` lies in a quarantined neighbourhood."""
        if self.record.shut:
            return True
        if self.vectors is None:
            return False
        reaches = np.asarray([spot.reach for spot in self.record.spots], np.float32)
        return bool(np.any(self.vectors @ vector >= reaches))


class Checked(Struct, frozen=True, array_like=True):
    """What audits found of a fixed policy: hits `checked`, `wrong` ones, and how many the judge is expected to have
    called wrongly."""

    checked: int = 0
    wrong: int = 0
    flips: float = 0.0


class Fixed:
    """A policy that learns nothing, as one that does: its state counts audits; it stops where they prove it wrong."""

    aliases = False

    def __init__(self, policy: ReusePolicy) -> None:
        self._policy = policy

    @property
    def floor(self) -> float:
        return self._policy.floor

    def fresh(self) -> Checked:
        return Checked()

    def judge(self, text: str, neighbours: "list[Neighbour]", budget: Budget) -> Verdict:
        return self._policy.judge(text, neighbours, budget)

    def decide(self, state: Checked, text: str, neighbours: "list[Neighbour]", budget: Budget) -> Verdict:
        verdict = self._policy.judge(text, neighbours, budget)
        if not isinstance(verdict, Serve):
            return verdict
        served = next(item for item in neighbours if item.entry_id == verdict.entry_id)
        confidence = verdict.confidence
        seen = Evidence(
            entry_id=served.entry_id, answer_id=served.answer, probability=confidence, risk=1 - confidence, wanted=True
        )
        if _proven(state, budget.max_wrong_hit_rate):
            return Explore(entry_id=verdict.entry_id, notes=verdict.notes, reason="brake", evidence=(seen,))
        return replace(verdict, evidence=(seen,))

    def count(self, state: Checked, verdict: Verdict, *, served: bool) -> Checked:
        del verdict, served
        return state

    def learn(self, state: Checked, outcome: Outcome) -> Checked:
        """What would have been served counts, also while it is not; what people report is no sample of that."""
        if outcome.kind == "feedback" or not outcome.evidence.wanted:
            return state
        found = Checked(state.checked + 1, state.wrong + (not outcome.same), state.flips + outcome.flip)
        if found.checked < _MOST_CHECKED:
            return found
        return Checked(found.checked // 2, found.wrong // 2, found.flips / 2)

    def brief(self, state: Checked, budget: Budget) -> dict[str, float]:
        braked = float(_proven(state, budget.max_wrong_hit_rate))
        return {"audited": state.checked, "audited_wrong": state.wrong, "braked": braked}


def _proven(state: Checked, allowed: float) -> bool:
    """Whether audits prove that more hits are wrong than allowed, as for the policy that learns."""
    return proves(state.checked, state.wrong, state.flips, allowed, _FALSE_ALARM)


def basis_of(policy: ReusePolicy) -> str:
    """What the numbers of a policy's states and evidence are about; empty where they mean the same for ever."""
    return getattr(policy, "basis", "")


def learning(policy: ReusePolicy) -> LearningPolicy[Any]:
    """`policy` if it learns, else in the clothes of one that does."""
    if hasattr(policy, "decide"):
        return cast("LearningPolicy[Any]", policy)
    return cast("LearningPolicy[Any]", Fixed(policy))


class ScopeForm:
    """Implements `cache.folded.Form` for scopes."""

    def __init__(self, policy: LearningPolicy[Any]) -> None:
        self._policy = policy
        self._module = type(policy).__module__
        basis = basis_of(policy)
        self._name = f"{self._module}@{basis}" if basis else self._module
        self._kind = type(policy.fresh())
        self._state = msgspec.msgpack.Decoder(self._kind)
        self._record = msgspec.msgpack.Decoder(Record)

    def fresh(self) -> Scope:
        return Scope(self._policy.fresh(), Record())

    def fold(self, value: Scope, event: Event) -> Scope:
        match event:
            case Counted():
                state = self._policy.count(value.state, event.verdict, served=event.served)
                return value if state is value.state else replace(value, state=state)
            case Judged():
                return self._judged(value, event)
            case Shut():
                return _scope(value.state, _shut(value.record, event.spot))

    def _judged(self, value: Scope, event: Judged) -> Scope:
        state, answers = value.state, dict(value.record.answers)
        for outcome in event.outcomes:
            state = self._policy.learn(state, outcome)
            answer = outcome.evidence.answer_id
            right, wrong = answers.pop(answer, (0.0, 0.0))
            answers[answer] = (right + outcome.same, wrong + (not outcome.same))
        while len(answers) > _MOST_RECORDS:
            del answers[next(iter(answers))]
        record = replace(value.record, answers=answers)
        if event.verified and (record.spots or record.shut):
            record = _opened(value, record, event.near)
        return _scope(state, record)

    def encode(self, value: Scope) -> bytes:
        state = msgspec.msgpack.encode(value.state)
        return msgspec.msgpack.encode(replace(value.record, policy=self._name, state=state))

    def decode(self, blob: bytes) -> Scope | None:
        """None for bytes of nobody. Another policy's state is put aside; what is quarantined stays so."""
        try:
            record = self._record.decode(blob)
        except msgspec.DecodeError:
            return None
        if record.policy == self._name:
            return _scope(self._begun(record.state), record)
        theirs, ours = (record.policy, record.state), record.aside
        record = replace(record, policy=self._name, aside=theirs if theirs[0] else ours)
        return _scope(self._begun(ours[1]) if ours[0] == self._name else self._after(*theirs), record)

    def _begun(self, raw: bytes) -> Any:
        """A state as it was written; a new one where that cannot be decided with."""
        found = self._read(raw)
        fits: Callable[[Any], bool] | None = getattr(self._policy, "fits", None)
        return self._policy.fresh() if found is None or (fits is not None and not fits(found)) else found

    def _after(self, name: str, raw: bytes) -> Any:
        """The state of a scope that has learned something else so far."""
        begin: Callable[[Any], Any] | None = getattr(self._policy, "begin", None)
        found = self._read(raw) if begin is not None and name.partition("@")[0] == self._module else None
        return self._policy.fresh() if begin is None or found is None else begin(found)

    def _read(self, raw: bytes) -> Any:
        try:
            return self._state.decode(raw)
        except msgspec.DecodeError:
            return None


def _scope(state: Any, record: Record) -> Scope:
    if not record.spots:
        return Scope(state, record)
    try:
        return Scope(state, record, np.stack([unpack(spot.vector) for spot in record.spots]))
    except ValueError:
        return Scope(state, replace(record, shut=True))


def _shut(record: Record, spot: Spot) -> Record:
    """One more spot. Where there are too many, the oldest that no person shut gives way, else the whole scope is."""
    spots = record.spots
    if len(spots) >= MOST_SPOTS:
        loose = next((i for i, held in enumerate(spots) if not held.firm), None)
        if loose is None:
            return replace(record, shut=True) if spot.firm else record
        spots = spots[:loose] + spots[loose + 1 :]
    return replace(record, spots=(*spots, spot))


def _opened(value: Scope, record: Record, near: bytes) -> Record:
    """Reuse was found right there: the spots around it are open again. Once all are, the scope is."""
    vector = unpack(near)
    kept = tuple(
        spot
        for spot, held in zip(record.spots, value.vectors if value.vectors is not None else (), strict=False)
        if float(held @ vector) < spot.reach
    )
    return replace(record, spots=kept, shut=record.shut and len(kept) >= MOST_SPOTS)


def shut(vector: Vector, similarity: float, *, firm: bool) -> Shut:
    """Around a question that was answered wrongly by a key this near: what is as near to that key is inside as well."""
    return Shut(Spot(pack(vector), max(_WIDEST, 2.0 * similarity * similarity - 1.0 - _SLACK), firm))


def guarded(verdict: Verdict, scope: Scope, vector: Vector) -> Verdict:
    """`verdict`, unless it would serve in a neighbourhood that is shut."""
    if isinstance(verdict, Serve) and scope.shuts(vector):
        return Explore(entry_id=verdict.entry_id, notes=verdict.notes, reason="quarantine", evidence=verdict.evidence)
    return verdict


def evidence_of(verdict: Verdict) -> tuple[Evidence, ...]:
    return () if isinstance(verdict, Regenerate) else verdict.evidence


def named(features: bytes) -> dict[str, float]:
    """Features by name, zeros left out; empty for a layout this version does not know."""
    if len(features) != 4 * len(NAMES):
        return {}
    values = np.frombuffer(features, "<f4")
    return {name: round(float(value), 4) for name, value in zip(NAMES, values, strict=True) if value}
