"""The semantic tier: text to vector, vector to candidates, candidates to a verdict.

Knows the encoder, the partitions, the policy with what each scope has learned, and that only the store says what still
exists. Does not know the exact tier, statistics, judges, or how an answer is delivered.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from cache.embedder import Encoder, EncoderDown
from cache.learning import Scope, evidence_of, guarded, named
from cache.partitions import Candidate, Key, NotReady, Partitions
from cache.scopes import Scopes
from cache.store import Store, StoreDown
from cache.types import CacheConfig, Embedding, Entry, Looked, Query, Sight, Uncounted, Weighed
from cache.vectors import Vector, pack
from policies.reuse import Budget, Explore, Neighbour, Regenerate, Serve, Verdict, told, unread

# A partition that takes longer to load is there for the next look-up; nobody waits for it.
_LOAD_WAIT = 0.05


class Clock(NamedTuple):
    """Wall-clock and monotonic seconds."""

    now: Callable[[], float]
    monotonic: Callable[[], float]


class Found(Struct, kw_only=True):
    """`entry` when it may be served, else `reason`. `vector` as soon as the text has one that covers all of it.

    `audit`: the chance with which the policy wants this hit checked. `uncounted`: the verdict, where it was on hold.
    """

    entry: Entry | None = None
    reason: str = ""
    similarity: float = 0.0
    confidence: float = 0.0
    vector: Vector | None = None
    looked: tuple[Looked, ...] = ()
    explore: int | None = None
    sight: Sight | None = None
    audit: float = 0.0
    uncounted: Uncounted | None = None
    embedded: Embedding | None = None


class _Decided(NamedTuple):
    """A verdict over neighbours; `read`: from when to when the encoder read, `computed`: seconds of it."""

    verdict: Verdict
    neighbours: list[Neighbour]
    read: tuple[float, float] | None = None
    computed: float = 0.0


class Meaning:
    """`alive(entry, query)` is the owner's check of scope and age; what fails it is no candidate."""

    def __init__(
        self,
        store: Store,
        partitions: Partitions,
        encoder: Encoder,
        scopes: Scopes,
        *,
        config: CacheConfig,
        clock: Clock,
    ) -> None:
        self._store = store
        self._partitions = partitions
        self._encoder = encoder
        self._scopes = scopes
        self._config = config
        self._now, self._monotonic = clock

    async def find(
        self, query: Query, budget: Budget, alive: Callable[[Entry], bool], *, hold: bool = False, dry: bool = False
    ) -> Found:
        """What the policy says about the nearest kept texts. Trouble becomes a reason, never an exception.

        `hold`: a verdict that serves nothing is not counted yet. `dry`: none is, ever.
        """
        found = Found()
        started, computed = self._monotonic(), 0.0
        try:
            found.vector, computed = await self._embed(query.text, self._config.embed_timeout)
        except EncoderDown as error:
            found.reason = error.reason
            return found
        finally:
            found.embedded = Embedding(started, self._monotonic(), computed)
        if found.vector is None:
            found.reason = "text-too-long"
            return found
        try:
            key = (query.scope, self._encoder.name)
            near = await self._partitions.search(key, found.vector, self._config.neighbours, wait=_LOAD_WAIT)
            verdict = await self._judge(query, budget, found, await self._fetch(key, near, alive), alive)
            if hold and found.entry is None:
                found.uncounted = Uncounted(key, verdict)
            elif not dry:
                self._scopes.count(key, verdict, served=found.entry is not None and self._config.mode != "shadow")
        except NotReady:
            found.reason = "index-loading"
        except StoreDown:
            found.reason = "store-down"
        return found

    async def embed(self, text: str) -> Vector | None:
        """The vector of `text`; None when the model cannot read all of it, or not in `keep_timeout`."""
        try:
            return (await self._embed(text, self._config.keep_timeout))[0]
        except EncoderDown:
            return None

    async def _embed(self, text: str, timeout: float) -> tuple[Vector | None, float]:
        """The vector and the seconds of computing. Raises EncoderDown, also for a time-out."""
        if (trouble := self._encoder.status()) is not None:
            raise EncoderDown("encoder-loading" if trouble in {"starting", "loading"} else "encoder-down")
        try:
            async with asyncio.timeout(timeout):
                encoded = await self._encoder.encode([text])
        except TimeoutError as error:
            raise EncoderDown("embed-timeout") from error
        return None if encoded.tokens[0] > self._encoder.window else encoded.vectors[0], encoded.seconds

    async def would_serve(self, query: Query, vector: Vector, text: str, similarity: float, budget: Budget) -> bool:
        """Whether an answer to `text`, were it kept, would be served to `query`. Counts nothing. Raises StoreDown."""
        policy = self._scopes.policy
        if similarity < policy.floor:
            return False
        scope = await self._scopes.get((query.scope, self._encoder.name))
        near = Neighbour(entry_id=1, text=text, similarity=similarity)
        verdict = (await self._decide(scope, query.text, [near], budget)).verdict
        return isinstance(guarded(verdict, scope, vector), Serve)

    async def _decide(self, scope: Scope, text: str, near: list[Neighbour], budget: Budget) -> _Decided:
        """What the policy says, after the encoder has read what it wants read. What could not be read is not served."""
        policy = self._scopes.policy
        verdict = policy.decide(scope.state, text, near, budget)
        wanted = frozenset(unread(verdict))
        if not wanted or not self._encoder.reader:
            return _Decided(verdict, near)
        started = self._monotonic()
        pairs = {item.entry_id: (item.text, text) for item in near if item.entry_id in wanted}
        try:
            async with asyncio.timeout(self._config.embed_timeout):
                found = await self._encoder.read(list(pairs.values()))
        except (TimeoutError, EncoderDown):
            return _Decided(verdict, near, (started, self._monotonic()))
        read = told(near, dict(zip(pairs, found.odds, strict=True)))
        took = (started, self._monotonic())
        return _Decided(policy.decide(scope.state, text, read, budget), read, took, found.seconds)

    async def _fetch(
        self, key: Key, near: Sequence[Candidate], alive: Callable[[Entry], bool]
    ) -> list[tuple[Entry, float]]:
        """The entries behind `near` that still exist, with their similarity. One round trip, none for far ones."""
        close = [candidate for candidate in near if candidate.similarity >= self._scopes.policy.floor]
        if not close:
            return []
        entries = await self._store.get_many([candidate.exact for candidate in close])
        real: list[tuple[Entry, float]] = []
        for candidate, entry in zip(close, entries, strict=True):
            if entry is None or entry.id != candidate.entry_id or entry.expires <= self._now():
                self._partitions.forget(key, candidate.entry_id)
            elif alive(entry):
                real.append((entry, candidate.similarity))
        return real

    async def _is_there(self, entry: Entry, alive: Callable[[Entry], bool]) -> bool:
        """Whether the store still has this very entry. Raises StoreDown."""
        (held,) = await self._store.get_many([entry.exact])
        return held is not None and held.id == entry.id and held.expires > self._now() and alive(held)

    async def _judge(
        self,
        query: Query,
        budget: Budget,
        found: Found,
        real: list[tuple[Entry, float]],
        alive: Callable[[Entry], bool],
    ) -> Verdict:
        """Fill `found` with the verdict. Raises StoreDown."""
        assert found.vector is not None
        key = (query.scope, self._encoder.name)
        if not real:
            found.reason = "far"
            return Regenerate(reason="far")
        scope, now = await self._scopes.get(key), self._now()
        neighbours = [_neighbour(entry, similarity, now, scope.record.answers) for entry, similarity in real]
        decided = await self._decide(scope, query.text, neighbours, budget)
        if decided.read is not None and found.embedded is not None:
            spent = found.embedded.computed + decided.computed
            found.embedded = found.embedded._replace(computed=spent, read=decided.read)
        entries = {entry.id: (entry, similarity) for entry, similarity in real}
        if decided.read is not None and isinstance(decided.verdict, Serve):
            # Reading took a while: what was deleted or shut meanwhile is not served any more.
            if not await self._is_there(entries[decided.verdict.entry_id][0], alive):
                found.reason = "gone"
                return Regenerate(reason="gone")
            scope = await self._scopes.get(key)
        verdict, neighbours = guarded(decided.verdict, scope, found.vector), decided.neighbours
        found.looked = _looked(verdict, neighbours)
        if evidence := evidence_of(verdict):
            found.sight = Sight(
                encoder=key[1],
                basis=self._scopes.basis,
                vector=pack(found.vector),
                headroom=self._scopes.headroom(scope, budget),
                weighed=tuple(
                    Weighed(evidence=item, exact=entries[item.entry_id][0].exact, similarity=entries[item.entry_id][1])
                    for item in evidence
                ),
            )
        match verdict:
            case Serve():
                found.entry, found.similarity = entries[verdict.entry_id]
                found.confidence, found.audit = verdict.confidence, verdict.audit
            case Explore():
                found.reason, found.explore = verdict.reason, verdict.entry_id
            case Regenerate():
                found.reason = verdict.reason
        return verdict


def _neighbour(entry: Entry, similarity: float, now: float, answers: Mapping[int, tuple[float, float]]) -> Neighbour:
    good, bad = answers.get(entry.root, (0.0, 0.0))
    return Neighbour(
        entry_id=entry.id,
        text=entry.text,
        similarity=similarity,
        age=now - entry.created,
        answer_id=entry.root,
        good=good,
        bad=bad,
    )


def _reading(neighbour: Neighbour) -> dict[str, float]:
    return {} if neighbour.reading is None else {"reading": round(neighbour.reading, 4)}


def _looked(verdict: Verdict, neighbours: Sequence[Neighbour]) -> tuple[Looked, ...]:
    notes = {note.entry_id: note for note in verdict.notes}
    seen = {item.entry_id: item for item in evidence_of(verdict)}
    return tuple(
        Looked(
            entry_id=neighbour.entry_id,
            similarity=neighbour.similarity,
            confidence=note.confidence if (note := notes.get(neighbour.entry_id)) else None,
            guard=note.guard if note else None,
            answer_id=neighbour.answer,
            risk=held.risk if (held := seen.get(neighbour.entry_id)) else None,
            guards=held.guards if held else (),
            features=named(held.features) | _reading(neighbour) if held else {},
        )
        for neighbour in neighbours
    )
