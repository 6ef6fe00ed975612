"""Exact hits on a text that was only judged to have its answer: checked like hits by meaning, and taken back alone."""

import time
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from cache.codec import Codec
from cache.semantic import SemanticCache
from cache.store import StoreDown
from cache.tolerance import borne, doubt_of
from cache.types import CacheConfig, Entry, Hit, Miss
from cache.verify import ticket
from policies.reuse import Budget, Evidence, believed, learned
from tests.clock import FrozenClock
from tests.unit.cache.test_learning import Rig, hit, kept, miss, put, trust
from tests.unit.cache.test_semantic_cache import SIMILAR, query

THIRD = "how do i bake brown bread at home"


async def opened(clock: FrozenClock, *, coin: float = 0.0, **config: float) -> tuple[Rig, SemanticCache, int]:
    """A cache in which SIMILAR and THIRD are judged keys of one answer."""
    rig = Rig(clock, learned.Policy(), embed_timeout=5.0, **config)
    rig.coin = coin
    cache = await rig.open()
    root = await put(cache, query(), "in the oven")
    for text in (SIMILAR, THIRD):
        found = await miss(cache, text)
        assert (await cache.compare(query(text), kept("in the oven"), found)).key == root
    return rig, cache, root


async def test_a_judged_key_is_drawn_for_audit_and_an_answers_own_key_never(clock: FrozenClock) -> None:
    """The judge errs: without a second look its mistake would answer that text for ever."""
    rig, cache, root = await opened(clock, coin=0.19)
    judged = await hit(cache, SIMILAR)
    assert (judged.tier, judged.entry.root, judged.audit) == ("exact", root, True)
    own = await cache.find(query())
    assert isinstance(own, Hit)
    assert not own.audit
    rig.coin = 0.21
    assert not (await hit(cache, SIMILAR)).audit
    assert (await trust(cache)).hits == 2  # those on judged keys; an answer's own text is no hit by meaning
    await cache.close()


async def test_who_allows_no_error_gets_no_judged_key(clock: FrozenClock) -> None:
    """A budget of 0 and "exact" promise the text's own answer; a judge's word for another wording's is not that."""
    _, cache, _ = await opened(clock)
    none, nothing = Budget(max_error_rate=0.0), Budget(max_error_rate=1.0, max_wrong_hit_rate=0.0)
    for _ in range(2):  # from the store, and from what is at hand
        assert isinstance(await cache.find(query(SIMILAR), tier="exact"), Miss)
        assert isinstance(await cache.find(query(SIMILAR), allowed=none), Miss)
        assert isinstance(await cache.find(query(SIMILAR), allowed=nothing), Miss)
        assert isinstance(await cache.find(query(), tier="exact", allowed=none), Hit)
        assert (await hit(cache, SIMILAR)).tier == "exact"
    await cache.close()


async def doubtful(clock: FrozenClock) -> tuple[Rig, SemanticCache, float]:
    """A cache in which SIMILAR is a judged key, and the doubt that was kept with it."""
    rig = Rig(clock, learned.Policy(), embed_timeout=5.0)
    rig.judge.flip = 0.02
    cache = await rig.open()
    await put(cache, query(), "in the oven")
    await cache.compare(query(SIMILAR), kept("in the oven"), await miss(cache, SIMILAR))
    doubt = (await hit(cache, SIMILAR)).entry.doubt
    assert doubt is not None
    assert 0.0 < doubt < 0.01
    return rig, cache, doubt


@pytest.mark.parametrize("which", ["max_wrong_hit_rate", "max_error_rate"])
async def test_a_judged_key_is_for_those_who_bear_its_doubt(clock: FrozenClock, which: str) -> None:
    """It was good enough for whoever asked first; a client with a stricter budget got it all the same, as exact."""
    _, cache, doubt = await doubtful(clock)
    looser, stricter = Budget(**{which: doubt * 1.01}), Budget(**{which: doubt * 0.99})
    found = await cache.find(query(SIMILAR), allowed=looser)
    assert isinstance(found, Hit)
    assert (found.tier, found.entry.answer_id != 0) == ("exact", True)
    for _ in range(2):  # by meaning it is not found either
        assert isinstance(await cache.find(query(SIMILAR), allowed=stricter), Miss)
    assert isinstance(await cache.find(query(), allowed=stricter), Hit)
    await cache.close()


async def test_an_operator_who_allows_less_than_before_takes_doubtful_keys_back(clock: FrozenClock) -> None:
    """Keys outlive the setting that they were made under."""
    rig, cache, doubt = await doubtful(clock)
    rig.config = replace(rig.config, max_wrong_hit_rate=doubt * 0.99)
    again = await rig.open()
    assert (await miss(again, SIMILAR)).reason != "store-down"
    assert isinstance(await again.find(query()), Hit)
    await cache.close()


async def test_the_strict_keep_the_answer_they_paid_for(clock: FrozenClock) -> None:
    """Were it replaced by the judged one, their next request would be a miss again, and so every one."""
    rig, cache, doubt = await doubtful(clock)
    strict = Budget(max_wrong_hit_rate=doubt * 0.99)
    rig.judge.flip = 0.1  # good enough for the operator still
    missed = await cache.find(query(SIMILAR), allowed=strict)
    assert isinstance(missed, Miss)
    mine = await put(cache, query(SIMILAR), "in the oven")
    compared = await cache.compare(query(SIMILAR), kept("in the oven"), missed)
    assert (compared.result, compared.key) == ("same", None)
    found = await cache.find(query(SIMILAR), allowed=strict)
    assert isinstance(found, Hit)
    assert found.entry.id == mine
    await cache.close()


async def test_a_key_of_an_older_version_is_as_doubtful_as_was_allowed(clock: FrozenClock) -> None:
    """Its doubt was not kept: only who allows all that the operator does gets it. And the field survives the store."""
    _, cache, doubt = await doubtful(clock)
    key = (await hit(cache, SIMILAR)).entry
    codec, older = Codec(), replace(key, doubt=None)
    assert codec.decode(codec.encode(key), key.exact) == replace(key, vector=b"")
    fields = msgspec.to_builtins(older)
    del fields["doubt"]
    assert msgspec.convert(fields, Entry).doubt is None
    config = CacheConfig()
    assert doubt_of(older, config) <= borne(Budget(), config)
    assert doubt_of(older, config) > borne(Budget(max_wrong_hit_rate=0.04), config)
    assert doubt_of(key, config) == doubt
    await cache.close()


async def test_a_judge_who_often_errs_makes_no_keys(clock: FrozenClock) -> None:
    """A key is an exact hit from then on: of a hundred different answers near a question he would make twenty of them.

    What he says is learned all the same, and the text keeps its own answer.
    """
    rig = Rig(clock, learned.Policy(), embed_timeout=5.0, max_wrong_hit_rate=0.01)
    rig.judge.flip = 0.2
    cache = await rig.open()
    await put(cache, query(), "in the oven")
    found = await miss(cache, SIMILAR)
    mine = await put(cache, query(SIMILAR), "in the oven")
    compared = await cache.compare(query(SIMILAR), kept("in the oven"), found)
    assert (compared.result, compared.key) == ("same", None)
    assert (await hit(cache, SIMILAR)).entry.id == mine
    counted = await trust(cache)
    assert (counted.explored_same, counted.aliases) == (1, 0)
    await cache.close()


@pytest.mark.parametrize(
    ("probability", "veto", "flip", "least", "most"),
    [
        (0.02, None, 0.0, 1.0, 1.0),  # who never errs is believed
        (0.02, None, 0.04, 0.3, 0.35),  # of a hundred pairs two are the same, and four are called so wrongly
        (0.9, None, 0.04, 0.99, 1.0),
        (0.9, "number", 0.04, 0.7, 0.75),  # a guard that forbids the pair speaks against the judge
        (0.0, None, 0.04, 0.0, 0.0),
    ],
)
def test_what_a_verdict_is_worth(probability: float, veto: str | None, flip: float, least: float, most: float) -> None:
    """Bayes: the rarer equal answers are, the less a judge's "same" says."""
    evidence = Evidence(entry_id=1, answer_id=1, probability=probability, veto=veto)
    assert least <= believed(evidence, flip) <= most


async def test_the_more_hits_the_fewer_are_checked_but_never_fewer_than_the_operator_wants(clock: FrozenClock) -> None:
    """Audits cost money; what holds for hits by meaning holds here."""
    rig, cache, _ = await opened(clock)
    for _ in range(60):
        await hit(cache, SIMILAR)
    rig.coin = 0.1
    assert not (await hit(cache, SIMILAR)).audit
    await cache.close()
    rig, cache, _ = await opened(clock, coin=0.1, audit_share=0.15)
    for _ in range(60):
        assert (await hit(cache, SIMILAR)).audit
    await cache.close()


async def test_a_wrong_key_goes_alone_and_counts_as_a_wrong_hit(clock: FrozenClock) -> None:
    """The other wordings keep the answer; this one is asked anew, by meaning too, until that is verified."""
    rig, cache, root = await opened(clock)
    served = await hit(cache, SIMILAR)
    compared = await cache.compare(query(SIMILAR), kept("in a pan"), served)
    assert (compared.result, compared.key) == ("different", None)
    await miss(cache, SIMILAR)
    (spot,) = (await cache._scopes.get((query().scope, "hash-384"))).record.spots
    assert not spot.firm
    assert (await hit(cache, THIRD)).entry.root == root
    found = await trust(cache)
    assert (found.audited, found.audited_wrong, found.quarantines) == (1, 1, 1)
    assert rig.measured[-1].audited_wrong == 1
    await cache.close()
    again = await rig.open()
    assert isinstance(await again.find(query(SIMILAR)), Miss)
    await again.close()


async def test_a_right_key_stays_and_counts(clock: FrozenClock) -> None:
    """What was confirmed is the evidence that reuse is right here."""
    _, cache, _ = await opened(clock)
    assert (await cache.compare(query(SIMILAR), kept("in the oven"), await hit(cache, SIMILAR))).result == "same"
    assert (await hit(cache, SIMILAR)).tier == "exact"
    found = await trust(cache)
    assert (found.audited, found.audited_wrong) == (1, 0)
    await cache.close()


async def test_a_judge_that_cannot_tell_changes_nothing(clock: FrozenClock) -> None:
    """Undecided is neither right nor wrong."""
    rig, cache, _ = await opened(clock)
    rig.judge.unsure = True
    assert (await cache.compare(query(SIMILAR), kept("in a pan"), await hit(cache, SIMILAR))).result == "undecided"
    assert (await hit(cache, SIMILAR)).tier == "exact"
    found = await trust(cache)
    assert (found.audited, found.undecided) == (0, 1)
    await cache.close()


async def test_what_was_replaced_while_the_judge_thought_is_left_alone(clock: FrozenClock) -> None:
    """A refreshed answer is the text's own; a verdict on the old key must not take it."""
    _, cache, _ = await opened(clock)
    served = await hit(cache, SIMILAR)
    mine = await put(cache, query(SIMILAR), "in a pan")
    assert (await cache.compare(query(SIMILAR), kept("in a pan"), served)).result == "none"
    assert (await hit(cache, SIMILAR)).entry.id == mine
    await cache.close()


async def test_an_answers_own_text_is_never_compared(clock: FrozenClock) -> None:
    """Models vary: another answer to the very same request proves nothing."""
    rig, cache, _ = await opened(clock)
    rig.judge.asked.clear()
    own = await cache.find(query())
    assert (await cache.compare(query(), kept("in a pan"), own)).result == "none"
    assert rig.judge.asked == []
    await cache.close()


async def test_without_a_judge_nothing_is_drawn(clock: FrozenClock) -> None:
    """A fresh answer nobody can compare is money for nothing."""
    rig, cache, _ = await opened(clock)
    await cache.close()
    blind = SemanticCache(
        rig.store, None, rig.policy, config=rig.config, now=clock.now, monotonic=time.monotonic, random=lambda: 0.0
    )
    await blind.start()
    found = await blind.find(query(SIMILAR))
    assert isinstance(found, Hit)
    assert not found.audit
    await blind.close()


async def test_a_persons_word_on_a_judged_key_counts(clock: FrozenClock) -> None:
    """Such a hit rests on a judgement, so a report of it is a wrong hit by meaning."""
    _, cache, root = await opened(clock)
    served = await hit(cache, SIMILAR)
    written = ticket(query(SIMILAR), served)
    assert written is not None
    assert await cache.feedback(served.entry.id, right=False, ticket=written) is not None
    assert isinstance(await cache.find(query()), Miss)  # the whole answer went
    found = await trust(cache)
    assert (found.reported_wrong, found.quarantines) == (1, 1)
    again = await put(cache, query(), "in the oven")
    state = await cache._scopes.get((query().scope, "hash-384"))
    for text in (SIMILAR, THIRD):  # what is near is not served the next answer by meaning either, as the docs say
        vector = await cache._vector(query(text))
        assert vector is not None
        assert state.shuts(vector)
    assert again != root
    own = await cache.find(query())
    assert isinstance(own, Hit)
    assert ticket(query(), own) is None
    await cache.close()


@pytest.mark.parametrize("which", ["get_many", "drop_key"])
async def test_an_audit_that_was_paid_for_outlives_a_store_that_blinks(
    clock: FrozenClock, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    """One slow answer of Redis, and a wrong key stayed, its audit counted nowhere."""
    rig, cache, _ = await opened(clock)
    served, work, blinks = await hit(cache, SIMILAR), getattr(rig.store, which), [True]

    async def blink(*given: Any) -> Any:
        if blinks:
            blinks.clear()
            raise StoreDown("away for a moment")
        return await work(*given)

    monkeypatch.setattr(rig.store, which, blink)
    assert (await cache.compare(query(SIMILAR), kept("in a pan"), served)).result == "different"
    assert not blinks
    assert (await trust(cache)).audited_wrong == 1
    assert isinstance(await cache.find(query(SIMILAR), tier="exact"), Miss)
    await cache.close()


async def test_what_was_learned_is_counted_though_it_makes_no_key(
    clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scope had learned from a comparison that no figure told of, because the store went away between the two."""
    rig = Rig(clock, learned.Policy(), embed_timeout=5.0)
    cache = await rig.open()
    await put(cache, query(), "in the oven")

    async def away(*_: Any) -> bool:
        raise StoreDown("away")

    monkeypatch.setattr(rig.store, "put_key", away)
    compared = await cache.compare(query(SIMILAR), kept("in the oven"), await miss(cache, SIMILAR))
    assert (compared.result, compared.key) == ("same", None)
    found = await trust(cache)
    assert (found.explored, found.explored_same, found.aliases) == (1, 1, 0)
    await cache.close()


async def test_a_request_that_looks_again_counts_once(clock: FrozenClock) -> None:
    """Who waits for a near answer in the making asks the cache twice; it is one request, in figures and in spending."""
    cache = await Rig(clock, learned.Policy(), embed_timeout=5.0).open()
    await put(cache, query("something else entirely"), "x")
    near = "something else entirely please"
    first = await cache.find(query(near), hold=True)
    assert isinstance(first, Miss)
    key = (query().scope, "hash-384")
    before = (await cache._scopes.get(key)).state.window.requests
    second = await cache.find(query(near), again=first)
    assert (await cache._scopes.get(key)).state.window.requests == pytest.approx(before + 1, abs=0.01)  # old ones fade
    (row,) = await cache.stats()
    assert (row.lookups, row.hits_exact + row.hits_semantic + sum(row.misses.values())) == (1, 1)
    assert isinstance(second, Miss)
    held = await cache.find(query(near), hold=True)
    assert isinstance(held, Miss)
    cache.count(held)
    assert (await cache._scopes.get(key)).state.window.requests == pytest.approx(before + 2, abs=0.01)
    await cache.close()
