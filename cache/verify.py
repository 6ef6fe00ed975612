"""What becomes of a kept answer once a fresh one is known: compared, learned from, made a key, or taken back.

    compare    a fresh answer beside the kept ones the policy looked at: a label for each, a key for the first
    recheck    a fresh answer beside that of a key which was judged to have it: where it has not, the key goes
    feedback   a person's word on a hit: learned, and where it was wrong, nothing near is served

Knows the judge, what each scope has learned and what is measured of each group. Does not know how entries are found,
where fresh answers come from, or money.
"""

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from cache.folded import Folded
from cache.judging import Judge, Judgement, Pair, text_of
from cache.learning import Judged, Shut, shut
from cache.scopes import Scopes
from cache.store import Store, StoreDown
from cache.trust import TrustForm, broken, measured, name_of, proven
from cache.types import CacheConfig, Entry, Group, Hit, Kept, Miss, Query, Sight, Trust, Weighed
from cache.vectors import Vector, unpack
from policies.reuse import Evidence, Outcome, believed

log = logging.getLogger("nearhit.cache")

T = TypeVar("T")
_MOST_GROUPS = 2_000
_AGAIN = (0.25, 1.0)  # seconds
# Of a group's hits by meaning so far: the chance that an exact hit on a judged key is checked. As the learned policy's.
_KEY_AUDITS = ((500, 0.02), (50, 0.05), (0, 0.2))


class Alert(Struct, frozen=True, kw_only=True):
    """What was measured of a group when it turned out to break its budget, or to keep it."""

    group: Group
    rate: float
    low: float
    high: float
    budget: float


class Watch(Struct, frozen=True, kw_only=True):
    """Whoever wants to know: of every measurement of a group, and why a kept record could not be read.

    `alert`: more hits are wrong than allowed, beyond doubt; once until it ends. `kept`: no more than allowed, as far as
    can be told; at every measurement.
    """

    measured: Callable[[Group, Trust], None] = lambda _group, _trust: None
    alert: Callable[[Alert], None] = lambda _: None
    kept: Callable[[Alert], None] = lambda _: None
    unreadable: Callable[[str], None] = lambda _: None


class Compared(Struct, frozen=True, kw_only=True):
    """`result`: of the answer that was served, or would have been; `none` when nothing could be compared.

    `key`: the answer that has the text as one more key now.
    """

    result: Literal["same", "different", "undecided", "none"] = "none"
    judgements: tuple[Judgement, ...] = ()
    key: int | None = None


class _Ticket(Struct, array_like=True):
    """What feedback needs long after: kept with the request's explanation, opaque to whoever shows that.

    `vector` is empty for an exact hit on a key that was only judged to have its answer. `basis`: what the evidence's
    features are about.
    """

    scope: bytes
    encoder: str
    vector: bytes
    similarity: float
    evidence: Evidence
    group: Group
    basis: str = ""


_encode = msgspec.msgpack.Encoder().encode
_decode_ticket = msgspec.msgpack.Decoder(_Ticket)


class Verifier:
    """One per cache."""

    def __init__(
        self,
        store: Store,
        scopes: Scopes,
        judge: Judge | None,
        *,
        config: CacheConfig,
        watch: Watch,
        monotonic: Callable[[], float],
    ) -> None:
        self._store = store
        self._scopes = scopes
        self._judge = judge
        self._config = config
        self._watch = watch
        self._trust = Folded[Trust, Trust](store, TrustForm(), most=_MOST_GROUPS, monotonic=monotonic)
        self._alarmed: set[Group] = set()

    async def compare(
        self, query: Query, fresh: Kept, found: Hit | Miss, make: Callable[[Entry, Weighed], Entry | None]
    ) -> Compared:
        """Judge the answers in `found.sight` beside `fresh`. `make` makes the entry of a further key, or None.

        Raises StoreDown when nothing can be learned now.
        """
        sight = found.sight
        if sight is None or self._judge is None:
            return Compared()
        entries = await self._entries(query, sight.weighed)
        told = text_of(fresh.answer)
        pairs = [(held, entry, text) for held, entry in entries if (text := text_of(entry.answer)) is not None]
        if told is None or not pairs:
            return Compared()
        judged = await self._judge.compare([_pair(query, text, told) for *_, text in pairs])
        rows = [(held, entry, said) for (held, entry, _), said in zip(pairs, judged, strict=True)]
        kind: Literal["audit", "explore"] = "audit" if isinstance(found, Hit) else "explore"
        result = _result(found, rows)
        await self._learn(query, found, kind, rows, result)
        key = None
        if self._scopes.policy.aliases:
            with suppress(StoreDown):  # what was learned counts all the same
                key = await self._add_key(rows, make, found.most)
        await self._count(query, kind, rows, result, key)
        return Compared(result=result, judgements=tuple(judged), key=key)

    def key_share(self, query: Query) -> float:
        """The chance with which an exact hit on a key that was only judged to have its answer is to be checked."""
        if self._judge is None:
            return 0.0
        hits = (self._trust.peek(name_of(_group(query))) or Trust()).hits
        return next(share for least, share in _KEY_AUDITS if hits >= least)

    async def recheck(
        self, query: Query, fresh: Kept, hit: Hit, embed: Callable[[], Awaitable[Vector | None]]
    ) -> Compared:
        """Judge the answer of a key that was hit exactly beside `fresh`. A wrong one is removed, and counts as a wrong
        hit; `embed` then says around what nothing is served by meaning. Raises StoreDown.
        """
        (entry,) = await _patiently(lambda: self._store.get_many([hit.entry.exact]))
        told = text_of(fresh.answer)
        if entry is None or entry.id != hit.entry.id or entry.scope != query.scope or self._judge is None:
            return Compared()  # gone, or replaced, meanwhile
        held = text_of(entry.answer)
        if told is None or held is None:
            return Compared()
        (said,) = await self._judge.compare([_pair(query, held, told)])
        result = "undecided" if said.verdict == "unsure" else said.verdict
        wrong = result == "different"
        if wrong:
            await _patiently(lambda: self._store.drop_key(entry.exact, entry.id))
        if result != "undecided":
            # Its features are those of a text beside itself, which teach nothing: only the answer's record changes.
            evidence = Evidence(entry_id=entry.id, answer_id=entry.root)
            outcome = Outcome(evidence=evidence, same=not wrong, kind="audit", flip=said.flip)
            key = (query.scope, entry.encoder)
            await self._scopes.learn(key, Judged((outcome,)), soon=wrong)
            if wrong and (vector := await embed()) is not None:
                # The key that answered was this very text, so no more than that is shut: a judge erred about one
                # wording, which says nothing of what the policy would serve around it, and other wordings keep the
                # answer. A person's word takes the answer itself, and then shuts as far as a spot reaches (`_around`).
                await self._scopes.learn(key, shut(vector, 1.0, firm=False), soon=True)
        await self._tell(query, "audit", result, said.flip)
        return Compared(result=result, judgements=(said,))

    async def feedback(
        self, ticket: str | None, right: bool, *, undo: bool, embed: Callable[[], Awaitable[Vector | None]] | None
    ) -> None:
        """Learn a person's verdict on a hit by meaning; `undo`: it takes back the opposite one. Raises StoreDown.

        `embed`: the vector of the text that was taken out, for a hit that was found without one.
        """
        read = _read(ticket)
        if read is None:
            return
        # A label like any other, but no sample of the hits: people speak up when something is wrong.
        evidence = replace(read.evidence, wanted=False)
        if read.basis != self._scopes.basis:
            evidence = replace(evidence, features=b"")  # another release's: they say nothing here
        outcome = Outcome(evidence=evidence, same=right, kind="feedback")
        key = (read.scope, read.encoder)
        verified = bool(read.vector) and right
        await self._scopes.learn(key, Judged((outcome,), near=read.vector, verified=verified), soon=True)
        shuts = None if right else await _around(read, embed)
        if shuts is not None:
            await self._scopes.learn(key, shuts, soon=True)
        back = int(undo)
        wrong, confirmed = (-back, 1) if right else (1, -back)
        told = Trust(reported_wrong=wrong, confirmed=confirmed, quarantines=int(shuts is not None))
        await self._measure(read.group, told, soon=True)

    async def served(self, query: Query) -> None:
        """Count a hit by meaning."""
        with suppress(StoreDown):
            await self._trust.add(name_of(_group(query)), Trust(hits=1))

    async def trust(self, groups: Sequence[Group]) -> dict[Group, Trust]:
        """What was measured of each group so far; groups without any are left out. Raises StoreDown."""
        names = {group: name_of(group) for group in groups[:_MOST_GROUPS]}
        await self._trust.preload(list(names.values()))
        found = {group: self._trust.peek(name) or Trust() for group, name in names.items()}
        budget = self._config.max_wrong_hit_rate
        return {
            group: replace(measured(held, budget), braked=proven(held, budget))
            for group, held in found.items()
            if held != Trust()
        }

    async def flush(self) -> None:
        await self._trust.flush()

    async def close(self) -> None:
        await self._trust.close()

    async def _entries(self, query: Query, weighed: Sequence[Weighed]) -> list[tuple[Weighed, Entry]]:
        """Those that are still there, and still the asker's own."""
        entries = await _patiently(lambda: self._store.get_many([item.exact for item in weighed]))
        return [
            (item, entry)
            for item, entry in zip(weighed, entries, strict=True)
            if entry is not None and entry.scope == query.scope and entry.root == item.evidence.answer_id
        ]

    async def _learn(
        self,
        query: Query,
        found: Hit | Miss,
        kind: Literal["audit", "explore"],
        rows: Sequence[tuple[Weighed, Entry, Judgement]],
        result: str,
    ) -> None:
        assert found.sight is not None
        outcomes = tuple(
            Outcome(evidence=held.evidence, same=said.verdict == "same", kind=kind, flip=said.flip)
            for held, _, said in rows
            if said.verdict != "unsure"
        )
        if not outcomes:
            return
        key, wrong = (query.scope, found.sight.encoder), kind == "audit" and result == "different"
        verified = any(outcome.same for outcome in outcomes)
        await self._scopes.learn(key, Judged(outcomes, near=found.sight.vector, verified=verified), soon=wrong)
        if wrong and isinstance(found, Hit):
            spot = shut(unpack(found.sight.vector), found.similarity, firm=False)
            await self._scopes.learn(key, spot, soon=True)

    async def _add_key(
        self,
        rows: Sequence[tuple[Weighed, Entry, Judgement]],
        make: Callable[[Entry, Weighed], Entry | None],
        most: float,
    ) -> int | None:
        """The text of the request as one more key of the likeliest answer that is the same.

        A key is an exact hit from then on, so the judge's word must be worth as much as the budget asks of hits, and as
        `most` of whoever asked: it replaces the answer that was made for them.
        """
        most = min(most, self._config.max_wrong_hit_rate)
        for held, entry, said in sorted(rows, key=lambda row: -row[0].evidence.probability):
            doubt = round(1.0 - believed(held.evidence, said.flip), 9)
            if said.verdict == "same" and doubt <= most:
                made = make(entry, held)
                made = None if made is None else replace(made, doubt=doubt)
                if made is not None and await self._store.put_key(made, entry.exact, self._config.keys):
                    return entry.root
                return None
        return None

    async def _count(
        self,
        query: Query,
        kind: str,
        rows: Sequence[tuple[Weighed, Entry, Judgement]],
        result: str,
        key: int | None,
    ) -> None:
        flips = max((said.flip for *_, said in rows if said.verdict != "unsure"), default=0.0)
        await self._tell(query, kind, result, flips, aliases=int(key is not None))

    async def _tell(self, query: Query, kind: str, result: str, flips: float, *, aliases: int = 0) -> None:
        """Measure one comparison."""
        decided, same = result in {"same", "different"}, result == "same"
        told = Trust(undecided=int(not decided), aliases=aliases)
        if decided and kind == "audit":
            told = replace(told, audited=1, audited_wrong=int(not same), flips=flips, quarantines=int(not same))
        elif decided:
            told = replace(told, explored=1, explored_same=int(same), undecided=0)
        else:
            told = replace(told, undecided=int(kind == "audit"))
        await self._measure(_group(query), told, soon=kind == "audit" and result == "different")

    async def _measure(self, group: Group, told: Trust, *, soon: bool) -> None:
        """Add to what is measured, and raise the alarm once where it exceeds the budget."""
        name, budget = name_of(group), self._config.max_wrong_hit_rate
        before = self._trust.peek(name) or await self._trust.get(name)
        found = measured(await self._trust.add(name, told, soon=soon), budget)
        self._watch.measured(group, found)
        rate, low, high = found.rate or 0.0, found.low or 0.0, 1.0 if found.high is None else found.high
        told_of = Alert(group=group, rate=rate, low=low, high=high, budget=budget)
        if not broken(found, budget):
            self._alarmed.discard(group)
            if rate <= budget:
                self._watch.kept(told_of)
        elif group not in self._alarmed:
            self._alarmed.add(group)
            if not broken(before, budget):  # else it was counted elsewhere, or before a restart
                await self._trust.add(name, Trust(alerts=1))
            self._watch.alert(told_of)


def ticket(query: Query, hit: Hit) -> str | None:
    """What feedback on this hit needs to be learned from; None for an exact hit on an answer of its own."""
    sight, entry = hit.sight or Sight(encoder=hit.entry.encoder), hit.entry
    seen = next((item.evidence for item in sight.weighed if item.evidence.entry_id == entry.id), None)
    if hit.sight is None and entry.answer_id:
        seen = Evidence(entry_id=entry.id, answer_id=entry.root)
    if seen is None:
        return None
    made = _Ticket(query.scope, sight.encoder, sight.vector, hit.similarity, seen, _group(query), sight.basis)
    return base64.b64encode(_encode(made)).decode()


def _read(written: str | None) -> _Ticket | None:
    if written is None:
        return None
    try:
        return _decode_ticket.decode(base64.b64decode(written, validate=True))
    except (ValueError, msgspec.DecodeError):
        log.warning("a ticket for feedback cannot be read")
        return None


async def _patiently(work: Callable[[], Awaitable[T]]) -> T:
    """`work`, again where the store blinks: a fresh answer was paid for, and nobody waits. Raises StoreDown."""
    for pause in _AGAIN:
        try:
            return await work()
        except StoreDown:
            await asyncio.sleep(pause)
    return await work()


async def _around(read: _Ticket, embed: Callable[[], Awaitable[Vector | None]] | None) -> Shut | None:
    """What is shut where a person found the hit of a ticket wrong."""
    if read.vector:
        return shut(unpack(read.vector), read.similarity, firm=True)
    vector = None if embed is None else await embed()
    # How near the text of the answer itself was is not known any more: as far as a spot reaches at least.
    return None if vector is None else shut(vector, 0.0, firm=True)


def _pair(query: Query, held: str, told: str) -> Pair:
    return Pair(question=query.text, kept=held, fresh=told, owner=query.scope)


def _group(query: Query) -> Group:
    return Group(query.team, query.project, query.model)


def _result(
    found: Hit | Miss, rows: Sequence[tuple[Weighed, Entry, Judgement]]
) -> Literal["same", "different", "undecided", "none"]:
    """Of the answer that was served or, after a miss, of the one that the policy would have liked best."""
    wanted = found.entry.id if isinstance(found, Hit) else found.explore
    said = next((said for held, _, said in rows if held.evidence.entry_id == wanted), None)
    if said is None:
        return "none"
    return "undecided" if said.verdict == "unsure" else said.verdict
