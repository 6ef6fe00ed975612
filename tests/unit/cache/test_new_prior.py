"""A release that ships another prior or reader, over a store that an older one has learned in."""

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from cache import priors
from cache.learning import Counted, Judged, Record, Scope, ScopeForm, shut
from cache.types import Hit
from cache.verify import ticket
from cache.weights import PINNED
from policies.reuse import Budget, Explore, Neighbour, Outcome, Serve, learned
from policies.reuse.prior import Prior
from tests.clock import FrozenClock
from tests.unit.cache.test_learning import Rig, direction, kept, put
from tests.unit.cache.test_semantic_cache import SIMILAR, query

NEAR = [Neighbour(entry_id=1, text="How can I reset it?", similarity=0.97, reading=9.0)]
ASKED = "How do I reset it?"


def shipped() -> Prior:
    found = priors.shipped(PINNED["model.safetensors"])
    assert found is not None
    return found


def fewer_bends(prior: Prior) -> Prior:
    width = len(prior.names) + 1
    return replace(prior, knots=prior.knots[:1], mean=prior.mean[:width], deviation=prior.deviation[:width])


def of(prior: Prior) -> ScopeForm:
    return ScopeForm(learned.Policy(prior=prior))


def taught(form: ScopeForm, scope: Scope, labels: int, *, same: bool = False) -> Scope:
    """`labels` audits, of hits like the one of `NEAR`."""
    policy: Any = form._policy
    for _ in range(labels):
        verdict = policy.decide(policy.fresh(), ASKED, NEAR, Budget())
        assert isinstance(verdict, Serve | Explore)
        scope = form.fold(scope, Counted(verdict, served=isinstance(verdict, Serve)))
        outcomes = tuple(Outcome(evidence=item, same=same, kind="audit") for item in verdict.evidence)
        scope = form.fold(scope, Judged(outcomes))
    return scope


OTHERS = {
    "scales": lambda prior: replace(prior, scale=tuple(2.0 * one for one in prior.scale)),
    "bends": fewer_bends,
    "weights": lambda prior: replace(prior, mean=tuple(0.5 * one for one in prior.mean)),
    "reader": lambda prior: replace(prior, reader="another"),
}


@pytest.mark.parametrize("change", OTHERS)
def test_weights_of_another_prior_are_never_decided_with(change: str) -> None:
    """Weights that were learned over other features are wrong, or of another length: each request would have failed."""
    old, new = of(shipped()), of(OTHERS[change](shipped()))
    scope = taught(old, old.fresh(), 5)
    scope = old.fold(scope, shut(direction(1), 0.95, firm=True))
    found = new.decode(old.encode(scope))
    assert found is not None
    fresh = new.fresh().state
    assert (found.state.belief, found.state.curve, found.state.labels) == (fresh.belief, fresh.curve, 0)
    assert new._policy.decide(found.state, ASKED, NEAR, Budget()) is not None
    assert found.record.answers == scope.record.answers
    assert found.shuts(direction(1))


def test_what_a_scope_owes_outlives_its_prior() -> None:
    """A release must be no new budget: where audits have proved too many wrong, it serves nothing either."""
    old, new = of(shipped()), of(fewer_bends(shipped()))
    scope = taught(old, old.fresh(), 30)
    found = new.decode(old.encode(scope))
    assert found is not None
    assert found.state.window == scope.state.window
    policy: Any = new._policy
    assert policy.brief(found.state, Budget())["braked"] == 1.0
    assert isinstance(policy.decide(found.state, ASKED, NEAR, Budget()), Explore)


def test_two_releases_on_one_store_do_not_undo_each_others_learning() -> None:
    """While hosts are replaced one by one each writes what the other reads; who goes back goes on where he was."""
    old, new = of(shipped()), of(OTHERS["scales"](shipped()))
    first = taught(old, old.fresh(), 5)
    second = new.decode(old.encode(first))
    assert second is not None
    second = taught(new, second, 3, same=True)
    again = old.decode(new.encode(second))
    assert again is not None
    assert again.state == first.state
    assert again.record.answers == {1: (3.0, 5.0)}
    back = new.decode(old.encode(again))
    assert back is not None
    assert back.state == second.state


def test_bounds_and_remarks_alone_are_the_same_basis() -> None:
    """Where only a prior's held-out bounds are others its weights mean the same, and what was learned goes on."""
    old = of(shipped())
    new = of(replace(shipped(), bounds=shipped().bounds[:1], about={"seed": "2"}))
    scope = taught(old, old.fresh(), 5)
    found = new.decode(old.encode(scope))
    assert found is not None
    assert found.state == scope.state


def test_what_was_learned_before_its_basis_was_written_down_begins_anew() -> None:
    """Nobody can say what such weights are about; what the scope owes and what is shut stay."""
    form = of(shipped())
    scope = taught(form, form.fresh(), 5)
    state = msgspec.msgpack.encode(scope.state)
    old = replace(scope.record, policy="policies.reuse.learned", state=state)
    found = form.decode(msgspec.msgpack.encode(old))
    assert found is not None
    assert found.state == replace(form.fresh().state, window=scope.state.window)


def test_a_state_that_cannot_be_decided_with_begins_anew() -> None:
    """Bytes that a store gives back damaged must cost what was learned, not every request of the scope."""
    form = of(shipped())
    state = taught(form, form.fresh(), 2).state
    nan = np.full(len(state.belief.mean) // 4, math.nan, "<f4").tobytes()
    damaged = (
        replace(state, belief=replace(state.belief, mean=state.belief.mean[:-4])),
        replace(state, belief=replace(state.belief, covariance=b"")),
        replace(state, belief=replace(state.belief, mean=nan)),
        replace(state, excused=state.excused[4:]),
        replace(state, window=replace(state.window, counts=b"")),
        replace(state, window=replace(state.window, spent=math.nan)),
        replace(state, version=learned.VERSION - 1),
    )
    name = msgspec.msgpack.decode(form.encode(form.fresh()), type=Record).policy
    for one in damaged:
        found = form.decode(msgspec.msgpack.encode(Record(policy=name, state=msgspec.msgpack.encode(one))))
        assert found is not None
        assert found.state == form.fresh().state


async def test_a_scope_that_has_learned_is_asked_under_another_prior(clock: FrozenClock) -> None:
    """The whole way: look-ups and feedback on hits of before go on over the same store, and only what is shut stays."""
    rig = Rig(clock, learned.Policy(prior=replace(shipped(), reader="")))
    cache = await rig.open()
    root = await put(cache, query(), "in the oven")
    found = await cache.find(query(SIMILAR))
    assert found.sight is not None
    await cache.compare(query(SIMILAR), kept("on a fire"), found)
    (entry,) = await cache.entries(1)
    served = Hit(entry=entry, tier="semantic", similarity=0.9, confidence=0.9, lookup_ms=1.0, sight=found.sight)
    written = ticket(query(SIMILAR), served)
    assert written is not None
    await cache.close()

    rig.policy = learned.Policy(prior=fewer_bends(replace(shipped(), reader="")))
    again = await rig.open()
    later = await again.find(query(SIMILAR))
    assert later.sight is not None
    assert later.sight.headroom["labels"] == 0
    await again.feedback(root, right=False, ticket=written)
    await put(again, query(), "in the oven")
    last = await again.find(query(SIMILAR))
    assert last.sight is not None
    assert last.sight.headroom["labels"] == 0
    scope = await again._scopes.get((query().scope, found.sight.encoder))
    assert [spot.firm for spot in scope.record.spots] == [True]
    await again.close()
