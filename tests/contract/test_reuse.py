"""Laws every reuse policy in `policies/reuse/` obeys."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.reuse import Budget, Neighbour, Regenerate, ReusePolicy, Serve, known, load
from tests.unit.reuse.near_misses import COMPARING, triples

TEXTS = sorted({text for guard in COMPARING for triple in triples(guard) for text in triple})
POLICIES = {name: load(name).Policy() for name in known()}
neighbours = st.lists(
    st.builds(
        Neighbour,
        entry_id=st.integers(0, 2**53),
        text=st.sampled_from(TEXTS),
        similarity=st.floats(-1.0, 1.0),
        age=st.floats(0.0, 1e6),
    ),
    max_size=8,
    unique_by=lambda neighbour: neighbour.entry_id,
)
budgets = st.builds(Budget, max_error_rate=st.floats(0, 1), max_wrong_hit_rate=st.floats(0, 1))


@pytest.fixture(params=sorted(POLICIES))
def policy(request: pytest.FixtureRequest) -> ReusePolicy:
    return POLICIES[request.param]


def test_policies_are_found_by_name() -> None:
    """A policy is a file in the folder; a typo must name the known ones."""
    assert {"guarded", "learned", "threshold", "verified"} <= set(known())
    with pytest.raises(LookupError, match="guarded, learned, threshold, verified"):
        load("gaurded")


@given(text=st.sampled_from(TEXTS), near=neighbours, budget=budgets, seed=st.randoms(use_true_random=False))
@pytest.mark.parametrize("name", sorted(POLICIES))
def test_the_order_of_neighbours_does_not_matter(
    name: str, text: str, near: list[Neighbour], budget: Budget, seed: object
) -> None:
    """Indexes return ties in any order; the same facts must give the same verdict."""
    policy = POLICIES[name]
    first = policy.judge(text, near, budget)
    shuffled = sorted(near, key=lambda neighbour: hash((neighbour.entry_id, str(seed))))
    assert policy.judge(text, shuffled, budget) == first == policy.judge(text, near, budget)


@given(text=st.sampled_from(TEXTS), near=neighbours, budget=budgets)
@pytest.mark.parametrize("name", sorted(POLICIES))
def test_served_is_a_neighbour_above_the_floor(name: str, text: str, near: list[Neighbour], budget: Budget) -> None:
    """Below its floor nothing is fetched, so nothing below it may be served."""
    policy = POLICIES[name]
    verdict = policy.judge(text, near, budget)
    if isinstance(verdict, Serve):
        (served,) = [neighbour for neighbour in near if neighbour.entry_id == verdict.entry_id]
        assert served.similarity >= policy.floor
        assert 0.0 <= verdict.confidence <= 1.0
    assert {note.entry_id for note in verdict.notes} <= {neighbour.entry_id for neighbour in near}


@given(text=st.sampled_from(TEXTS), near=neighbours, error=st.floats(0, 0.2), wrong=st.floats(0, 0.2))
@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_smaller_budget_never_serves_more(
    name: str, text: str, near: list[Neighbour], error: float, wrong: float
) -> None:
    """A client's stricter header must be stricter."""
    policy = POLICIES[name]
    strict = policy.judge(text, near, Budget(max_error_rate=error, max_wrong_hit_rate=wrong))
    loose = policy.judge(text, near, Budget(max_error_rate=2 * error, max_wrong_hit_rate=2 * wrong))
    if isinstance(strict, Serve):
        assert isinstance(loose, Serve)


def test_a_budget_of_nothing_serves_nothing(policy: ReusePolicy) -> None:
    """Error rate 0 means the exact tier only."""
    near = [Neighbour(entry_id=1, text="How do I reset my password", similarity=1.0)]
    assert policy.judge("How do I reset my password?", near, Budget(max_error_rate=0.0)) == Regenerate(reason="budget")


def test_no_neighbours_is_a_miss(policy: ReusePolicy) -> None:
    """The first request of a scope."""
    assert policy.judge("How do I reset my password?", [], Budget()) == Regenerate(reason="far")


def test_a_forbidden_nearest_gives_way_to_the_next() -> None:
    """The nearest may be a near miss while a right answer lies right behind it."""
    near = [
        Neighbour(entry_id=1, text="How do I lock my card?", similarity=0.98),
        Neighbour(entry_id=2, text="How can I unlock my card?", similarity=0.96),
    ]
    verdict = POLICIES["guarded"].judge("How do I unlock my card?", near, Budget())
    assert isinstance(verdict, Serve)
    assert verdict.entry_id == 2
    assert [(note.entry_id, note.guard) for note in verdict.notes] == [(1, "antonym"), (2, None)]


def test_the_reason_of_a_veto_is_told() -> None:
    """`why was this a miss` must have an answer."""
    near = [Neighbour(entry_id=1, text="Convert 100 USD to EUR", similarity=0.99)]
    verdict = POLICIES["guarded"].judge("Convert 1000 USD to EUR", near, Budget())
    assert isinstance(verdict, Regenerate)
    assert (verdict.reason, verdict.notes[0].guard) == ("guard", "number")
