"""The cache: find an answer that may serve, keep one, compare it with a fresh one, take one back.

Knows the order (digest, then meaning, then policy), the checks every candidate must pass, and that trouble is a miss.
Does not know HTTP, models or money; the store is the truth, the front and the indexes only remember.
"""

import hmac
import random
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from cache.age import bounded, is_young
from cache.embedder import Encoder
from cache.front import Front
from cache.index import load as load_index
from cache.judging import Judge
from cache.leases import Leases, Turn
from cache.making import Maker
from cache.meaning import Clock, Found, Meaning
from cache.partitions import Partitions, Saving
from cache.scopes import Scopes
from cache.store import ANYTHING, Change, Selection, Store, StoreDown
from cache.tally import Tally
from cache.tolerance import NONE, borne, doubt_of, tightened
from cache.types import CacheConfig, Entry, Group, Hit, Kept, Miss, Query, ScopeStats, Tier, Weighed
from cache.vectors import Vector, from_bytes, to_bytes
from cache.verify import Compared, Verifier, Watch
from policies.reuse import Budget, ReusePolicy

# Entries taken back while the store was away; they are refused here and taken out as soon as it answers.
_MAX_REFUSED = 10_000
_How = tuple[float, bool, bool, float, Turn | None]  # since when, on hold, dry, what doubt is borne, whose turn it is
# A client that asks for nothing stricter.
_ANY = Budget(max_error_rate=1.0, max_wrong_hit_rate=1.0)


class SemanticCache:
    """One per process. `now`: wall-clock seconds, `monotonic`: seconds for durations.

    `judge` compares answers; without one nothing is learned but from people. `random`: in [0, 1), for the coin of
    audits. `watch` is told what is measured, and when more hits are found wrong than allowed. `saving`: where large
    partitions are kept over a restart.

    `find` and `keep` never raise for a broken store or encoder. Administration (`evict`, `purge`, `entries`) raises
    StoreDown, since "nothing to purge" would be a lie.
    """

    def __init__(  # noqa: PLR0913 - the parts it is made of
        self,
        store: Store,
        encoder: Encoder | None,
        policy: ReusePolicy,
        *,
        config: CacheConfig,
        now: Callable[[], float],
        monotonic: Callable[[], float],
        judge: Judge | None = None,
        random: Callable[[], float] = random.random,
        watch: Watch | None = None,
        saving: Saving | None = None,
    ) -> None:
        self._store = store
        self.leases = Leases(store.leasing, monotonic=monotonic)
        self._encoder = encoder
        self._config = config
        self._now = now
        self._monotonic = monotonic
        self._front = Front(max_entries=config.front_entries, max_bytes=config.front_bytes)
        self._partitions = Partitions(
            store,
            make=lambda: load_index("flat").Index(encoder.dimension if encoder else 0),
            now=now,
            max_partitions=config.partitions,
            max_vectors=config.resident_vectors,
            saving=saving,
        )
        self._scopes = Scopes(store, policy, most=config.learned_scopes, monotonic=monotonic)
        self._verifier = Verifier(
            store, self._scopes, judge, config=config, watch=watch or Watch(), monotonic=monotonic
        )
        self._random = random
        self._meaning = (
            Meaning(store, self._partitions, encoder, self._scopes, config=config, clock=Clock(now, monotonic))
            if encoder is not None
            else None
        )
        self._tally = Tally()
        self._maker = Maker(config, lambda: encoder.name if encoder is not None else "", now)
        self._refused: dict[int, None] = {}

    async def start(self) -> None:
        """Open the store and begin connecting to the encoder. A store that cannot be opened means misses, no error."""
        if self._encoder is not None:
            await self._encoder.start()
        try:
            await self._store.start(self._changed)
        except StoreDown:
            return  # status() says so, and so will every look-up

    async def close(self) -> None:
        """Close the store. The encoder belongs to whoever made it."""
        await self._partitions.close()
        await self._scopes.close()
        await self._verifier.close()
        await self.leases.close()
        await self._store.close()

    def status(self) -> dict[str, str]:
        """What is not working, by part; empty when all is well."""
        parts = {"store": self._store.status(), "encoder": self._encoder.status() if self._encoder else None}
        return {part: trouble for part, trouble in parts.items() if trouble is not None}

    async def find(  # noqa: PLR0913 - what one look-up may ask for
        self,
        query: Query,
        *,
        tier: Tier = "semantic",
        max_age: float | None = None,
        allowed: Budget = _ANY,
        again: Miss | None = None,
        hold: bool = False,
        dry: bool = False,
        turn: Turn | None = None,
    ) -> Hit | Miss:
        """An answer for `query`, or why there is none.

        `tier="exact"` looks for the very same request only, as where no error at all is `allowed`: then an answer of
        another wording will not do, however it was judged. Where less is `allowed` than the operator does, only one
        that was judged to be so surely the same. `max_age`: in seconds.
        `again`: the miss of an earlier look-up for the same request, which then counts once, by how it ends. `hold`: a
        verdict that serves nothing counts in what the scope learns only when `count` is told of it. `dry`: nothing
        is counted. `turn`: finds out who makes the answer, where there is none.
        """
        started = self._monotonic()
        budget = tightened(self._config, allowed)
        most = NONE if tier == "exact" else borne(budget, self._config)
        # Out of touch, what is remembered may have been taken back, and only this process was not told.
        entry = self._front.get(query.exact) if self._store.in_touch() else None
        if entry is not None and self._config.mode != "off" and self._may_serve(entry, query, max_age, most=most):
            found = self._hit(entry, query, started)
        else:
            found = await self._find_apart(query, tier, max_age, budget, (started, hold, dry, most, turn))
        if not dry:
            self._tally.found(query, found, again)
            if isinstance(found, Hit):
                self._store.touch(found.entry.exact)
                if found.tier == "semantic" or found.entry.answer_id:
                    await self._verifier.served(query)
        return found

    def count(self, miss: Miss) -> None:
        """Count the verdict behind a miss that was on hold. Once."""
        if miss.uncounted is not None:
            self._scopes.count(miss.uncounted.key, miss.uncounted.verdict, served=False)

    async def would_serve(self, query: Query, vector: Vector, text: str, similarity: float, allowed: Budget) -> bool:
        """Whether an answer to another request of the scope, were it kept, would be served to this one."""
        if self._meaning is None or self._config.mode != "semantic" or query.semantic_bar is not None:
            return False
        try:
            return await self._meaning.would_serve(query, vector, text, similarity, tightened(self._config, allowed))
        except StoreDown:
            return False

    async def compare(
        self, query: Query, fresh: Kept, found: Hit | Miss, *, keep: bool = True, ttl: float | None = None
    ) -> Compared:
        """Have a fresh answer to `query` compared with the kept ones that `found` considered, and learn from it.

        Where one is the same, the text becomes a further key of it, in place of a fresh answer kept meanwhile; not
        when `keep` is False. A hit that was wrong has its neighbourhood shut; was it exact, on a text that was only
        judged to have that answer, the text is no key any more. Raises StoreDown.
        """
        if isinstance(found, Hit) and found.tier == "exact":
            if not found.entry.answer_id:
                return Compared()  # its own answer: nothing was taken for the same
            return await self._verifier.recheck(query, fresh, found, partial(self._vector, query))

        def make(entry: Entry, held: Weighed) -> Entry | None:
            vector = found.sight.vector if found.sight is not None else b""
            made = self._maker.entry(query, fresh, None, ttl) if keep and query.exact != entry.exact else None
            if made is None or held.evidence.entry_id in self._refused:
                return None
            return msgspec.structs.replace(
                made,
                answer=entry.answer,
                answer_id=entry.root,
                expires=min(made.expires, entry.expires),
                vector=vector,
                encoder=entry.encoder,
            )

        return await self._verifier.compare(query, fresh, found, make)

    async def feedback(
        self, entry_id: int, *, right: bool, ticket: str | None = None, undo: bool = False
    ) -> Entry | None:
        """A person's word on a hit. A wrong answer is taken back with all its keys, and nothing near is served until
        a fresh answer has shown that it may be. `ticket`: of `cache.verify.ticket`, without it nothing is learned.
        `undo`: this replaces the opposite word. Raises StoreDown, mostly before anything is learned: it is said again.
        """
        gone = None if right else await self.evict(entry_id)
        embed = None if gone is None else partial(self._vector_of, gone.text)
        await self._verifier.feedback(ticket, right, undo=undo, embed=embed)
        return gone

    def keep_soon(self, query: Query, kept: Kept, *, vector: bytes | None = None, ttl: float | None = None) -> bool:
        """`keep` without waiting, where nothing has to be waited for; False where `keep` must be awaited instead."""
        if self._refused or (vector is None and self._wants_vector(query)):
            return False
        entry = self._maker.entry(query, kept, None if vector is None else from_bytes(vector), ttl)
        if entry is None:
            return True
        if not self._store.put_soon(entry):
            return False
        self._kept(query, entry)
        return True

    async def keep(
        self, query: Query, kept: Kept, *, vector: bytes | None = None, ttl: float | None = None
    ) -> int | None:
        """Keep a complete answer; its entry id, or None when it is not kept (off, too large, no time to live, trouble).

        `vector`: the one a `Miss` for the same query carried. `ttl` (seconds) can only shorten the configured one.
        """
        if (entry := self._maker.entry(query, kept, None if vector is None else from_bytes(vector), ttl)) is None:
            return None
        era = self._front.era
        if vector is None and self._wants_vector(query):
            early = self._front.put(entry, era)  # whoever asks the same meanwhile need not wait for it, nor pay
            entry = self._maker.found_by(entry, await self._vector(query))
            if early and (now := self._front.became(entry, era)) != entry.id:
                return now  # taken back meanwhile, by a person's word or a purge, or another answer is kept there
        try:
            await self._drop_refused()
            await self._store.put(entry)
        except StoreDown:
            self._front.drop(entry.exact)
            return None
        self._kept(query, entry, era)
        return entry.id

    def _kept(self, query: Query, entry: Entry, era: int | None = None) -> None:
        self._front.put(entry, era)
        self._tally.of(query).kept += 1

    async def evict(self, entry_id: int) -> Entry | None:
        """Take an entry back: when this returns nobody is served it any more. None when there was none.

        Raises StoreDown when the store cannot be told; this process refuses the entry from now on all the same.
        """
        root = self._front.root_of(entry_id)
        self._front.drop_id(entry_id)
        try:
            return await self._store.drop(entry_id)
        except StoreDown:
            self._refused |= {entry_id: None, root: None}
            while len(self._refused) > _MAX_REFUSED:
                del self._refused[next(iter(self._refused))]
            raise

    async def purge(
        self,
        *,
        team: str | None = None,
        project: str | None = None,
        model: str | None = None,
        contains: str | None = None,
    ) -> int:
        """Take back every entry that matches all that is given; how many. Raises StoreDown."""
        self._front.clear()  # whatever is remembered here may be among them
        return await self._store.purge(Selection(team=team, project=project, model=model, contains=contains))

    async def stats(self, known: Sequence[Group] = ()) -> list[ScopeStats]:
        """Counts by tenant and model; `entries` is None while the store is away. `known`: told of where measured."""
        try:
            held = await self._store.counts()
            rows = self._tally.rows(held)
            trust = await self._verifier.trust([*(Group(row.team, row.project, row.model) for row in rows), *known])
        except StoreDown:
            return self._tally.rows(None)
        for row in rows:
            row.trust = trust.pop(Group(row.team, row.project, row.model), None)
        rows += [ScopeStats(**group._asdict(), trust=measured) for group, measured in trust.items()]
        return sorted(rows, key=lambda row: (row.team, row.project, row.model))

    async def entries(self, limit: int, selection: Selection = ANYTHING) -> list[Entry]:
        """The newest of the selected entries, at most `limit`. Raises StoreDown."""
        found, now, ttl = await self._store.recent(limit, selection), self._now(), self._config.ttl
        return [bounded(entry, ttl) for entry in found if is_young(entry, now, ttl)]

    async def _find_apart(
        self, query: Query, tier: Tier, max_age: float | None, budget: Budget, how: _How
    ) -> Hit | Miss:
        """What the front does not have: the store's exact entry, else the semantic tier."""
        started, hold, dry, most, turn = how
        miss, era = partial(self._miss, started), self._front.era
        if self._config.mode == "off":
            return miss("off")
        try:
            entry = await (self._store.get(query.exact) if turn is None else turn.look())
        except StoreDown:
            return miss("store-down")
        if entry is not None and self._may_serve(entry, query, max_age, most=most):
            self._front.put(entry, era)
            return self._hit(entry, query, started)
        late = entry is not None and not is_young(entry, self._now(), self._config.ttl, max_age)
        if tier == "exact" or self._config.mode == "exact" or self._meaning is None or query.semantic_bar is not None:
            return miss("expired" if late else query.semantic_bar or "not-kept")
        found = await self._meaning.find(
            query,
            budget,
            partial(self._may_serve, query=query, max_age=max_age, exact=False, most=most),
            hold=hold,
            dry=dry,
        )
        if found.entry is None or self._config.mode == "shadow":
            why = "expired" if late and found.reason in ("far", "empty") else found.reason
            return Miss(
                reason=why if found.entry is None else "shadow",
                lookup_ms=(self._monotonic() - started) * 1_000,
                vector=None if found.vector is None else to_bytes(found.vector),
                looked=found.looked,
                explore=found.explore if found.entry is None else found.entry.id,
                sight=found.sight,
                uncounted=found.uncounted,
                embedded=found.embedded,
                most=most,
            )
        return Hit(
            entry=bounded(found.entry, self._config.ttl),
            tier="semantic",
            similarity=found.similarity,
            confidence=found.confidence,
            lookup_ms=(self._monotonic() - started) * 1_000,
            looked=found.looked,
            sight=found.sight,
            audit=self._is_audited(found),
            embedded=found.embedded,
            most=most,
        )

    def _hit(self, entry: Entry, query: Query, started: float) -> Hit:
        """The very same request. Where its text was only judged to have this answer, a coin says whether to check."""
        audit = False
        if entry.answer_id:
            share = max(self._verifier.key_share(query), self._config.audit_share or 0.0)
            audit = share > 0.0 and self._random() < share
        took = (self._monotonic() - started) * 1_000
        entry = bounded(entry, self._config.ttl)
        return Hit(entry=entry, tier="exact", similarity=1.0, confidence=1.0, lookup_ms=took, audit=audit)

    def _is_audited(self, found: Found) -> bool:
        """The coin: thrown only where something is to be checked at all."""
        share = max(found.audit, self._config.audit_share or 0.0)
        return found.sight is not None and share > 0.0 and self._random() < share

    def _miss(self, started: float, reason: str) -> Miss:
        return Miss(reason=reason, lookup_ms=(self._monotonic() - started) * 1_000)

    def _may_serve(self, entry: Entry, query: Query, max_age: float | None, *, exact: bool = True, most: float) -> bool:
        """The last word on every entry: the asker's scope, alive, young enough, not refused, at `most` so doubtful."""
        return (
            hmac.compare_digest(entry.scope, query.scope)
            and (not exact or hmac.compare_digest(entry.exact, query.exact))
            and is_young(entry, self._now(), self._config.ttl, max_age)
            and (not entry.answer_id or doubt_of(entry, self._config) <= most)
            and entry.id not in self._refused
            and entry.root not in self._refused
        )

    async def _vector(self, query: Query) -> Vector | None:
        """What to file an answer under that was not looked for by meaning; None for an exact-only entry."""
        return await self._vector_of(query.text) if self._wants_vector(query) else None

    async def _vector_of(self, text: str) -> Vector | None:
        return None if self._meaning is None else await self._meaning.embed(text)

    def _wants_vector(self, query: Query) -> bool:
        return self._meaning is not None and query.semantic_bar is None and self._config.mode != "exact"

    async def _drop_refused(self) -> None:
        while self._refused:
            entry_id = next(iter(self._refused))
            await self._store.drop(entry_id)
            self._refused.pop(entry_id, None)

    def _changed(self, change: Change) -> None:
        """The store tells of every change, made here or in another process."""
        self.leases.heard(change)
        if change.kind == "reset":
            self._front.clear()
        elif change.kind == "drop":
            self._front.drop_id(change.row.entry_id)
        else:
            # Another process replaced what is remembered under this digest.
            self._front.drop(change.row.exact)
        self._partitions.apply(change)
