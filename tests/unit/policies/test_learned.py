"""The learned boundary as a whole: it serves what is safe, keeps its budgets on hostile traffic, and forgets nothing
but what it must."""

import math
import random

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cache import priors
from cache.weights import PINNED
from policies.reuse import Budget, Explore, Neighbour, Outcome, Regenerate, Serve, learned, pairs, told, unread
from policies.reuse.learned import Params, Policy, State
from tests.unit.policies.scope import asked, reworded, traffic

PRIOR = priors.shipped(PINNED["model.safetensors"])
POLICY = Policy(prior=PRIOR)
BUDGET = Budget(max_error_rate=0.01, max_wrong_hit_rate=0.05)


def near(
    text: str,
    similarity: float = 0.97,
    entry_id: int = 1,
    answer_id: int | None = None,
    reading: float | None = 9.0,
) -> Neighbour:
    """Read together with the question and taken for alike, unless said otherwise."""
    return Neighbour(entry_id=entry_id, text=text, similarity=similarity, answer_id=answer_id, reading=reading)


def live(policy: Policy, right: float, count: int, seed: int = 0) -> tuple[State, int, int]:
    """A scope asked `count` times: its state, hits, wrong hits."""
    state, hits, wrong = policy.fresh(), 0, 0
    coin = random.Random(seed)
    for text, neighbour, same in traffic(seed, right=right, count=count):
        verdict = policy.decide(state, text, [neighbour], BUDGET)
        audited = isinstance(verdict, Serve) and coin.random() < verdict.audit
        served = isinstance(verdict, Serve) and not audited
        state = policy.count(state, verdict, served=served)
        hits, wrong = hits + served, wrong + (served and not same)
        if not served and isinstance(verdict, Serve | Explore):
            for item in verdict.evidence:
                state = policy.learn(state, Outcome(evidence=item, same=same, kind="audit" if audited else "explore"))
    return state, hits, wrong


def test_the_shipped_prior_names_its_seed_data_and_licences() -> None:
    """What ships must say where it comes from, and only from what may be used."""
    assert PRIOR is not None
    assert PRIOR.about["seed"] == "0"
    assert {"banking77", "hwu64_slots", "gptcache_mock", "own_frames"} <= set(PRIOR.about["data"].split())
    assert "CC BY 4.0" in PRIOR.about["data"]
    assert not {"qqp", "covidq"} & set(PRIOR.about["data"].lower().replace("(", " ").split())


def test_a_new_scope_serves_a_plain_paraphrase() -> None:
    """A fresh gateway must show what it is for at the second question."""
    verdict = POLICY.judge(
        "Please tell me: what is time to first token?", [near("What is time to first token?", 0.95)], Budget()
    )
    assert isinstance(verdict, Serve)
    assert 1.0 - verdict.confidence <= verdict.risk <= 0.2
    assert 0.0 < verdict.audit < 1.0


UNREAD = near("What is time to first token?", 0.95, reading=None)
REWORDED = "Please tell me: what is time to first token?"


def test_what_nobody_has_read_is_not_served_but_asked_for() -> None:
    """A sentence encoder cannot see what one word changes; whoever can read both texts is to be asked, and only then
    where it matters."""
    verdict = POLICY.judge(REWORDED, [UNREAD], BUDGET)
    assert isinstance(verdict, Explore)
    assert (verdict.reason, unread(verdict)) == ("unread", (1,))
    assert not any(item.wanted for item in verdict.evidence)
    assert isinstance(POLICY.judge(REWORDED, told([UNREAD], {1: 9.0}), BUDGET), Serve)
    far = POLICY.judge("What is a KV cache?", [near("What is time to first token?", 0.6, reading=None)], BUDGET)
    assert unread(far) == ()
    assert unread(POLICY.judge("Convert 100 USD", [near("Convert 900 USD", 0.97, reading=None)], BUDGET)) == ()


def test_a_scope_reads_what_a_budget_per_hit_does_not_let_it_serve_yet() -> None:
    """What may be served under it is learned from what was read: who reads nothing would stay without a hit."""
    strict = Budget(max_error_rate=0.01, max_wrong_hit_rate=0.001)
    verdict = POLICY.judge(REWORDED, [UNREAD], strict)
    assert isinstance(verdict, Explore)
    assert (verdict.reason, unread(verdict)) == ("unread", (1,))
    read = POLICY.judge(REWORDED, told([UNREAD], {1: 9.0}), strict)
    assert isinstance(read, Explore)
    assert read.reason in {"shadow", "unsure"}


def test_the_very_same_words_need_no_reader() -> None:
    """But for a capital letter nothing is left to be read."""
    verdict = POLICY.judge("what is a KV cache?", [near("What is a KV cache?", 0.99, reading=None)], BUDGET)
    assert isinstance(verdict, Serve)


def test_a_reader_that_finds_a_difference_is_a_guard() -> None:
    """Its word must not be outvoted by nearness, it stands in the explanation, and labels can excuse it like others."""
    verdict = POLICY.judge(REWORDED, told([UNREAD], {1: pairs.FORBIDS - 0.1}), BUDGET)
    assert isinstance(verdict, Explore)
    assert (verdict.reason, verdict.evidence[0].veto) == ("guard", "reader")


def test_a_reader_explains_what_no_rule_can() -> None:
    """A free rewording, which every list of words calls unexplained, is served where both texts were read as alike."""
    kept, text = "What causes a rainbow to form?", "What makes a rainbow appear?"
    unknown = near(kept, 0.97, reading=None)
    unread_yet = POLICY.judge(text, [unknown], BUDGET)
    assert isinstance(unread_yet, Explore)
    assert "unexplained" in unread_yet.evidence[0].guards
    between = POLICY.judge(text, told([unknown], {1: pairs.EXPLAINS - 0.1}), BUDGET)
    assert isinstance(between, Explore)
    assert between.evidence[0].veto == "unexplained"
    assert isinstance(POLICY.judge(text, told([unknown], {1: pairs.EXPLAINS}), BUDGET), Serve)


def test_without_a_reader_in_the_prior_none_is_asked_for() -> None:
    """Another encoder has neither prior nor reader: its scopes learn from labels alone, as before."""
    state, hits, _ = live(Policy(), right=1.0, count=600)
    assert hits > 100
    assert unread(Policy().decide(state, asked(3), [near(reworded(3), reading=None)], BUDGET)) == ()


@pytest.mark.parametrize(
    ("text", "kept", "guard"),
    [
        ("Convert 1000 USD to EUR", "Convert 100 USD to EUR", "number"),
        ("Subtract x from y", "Subtract y from x", "order"),
        ("Replace butter with oil in a recipe", "Replace oil with butter in a recipe", "order"),
        ("What did Newton say about him?", "What did Newton say about himself?", "person"),
        ("Can I use my card without a pin?", "Can I use my card with a pin?", "antonym"),
    ],
)
def test_near_misses_are_explored_and_say_why(text: str, kept: str, guard: str) -> None:
    """Nearness must not outvote what an encoder cannot see, and the label is wanted all the same."""
    verdict = POLICY.judge(text, [near(kept, 0.99)], Budget(max_error_rate=0.05, max_wrong_hit_rate=0.2))
    assert isinstance(verdict, Explore)
    assert verdict.evidence[0].veto is not None
    assert guard in verdict.evidence[0].guards


def test_without_a_prior_a_scope_learns_before_it_serves() -> None:
    """No knowledge, no hits: then its own labels suffice."""
    state, hits, wrong = live(Policy(), right=0.98, count=3_000)
    assert isinstance(Policy().judge(asked(1), [near(asked(1))], BUDGET), Explore)
    assert state.labels > 80
    assert hits > 200
    assert wrong <= 0.05 * hits + 5


def test_hostile_traffic_is_hardly_served() -> None:
    """Nearness that means nothing: nine of ten nearest texts have another answer, at any cosine."""
    for seed in range(3):
        _, _hits, wrong = live(POLICY, right=0.1, count=1_500, seed=seed)
        assert wrong <= 0.01 * 1_500 + 8


def test_safe_traffic_is_served_within_the_budget() -> None:
    """Where nearness is always right, shadowing would be a waste."""
    _, hits, wrong = live(POLICY, right=1.0, count=1_000)
    assert hits > 600
    assert wrong == 0


def test_a_state_travels_and_stays_small() -> None:
    """It is kept in a store and read by other processes: equal bytes, equal mind, and a bound however long it lives."""
    state, _, _ = live(POLICY, right=0.9, count=400)
    sent = msgspec.msgpack.encode(state)
    assert len(sent) < 16_000
    back = msgspec.msgpack.decode(sent, type=State)
    assert back == state
    verdict = POLICY.decide(state, asked(3), [near(reworded(3))], BUDGET)
    assert POLICY.decide(back, asked(3), [near(reworded(3))], BUDGET) == verdict


def test_deciding_changes_nothing_and_learning_is_a_fold() -> None:
    """N workers fold the same outcomes; the order of two that do not meet must not decide who serves what."""
    state = POLICY.fresh()
    verdict = POLICY.decide(state, asked(5), [near(reworded(5), 0.9), near(asked(6), 0.88, 2)], BUDGET)
    assert POLICY.decide(state, asked(5), [near(reworded(5), 0.9), near(asked(6), 0.88, 2)], BUDGET) == verdict
    assert isinstance(verdict, Serve | Explore)
    first, second = (Outcome(evidence=item, same=i == 0) for i, item in enumerate(verdict.evidence[:2]))
    one = POLICY.learn(POLICY.learn(state, first), second)
    other = POLICY.learn(POLICY.learn(state, second), first)
    risks = [POLICY.decide(learned_state, asked(7), [near(reworded(7), 0.9)], BUDGET) for learned_state in (one, other)]
    assert all(isinstance(found, Serve | Explore) for found in risks)
    a, b = (found.evidence[0].risk for found in risks if isinstance(found, Serve | Explore))
    assert a == pytest.approx(b, abs=0.02)


def test_only_a_sample_of_the_best_bends_the_curve() -> None:
    """It speaks for what is served: others of the same request, and what people choose to report, are no sample."""
    state = POLICY.fresh()
    verdict = POLICY.decide(state, asked(5), [near(reworded(5), 0.9), near(asked(6), 0.8, 2)], BUDGET)
    assert isinstance(verdict, Serve | Explore)
    (best,) = (item for item in verdict.evidence if item.best)
    other = next(item for item in verdict.evidence if not item.best)
    assert best.risk <= other.risk
    assert POLICY.learn(state, Outcome(evidence=best, same=False)).curve != state.curve
    assert POLICY.learn(state, Outcome(evidence=other, same=False)).curve == state.curve
    assert POLICY.learn(state, Outcome(evidence=best, same=False, kind="feedback")).curve == state.curve


def test_evidence_of_another_version_teaches_nothing() -> None:
    """Labels can come back after an upgrade that changed the features."""
    state = POLICY.fresh()
    verdict = POLICY.judge(asked(1), [near(reworded(1))], BUDGET)
    assert isinstance(verdict, Serve | Explore)
    stale = msgspec.structs.replace(verdict.evidence[0], features=b"\0" * 8)
    assert POLICY.learn(state, Outcome(evidence=stale, same=False)) == state


def test_a_guard_that_is_wrong_here_is_excused_by_labels() -> None:
    """A scope where numbers never matter must not pay for that veto for ever; one where they do keeps it."""
    policy = Policy(Params(excuse_labels=10), PRIOR)

    def taught(same: bool) -> State:
        state = policy.fresh()
        for i in range(40):
            verdict = policy.decide(
                state, f"What does order {i} cost me?", [near(f"What does order {i + 1} cost me?", 0.985)], BUDGET
            )
            state = policy.count(state, verdict, served=False)
            assert isinstance(verdict, Serve | Explore)
            state = policy.learn(state, Outcome(evidence=verdict.evidence[0], same=same))
        return state

    def veto(state: State) -> str | None:
        verdict = policy.decide(
            state, "What does order 77 cost me?", [near("What does order 78 cost me?", 0.985)], BUDGET
        )
        assert isinstance(verdict, Serve | Explore)
        return verdict.evidence[0].veto

    assert veto(policy.fresh()) == veto(taught(same=False)) == "number"
    assert veto(taught(same=True)) is None


def test_an_excused_guard_does_not_excuse_from_reading() -> None:
    """What labels excuse is one guard; whether both texts say the same is for the reader, in every scope."""
    state = replace(POLICY.fresh(), excused=np.full(3 * len(pairs.GUARD_NAMES), 50.0, "<f4").tobytes())
    text, kept = "Please tell me: what does order 77 cost?", near("What does order 78 cost?", 0.995, reading=None)
    loose = Budget(max_error_rate=0.5, max_wrong_hit_rate=0.9)
    assert isinstance(POLICY.decide(state, text, told([kept], {1: 9.0}), loose), Serve)
    verdict = POLICY.decide(state, text, [kept], loose)
    assert isinstance(verdict, Explore)
    assert (verdict.reason, unread(verdict)) == ("unread", (1,))


def test_labels_that_speak_against_reading_have_more_read_not_less() -> None:
    """A scope in which texts read as alike were often wrong must neither take what nobody has read for better, nor stop
    reading: without readings it would never learn that it is mistaken."""
    assert PRIOR is not None
    at = pairs.NAMES.index("read")
    against = replace(PRIOR, mean=tuple(-40.0 if i == at else held for i, held in enumerate(PRIOR.mean)))
    policy, loose = Policy(prior=against), Budget(max_error_rate=0.5, max_wrong_hit_rate=0.9)
    kept = near("What is time to first token?", 0.999, reading=None)
    verdict = policy.judge(REWORDED, [kept], loose)
    assert isinstance(verdict, Explore)
    assert (verdict.reason, unread(verdict), verdict.evidence[0].wanted) == ("unread", (1,), False)
    read = policy.judge(REWORDED, told([kept], {1: 9.0}), loose)
    assert isinstance(read, Explore)
    assert (read.reason, unread(read)) == ("unsure", ())


@given(
    at=st.floats(-40.0, 40.0),
    heard=st.lists(st.sampled_from([None, -5.0, 2.0, 3.0, 9.0]), min_size=1, max_size=4),
    error=st.sampled_from([0.01, 0.2, 0.5]),
)
def test_whatever_a_scope_has_learned_nothing_unread_is_served(
    at: float, heard: list[float | None], error: float
) -> None:
    """The bounds that a scope starts from were measured on texts that were read; no label may get round that."""
    assert PRIOR is not None
    moved = (at if name == "read" else held for name, held in zip(pairs.NAMES, PRIOR.mean, strict=False))
    policy = Policy(prior=replace(PRIOR, mean=(*moved, *PRIOR.mean[len(pairs.NAMES) :])))
    texts = [
        "What is time to first token?",
        "Tell me what time to first token is",
        "What is the time to first token",
        "Explain time to first token",
    ]
    kept = [near(texts[i], 0.99 - i / 50, entry_id=i + 1, reading=odds) for i, odds in enumerate(heard)]
    verdict = policy.judge(REWORDED, kept, Budget(max_error_rate=error, max_wrong_hit_rate=0.9))
    if isinstance(verdict, Serve):
        assert heard[verdict.entry_id - 1] is not None


def test_a_reading_that_is_no_number_tells_nothing() -> None:
    """No comparison holds for it, so every limit would let it pass, and it would stay in what the scope has learned."""
    assert told([UNREAD], {1: math.nan}) == [UNREAD]
    assert isinstance(POLICY.judge(REWORDED, told([UNREAD], {1: math.inf}), BUDGET), Serve)
    assert isinstance(POLICY.judge(REWORDED, told([UNREAD], {1: -math.inf}), BUDGET), Explore)


def test_a_prior_for_other_features_is_refused() -> None:
    """An artefact from another version would be read as nonsense weights."""
    assert PRIOR is not None
    with pytest.raises(ValueError, match="train it again"):
        Policy(prior=msgspec.structs.replace(PRIOR, names=PRIOR.names[1:]))


def test_an_exact_only_budget_learns_nothing_either() -> None:
    """Budget 0 is a promise, not a tendency."""
    verdict = POLICY.judge(asked(1), [near(asked(1), 1.0)], Budget(max_wrong_hit_rate=0.0))
    assert verdict == Regenerate(reason="budget")
    assert POLICY.count(POLICY.fresh(), verdict, served=False).version == learned.VERSION
