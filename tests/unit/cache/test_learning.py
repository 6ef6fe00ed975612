"""What a cache learns from comparisons and from people: kept over restarts, shared by workers, never looser after."""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cache import folded
from cache.embedder import HashEncoder
from cache.folded import FRESH_FOR, Folded
from cache.judging import Judgement, Pair
from cache.learning import MOST_SPOTS, Checked, Counted, Judged, Record, Scope, ScopeForm, learning, shut
from cache.redis_link import Link
from cache.semantic import SemanticCache
from cache.store import Stored, StoreDown
from cache.store.memory import MemoryStore
from cache.store.redis import RedisStore
from cache.trust import broken, measured
from cache.types import CacheConfig, Hit, Kept, Miss, Query, Trust
from cache.vectors import pack
from cache.verify import Alert, Watch, ticket
from policies.reuse import Evidence, Outcome, Regenerate, learned
from policies.reuse.threshold import Params, Policy
from tests.clock import FrozenClock
from tests.unit.cache.test_semantic_cache import SIMILAR, query
from tests.waiting import until

OTHER = "how do i bake nice bread at home"


class Judging:
    """Same text, same answer; a `flip` that it tells. `unsure`: cannot tell anything."""

    name = "test"

    def __init__(self) -> None:
        self.unsure = False
        self.flip = 0.01
        self.asked: list[Pair] = []

    async def compare(self, pairs: Sequence[Pair]) -> list[Judgement]:
        self.asked += pairs
        return [self._one(pair) for pair in pairs]

    def _one(self, pair: Pair) -> Judgement:
        verdict = "unsure" if self.unsure else "same" if pair.kept == pair.fresh else "different"
        return Judgement(verdict=verdict, probability=0.5, flip=self.flip, by=self.name)


class Rig:
    """Caches on one store, as a process that is killed and started again would open them."""

    def __init__(self, clock: FrozenClock, policy: Any = None, **config: Any) -> None:
        self.clock = clock
        self.store: Any = MemoryStore()
        self.policy = policy or Policy(Params(similarity=0.9))
        self.config = CacheConfig(**config)
        self.judge = Judging()
        self.coin = 0.0
        self.alerts: list[Alert] = []
        self.measured: list[Trust] = []

    async def open(self) -> SemanticCache:
        cache = SemanticCache(
            self.store,
            HashEncoder(),
            self.policy,
            config=self.config,
            now=self.clock.now,
            monotonic=self.clock.monotonic,
            judge=self.judge,
            random=lambda: self.coin,
            watch=Watch(measured=lambda _, trust: self.measured.append(trust), alert=self.alerts.append),
        )
        await cache.start()
        return cache


def kept(text: str) -> Kept:
    body = {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}
    return Kept(answer=msgspec.json.encode(body), cost_nano=7)


async def put(cache: SemanticCache, asked: Query, answer: str) -> int:
    entry = await cache.keep(asked, kept(answer))
    assert entry is not None
    return entry


async def hit(cache: SemanticCache, text: str) -> Hit:
    found = await cache.find(query(text))
    assert isinstance(found, Hit)
    return found


async def miss(cache: SemanticCache, text: str) -> Miss:
    found = await cache.find(query(text))
    assert isinstance(found, Miss)
    return found


async def trust(cache: SemanticCache) -> Trust:
    (row,) = await cache.stats()
    assert row.trust is not None
    return row.trust


async def test_a_paraphrase_that_was_answered_alike_becomes_a_key(clock: FrozenClock) -> None:
    """The answer is held once, found by either wording, and gone by either."""
    cache = await Rig(clock, learned.Policy()).open()
    root = await put(cache, query(), "in the oven")
    first = await miss(cache, SIMILAR)
    assert first.sight is not None
    await cache.keep(query(SIMILAR), kept("in the oven"), vector=first.vector)
    compared = await cache.compare(query(SIMILAR), kept("in the oven"), first)
    assert (compared.result, compared.key) == ("same", root)
    again = await hit(cache, SIMILAR)
    assert (again.tier, again.entry.root) == ("exact", root)
    assert {entry.root for entry in await cache.entries(10)} == {root}
    assert (await trust(cache)).aliases == 1
    await cache.evict(root)
    assert isinstance(await cache.find(query(SIMILAR)), Miss)
    await cache.close()


async def test_another_answer_stays_an_entry_of_its_own(clock: FrozenClock) -> None:
    """Near is not the same: the label is learned, nothing is joined."""
    cache = await Rig(clock, learned.Policy()).open()
    root = await put(cache, query(), "in the oven")
    first = await miss(cache, SIMILAR)
    mine = await cache.keep(query(SIMILAR), kept("in a pan"), vector=first.vector)
    assert (await cache.compare(query(SIMILAR), kept("in a pan"), first)).result == "different"
    assert {entry.root for entry in await cache.entries(10)} == {root, mine}
    found = await trust(cache)
    assert (found.explored, found.explored_same) == (1, 0)
    await cache.close()


async def test_an_answer_taken_back_meanwhile_gets_no_key(clock: FrozenClock) -> None:
    """The judge is slow; an eviction is not undone by what it says afterwards."""
    cache = await Rig(clock, learned.Policy()).open()
    root = await put(cache, query(), "in the oven")
    first = await miss(cache, SIMILAR)
    await cache.evict(root)
    compared = await cache.compare(query(SIMILAR), kept("in the oven"), first)
    assert compared.key is None
    assert isinstance(await cache.find(query(SIMILAR)), Miss)
    await cache.close()


async def test_what_was_learned_outlives_the_process(clock: FrozenClock) -> None:
    """Labels are dear: a restart must not begin from nothing, and a kill loses moments only."""
    rig = Rig(clock, learned.Policy())
    cache = await rig.open()
    await put(cache, query(), "in the oven")
    for word in ("good", "nice", "brown"):
        found = await miss(cache, f"how do i bake {word} bread at home")
        await cache.compare(query(f"how do i bake {word} bread at home"), kept("in the oven"), found, keep=False)
    await cache.close()
    again = await rig.open()
    found = await miss(again, SIMILAR)
    assert found.sight is not None
    assert found.sight.headroom["labels"] == 3
    assert (await trust(again)).explored == 3
    await again.close()


async def test_a_wrong_hit_is_known_at_once_also_to_who_comes_after_a_kill(clock: FrozenClock) -> None:
    """The process dies right after the audit: the next one must not serve there again."""
    rig = Rig(clock, audit_share=1.0)
    cache = await rig.open()
    await put(cache, query(), "in the oven")
    served = await hit(cache, SIMILAR)
    assert served.audit
    assert (await cache.compare(query(SIMILAR), kept("in a pan"), served)).result == "different"
    successor = await rig.open()  # nobody closed the first
    assert (await miss(successor, SIMILAR)).reason == "quarantine"
    found = await trust(successor)
    assert (found.audited, found.audited_wrong, found.quarantines) == (1, 1, 1)
    await successor.close()
    await cache.close()


async def test_a_shut_neighbourhood_opens_when_reuse_is_found_right(clock: FrozenClock) -> None:
    """Not for ever: the next fresh answer there decides."""
    cache = await Rig(clock, audit_share=1.0).open()
    await put(cache, query(), "in the oven")
    served = await hit(cache, SIMILAR)
    await cache.compare(query(SIMILAR), kept("in a pan"), served)
    shut_out = await miss(cache, SIMILAR)
    assert shut_out.reason == "quarantine"
    await cache.compare(query(SIMILAR), kept("in the oven"), shut_out)
    assert (await hit(cache, SIMILAR)).entry.text.startswith("how do i bake")
    await cache.close()


async def test_an_undecided_comparison_teaches_nothing(clock: FrozenClock) -> None:
    """A judge that cannot tell must neither brake nor loosen anything, but people see how often that is."""
    rig = Rig(clock, audit_share=1.0)
    rig.judge.unsure = True
    cache = await rig.open()
    await put(cache, query(), "in the oven")
    assert (await cache.compare(query(SIMILAR), kept("in a pan"), await hit(cache, SIMILAR))).result == "undecided"
    await hit(cache, SIMILAR)
    found = await trust(cache)
    assert (found.audited, found.undecided, found.rate) == (0, 1, None)
    await cache.close()


@pytest.mark.parametrize(("coin", "share", "audited"), [(0.1, 0.2, True), (0.3, 0.2, False), (0.0, None, False)])
async def test_the_coin_decides_what_is_audited(
    clock: FrozenClock, coin: float, share: float | None, audited: bool
) -> None:
    """By chance alone, never by what the hit looks like; a policy that asks for none gets none."""
    rig = Rig(clock, audit_share=share)
    rig.coin = coin
    cache = await rig.open()
    await put(cache, query(), "in the oven")
    assert (await hit(cache, SIMILAR)).audit is audited
    await cache.close()


async def test_too_many_wrong_hits_raise_one_alert_and_stop_serving(clock: FrozenClock) -> None:
    """The budget is a promise: proven broken, the cache stops by itself and says so once."""
    rig = Rig(clock, audit_share=1.0, max_wrong_hit_rate=0.05)
    cache = await rig.open()
    await put(cache, query(), "in the oven")
    for number in range(25):
        text = f"how do i bake w{number} bread at home"
        found = await cache.find(query(text))
        if isinstance(found, Hit):
            await cache.compare(query(text), kept("in a pan"), found, keep=False)
            key = (query().scope, "hash-384")
            await cache._scopes.learn(  # open again what was shut, so that the brake itself is seen
                key, Judged((), near=found.sight.vector if found.sight else b"", verified=True), soon=True
            )
    assert len(rig.alerts) == 1
    assert rig.alerts[0].low > 0.05
    assert (await miss(cache, OTHER)).reason == "brake"
    found = await trust(cache)
    assert found.braked
    assert found.low is not None
    assert found.low > 0.05
    assert rig.measured[-1].high is not None
    await cache.close()


async def test_what_is_shown_as_braked_serves_nothing_by_meaning(clock: FrozenClock) -> None:
    """Few audits, all of them wrong, are proof enough for the page and the alert: then serving has to stop too."""
    rig = Rig(clock, audit_share=1.0, max_wrong_hit_rate=0.05)
    cache, text = await rig.open(), ""
    for number in range(6):
        text = " ".join(f"{letter}{number}" for letter in "abcdefgh")
        await put(cache, query(text), f"answer {number}")
        found = await cache.find(query(f"{text} please"))
        held = (await cache.stats())[0].trust
        assert held is None or not held.braked or not isinstance(found, Hit), number
        await cache.compare(query(f"{text} please"), kept("another"), found, keep=False)
    assert (await trust(cache)).braked
    await cache.close()
    cache = await rig.open()
    found = await miss(cache, f"{text} thanks")
    await cache.compare(query(f"{text} thanks"), kept("another"), found, keep=False)
    assert len(rig.alerts) == 2  # this process says so too
    assert (await trust(cache)).alerts == 1  # and it is one alarm
    await cache.close()


async def test_a_report_that_met_a_store_away_is_learned_once_when_it_is_said_again(clock: FrozenClock) -> None:
    """Whoever was told "nothing was changed" says it again: each of these counted as a report, and reports alarm."""
    rig = Rig(clock, audit_share=0.0)
    cache = await rig.open()
    root = await put(cache, query(), "in the oven")
    found = await hit(cache, SIMILAR)
    written, drop = ticket(query(SIMILAR), found), rig.store.drop

    async def away(_: int) -> None:
        raise StoreDown("away")

    await trust(cache)
    rig.store.drop = away
    for _ in range(3):
        with pytest.raises(StoreDown):
            await cache.feedback(root, right=False, ticket=written)
    rig.store.drop = drop
    assert await cache.feedback(root, right=False, ticket=written) is not None
    assert (await trust(cache)).reported_wrong == 1
    await cache.close()


async def test_what_people_report_raises_the_alarm_and_claims_no_brake(clock: FrozenClock) -> None:
    """A page that says "serves nothing by meaning" over a scope that goes on serving sends people looking elsewhere."""
    rig = Rig(clock, audit_share=0.0, max_wrong_hit_rate=0.05)
    cache = await rig.open()
    for number in range(30):
        text = " ".join(f"{letter}{number}" for letter in "abcdefgh")
        root = await put(cache, query(text), f"answer {number}")
        found = await hit(cache, f"{text} please")
        if number >= 27:
            await cache.feedback(root, right=False, ticket=ticket(query(f"{text} please"), found))
    assert len(rig.alerts) == 1
    assert not (await trust(cache)).braked
    await put(cache, query("what grows well on a dry stony hill in spain"), "olives")
    assert await hit(cache, "what grows well on a very dry stony hill in spain")
    await cache.close()


async def test_wrong_feedback_takes_the_answer_and_shuts_what_is_near(clock: FrozenClock) -> None:
    """A person has seen it: no key of that answer is left, and near questions are asked anew until one verifies."""
    cache = await Rig(clock).open()
    root = await put(cache, query(), "in the oven")
    served = await hit(cache, SIMILAR)
    gone = await cache.feedback(root, right=False, ticket=ticket(query(SIMILAR), served))
    assert gone is not None
    await put(cache, query(), "in the oven")
    assert (await miss(cache, OTHER)).reason == "quarantine"
    assert (await miss(cache, SIMILAR)).reason == "quarantine"
    found = await trust(cache)
    assert (found.reported_wrong, found.quarantines) == (1, 1)
    await cache.feedback(root, right=True, ticket=ticket(query(SIMILAR), served), undo=True)
    assert isinstance(await cache.find(query(SIMILAR)), Hit)
    found = await trust(cache)
    assert (found.reported_wrong, found.confirmed) == (0, 1)
    await cache.close()


async def test_feedback_without_a_ticket_still_evicts(clock: FrozenClock) -> None:
    """Explanations go after a few days, and tickets may be of another version: the undo works all the same."""
    cache = await Rig(clock).open()
    root = await put(cache, query(), "in the oven")
    assert await cache.feedback(root, right=False, ticket="bm9uc2Vuc2U=") is not None
    assert isinstance(await cache.find(query()), Miss)
    await cache.close()


async def test_another_tenants_scope_learns_nothing(clock: FrozenClock) -> None:
    """What one team's people say must not shut, or open, another's cache."""
    cache = await Rig(clock, audit_share=1.0).open()
    for team in ("acme", "umbrella"):
        await put(cache, query(team=team), "in the oven")
    served = await hit(cache, SIMILAR)
    await cache.compare(query(SIMILAR), kept("in a pan"), served)
    assert isinstance(await cache.find(query(SIMILAR, team="umbrella")), Hit)
    await cache.close()


async def test_a_dry_look_up_counts_nowhere(clock: FrozenClock) -> None:
    """Whoever tries what would be served must not spend the error budget, nor make hits look better than they are."""
    cache = await Rig(clock, learned.Policy()).open()
    await put(cache, query(), "in the oven")
    key = (query().scope, "hash-384")
    before = (await cache._scopes.get(key)).state
    for text in ("how do i bake bread at home", SIMILAR, "what is a lake"):
        await cache.find(query(text), dry=True)
        await cache.find(query(text), dry=True, hold=True)
    assert (await cache._scopes.get(key)).state is before
    (row,) = await cache.stats()
    assert (row.lookups, row.hits_exact, row.hits_semantic, row.misses, row.trust) == (0, 0, 0, {}, None)
    await cache.close()


async def test_in_shadow_it_decides_learns_and_serves_nothing(clock: FrozenClock) -> None:
    """Who only watches gets the numbers that say whether to go on."""
    cache = await Rig(clock, mode="shadow").open()
    await put(cache, query(), "in the oven")
    watched = await miss(cache, SIMILAR)
    assert watched.reason == "shadow"
    assert (await cache.compare(query(SIMILAR), kept("in the oven"), watched)).result == "same"
    assert (await trust(cache)).explored_same == 1
    await cache.close()


async def test_in_shadow_every_wording_has_its_own_answer(clock: FrozenClock) -> None:
    """A judged wording became a key of the other one's answer, and that was served where nothing is to be served."""
    rig = Rig(clock, learned.Policy(), mode="shadow")
    cache = await rig.open()
    root = await put(cache, query(), "in the oven")
    watched = await miss(cache, SIMILAR)
    own = await put(cache, query(SIMILAR), "in the oven")
    compared = await cache.compare(query(SIMILAR), kept("in the oven"), watched)
    assert (compared.result, compared.key) == ("same", None)
    assert (await hit(cache, SIMILAR)).entry.id == own
    await cache.close()
    rig.config = msgspec.structs.replace(rig.config, mode="semantic")
    cache = await rig.open()
    found = await miss(cache, OTHER)
    assert (await cache.compare(query(OTHER), kept("in the oven"), found)).key in {root, own}
    assert (await hit(cache, OTHER)).entry.answer_id
    await cache.close()
    rig.config = msgspec.structs.replace(rig.config, mode="shadow")
    cache = await rig.open()
    await miss(cache, OTHER)
    await cache.close()


async def test_a_store_that_is_away_teaches_nothing_and_breaks_nothing(clock: FrozenClock) -> None:
    """Learning is off the path of a reply; trouble there is told, and the cache goes on."""

    class Away(MemoryStore):
        down = False

        async def put_state(self, name: bytes, blob: bytes, *, seen: int) -> bool:
            if self.down:
                raise StoreDown("away")
            return await super().put_state(name, blob, seen=seen)

    rig = Rig(clock, audit_share=1.0)
    rig.store = Away()
    cache = await rig.open()
    await put(cache, query(), "in the oven")
    served = await hit(cache, SIMILAR)
    rig.store.down = True
    await cache.compare(query(SIMILAR), kept("in a pan"), served)
    assert (await miss(cache, SIMILAR)).reason == "quarantine"
    rig.store.down = False
    await cache.close()
    assert (await miss(await rig.open(), SIMILAR)).reason == "quarantine"


# -- values that several processes fold --------------------------------------------------------------------------------


class Sums:
    """Integers by addition, written as text."""

    def fresh(self) -> int:
        return 0

    def fold(self, value: int, event: int) -> int:
        return value + event

    def encode(self, value: int) -> bytes:
        return str(value).encode()

    def decode(self, blob: bytes) -> int | None:
        return int(blob) if blob.isdigit() else None


class Shared(MemoryStore):
    """One that says others write to it too."""

    @property
    def shared(self) -> bool:
        return True


class Workers(RuleBasedStateMachine):
    """Two workers add, write, read and die in any order: nothing that was written is ever lost or counted twice."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.store, self.clock = Shared(), FrozenClock()
        self.workers = [self.made(), self.made()]
        self.total = 0
        self.unwritten = [0, 0]
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(folded, "WRITE_WITHIN", 3_600.0)  # only `write` writes, however slow the machine is

    def made(self) -> Folded[int, int]:
        return Folded[int, int](self.store, Sums(), most=4, monotonic=self.clock.monotonic)

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    @rule(who=st.integers(0, 1), much=st.integers(1, 9))
    def add(self, who: int, much: int) -> None:
        self.run(self.workers[who].add(b"x", much))
        self.unwritten[who] += much
        self.total += much

    @rule(who=st.integers(0, 1))
    def write(self, who: int) -> None:
        self.run(self.workers[who].flush())
        self.unwritten[who] = 0

    @rule(who=st.integers(0, 1))
    def die(self, who: int) -> None:
        self.total -= self.unwritten[who]
        self.unwritten[who] = 0
        self.run(self.workers[who]._background.close())
        self.workers[who] = self.made()

    @rule(who=st.integers(0, 1))
    def read_later(self, who: int) -> None:
        self.clock.advance(FRESH_FOR + 0.1)
        assert self.run(self.workers[who].get(b"x")) == self.total - self.unwritten[1 - who]

    @invariant()
    def nothing_is_doubled(self) -> None:
        (stored,) = self.run(self.store.states([b"x"]))
        assert (0 if stored is None else int(stored.blob)) == self.total - sum(self.unwritten)

    def teardown(self) -> None:
        for worker in self.workers:
            self.run(worker.close())
        self.patch.undo()
        self.loop.close()


TestWorkers = Workers.TestCase


async def test_a_flushed_store_gets_back_what_a_worker_still_knows(clock: FrozenClock) -> None:
    """Losing the store's contents must not make anything looser: quarantines and brakes are put back."""
    store = Shared()
    worker = Folded[int, int](store, Sums(), most=4, monotonic=clock.monotonic)
    await worker.add(b"x", 5, soon=True)
    store._states.clear()
    clock.advance(FRESH_FOR + 1)
    assert await worker.get(b"x") == 5
    await worker.add(b"x", 1, soon=True)
    assert await store.states([b"x"]) == [Stored(1, b"6")]
    await worker.close()


async def test_values_in_memory_are_bounded(clock: FrozenClock) -> None:
    """Every conversation may be a scope of its own."""
    worker = Folded[int, int](MemoryStore(), Sums(), most=3, monotonic=clock.monotonic)
    for number in range(20):
        await worker.add(bytes([number]), 1, soon=True)
    assert len(worker) <= 4
    assert await worker.get(b"\x00") == 1
    await worker.close()


class Busy(MemoryStore):
    """While it writes the first value, `meanwhile` happens."""

    meanwhile: Callable[[], Awaitable[None]] | None = None

    async def put_state(self, name: bytes, blob: bytes, *, seen: int) -> bool:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return await super().put_state(name, blob, seen=seen)


async def test_a_value_that_was_written_and_let_go_meanwhile_stops_no_writing(clock: FrozenClock) -> None:
    """With a scope per conversation one is written, and makes room, while others wait: what writes died of it."""
    store = Busy()
    worker = Folded[int, int](store, Sums(), most=1, monotonic=clock.monotonic)
    for name in (b"a", b"b", b"c"):
        await worker.add(name, 1)

    async def meanwhile() -> None:
        await worker.add(b"b", 1, soon=True)
        await worker.get(b"d")

    store.meanwhile = meanwhile
    await worker.flush()
    assert worker.peek(b"b") is None
    assert [int(one.blob) for one in await store.states([b"a", b"b", b"c"]) if one is not None] == [1, 2, 1]
    await worker.close()


# -- a scope's record --------------------------------------------------------------------------------------------------


def spotted(*numbers: int, firm: bool = True) -> Scope:
    form = ScopeForm(learning(Policy()))
    scope = form.fresh()
    for number in numbers:
        scope = form.fold(scope, shut(direction(number), 0.95, firm=firm))
    return scope


def direction(number: int) -> Any:
    return HashEncoder()._word(f"w{number}")


def test_spots_that_people_shut_never_give_way() -> None:
    """Bounded memory must not mean that what a person reported comes back: then the whole scope is shut."""
    full = spotted(*range(MOST_SPOTS + 1))
    assert full.record.shut
    assert full.shuts(direction(999))
    loose = spotted(*range(MOST_SPOTS + 1), firm=False)
    assert not loose.record.shut
    assert not loose.shuts(direction(0))
    assert loose.shuts(direction(MOST_SPOTS))


def test_a_record_survives_its_bytes_and_another_policys_does_not() -> None:
    """A restart brings back state and spots; a change of policy brings back the spots alone."""
    learns, fixed = ScopeForm(learned.Policy()), ScopeForm(learning(Policy()))
    evidence = Evidence(entry_id=1, answer_id=1, features=b"", wanted=True)
    scope = learns.fold(learns.fresh(), Counted(Regenerate(reason="far"), served=False))
    scope = learns.fold(scope, shut(direction(1), 0.95, firm=True))
    scope = learns.fold(scope, Judged((Outcome(evidence=evidence, same=True, kind="audit"),), near=pack(direction(2))))
    back = learns.decode(learns.encode(scope))
    assert back is not None
    assert back.state == scope.state
    assert back.record.answers == {1: (1.0, 0.0)}
    assert back.shuts(direction(1))
    other = fixed.decode(learns.encode(scope))
    assert other is not None
    assert (other.state, other.shuts(direction(1))) == (Checked(), True)


@given(st.binary(max_size=200))
def test_damaged_bytes_are_no_record_and_no_crash(blob: bytes) -> None:
    """Whatever the store gives back, the scope begins anew rather than fail."""
    form = ScopeForm(learned.Policy())
    found = form.decode(blob)
    assert found is None or isinstance(found, Scope)
    damaged = msgspec.msgpack.encode(Record(policy="policies.reuse.learned", state=blob))
    again = form.decode(damaged)
    assert again is not None
    assert again.state.version == learned.VERSION


def test_audits_and_reports_bound_the_share_of_wrong_hits() -> None:
    """The interval must hold what people reported, and take off what the judge is known to get wrong."""
    few = measured(Trust(hits=100, audited=20, audited_wrong=0), 0.05)
    assert (few.rate, few.low) == (0.0, 0.0)
    assert few.high is not None
    assert 0.1 < few.high < 0.2
    reported = measured(Trust(hits=100, audited=20, audited_wrong=0, reported_wrong=30), 0.05)
    assert reported.low == 0.3
    noisy = measured(Trust(hits=100, audited=100, audited_wrong=4, flips=4.0), 0.05)
    assert noisy.rate == 0.0
    assert measured(Trust(hits=5), 0.05).rate is None


@pytest.mark.parametrize(
    ("trust", "expected"),
    [
        (Trust(), False),
        (Trust(hits=1, audited=1, audited_wrong=1), False),
        (Trust(hits=2, audited=2, audited_wrong=2), True),
        (Trust(hits=100, audited=100, audited_wrong=7), False),
        (Trust(hits=100, audited=100, audited_wrong=20), True),
        (Trust(hits=100, audited=100, audited_wrong=20, flips=15.0), False),
        (Trust(hits=10, reported_wrong=3), False),
        (Trust(hits=100, reported_wrong=6), True),
    ],
)
def test_an_alarm_needs_proof(trust: Trust, expected: bool) -> None:
    """One bad draw is no alarm, a judge who errs is taken into account, and what people report is not ignored."""
    assert broken(trust, 0.05) is expected


# -- two workers on one Redis ------------------------------------------------------------------------------------------


@pytest.fixture
async def pair(redis_url: str, clock: FrozenClock) -> AsyncGenerator[tuple[SemanticCache, SemanticCache]]:
    prefix, opened = f"test:{uuid.uuid4().hex}:", list[SemanticCache]()
    for _ in range(2):
        rig = Rig(clock, audit_share=1.0)
        rig.store = RedisStore(Link(redis_url, monotonic=time.monotonic, lookup=10.0), now=time.time, prefix=prefix)
        rig.config = CacheConfig(audit_share=1.0)
        cache = SemanticCache(
            rig.store,
            HashEncoder(),
            rig.policy,
            config=rig.config,
            now=time.time,
            monotonic=time.monotonic,
            judge=rig.judge,
            random=lambda: 0.0,
        )
        await cache.start()
        opened.append(cache)
    yield opened[0], opened[1]
    for cache in opened:
        await cache.close()


async def test_what_one_worker_learns_binds_the_other_within_a_moment(
    pair: tuple[SemanticCache, SemanticCache],
) -> None:
    """A person tells one worker; the other must not go on serving what is near, nor the answer itself."""
    one, other = pair
    root = await put(one, query(), "in the oven")

    async def served() -> bool:
        return isinstance(await other.find(query(SIMILAR)), Hit)

    async def refused() -> bool:
        return isinstance(found := await other.find(query(OTHER)), Miss) and found.reason == "quarantine"

    await until(served)
    told = await hit(one, SIMILAR)
    await one.feedback(root, right=False, ticket=ticket(query(SIMILAR), told))
    await put(one, query(), "in the oven")
    await until(refused)


async def test_both_workers_labels_count(pair: tuple[SemanticCache, SemanticCache]) -> None:
    """Two who learn at once fold into one state; neither overwrites the other."""
    one, other = pair
    await put(one, query(), "in the oven")
    for cache in pair:  # the index of the one that kept it may still be loading, too
        await until(lambda cache=cache: _is_hit(cache, SIMILAR))
    served = [(cache, await hit(cache, SIMILAR)) for cache in (one, other)]
    for _ in range(5):
        await asyncio.gather(
            *(cache.compare(query(SIMILAR), kept("in the oven"), found, keep=False) for cache, found in served)
        )
    for cache in pair:
        await cache._scopes.flush()
        await cache._verifier.flush()
    key = (query().scope, "hash-384")
    await asyncio.sleep(FRESH_FOR + 0.1)
    for cache in pair:
        assert (await cache._scopes.get(key)).state.checked == 10
        assert (await trust(cache)).audited >= 5


async def _is_hit(cache: SemanticCache, text: str) -> bool:
    return isinstance(await cache.find(query(text)), Hit)
