"""Which replica is chosen, and what is remembered about them."""

from hypothesis import given
from hypothesis import strategies as st

from policies.routing.affinity import (
    MOST_PIECES,
    PIECE_CHARS,
    PIECE_TOKENS,
    Load,
    PrefixIndex,
    cost,
    rank,
    text_keys,
    token_keys,
)


@given(st.lists(st.integers(0, 9), max_size=80), st.lists(st.integers(0, 9), max_size=80), st.sampled_from(["", "a"]))
def test_equal_keys_mean_an_equal_beginning(one: list[int], two: list[int], salt: str) -> None:
    """A key is what stands between a prompt and a cache that does not hold it."""
    shared = sum(a == b for a, b in zip(token_keys(one, salt), token_keys(two, salt), strict=False))
    same = 0
    while same < min(len(one), len(two)) and one[same] == two[same]:
        same += 1
    assert shared == same // PIECE_TOKENS


def test_tenants_never_share_a_key_and_prompts_are_bounded() -> None:
    """One tenant must not learn from timing what another asked, nor fill the index with one prompt."""
    text = "x" * PIECE_CHARS * (MOST_PIECES + 9)
    assert len(text_keys(text, "a")) == MOST_PIECES
    assert not set(text_keys(text, "a")) & set(text_keys(text, "b"))
    assert text_keys("half \ud800 a pair" * 9, "a")


def test_index_knows_the_longest_beginning_of_each_until_it_expires() -> None:
    """Only an unbroken beginning is of use, and an old one was evicted long ago."""
    index = PrefixIndex(ttl_s=10)
    keys = token_keys(range(64), "")
    index.note(keys[:3], 0, now=0.0)
    index.note(keys[:1], 1, now=5.0)
    index.note(keys[2:3], 2, now=5.0)
    assert index.matched(keys, now=6.0) == {0: 3, 1: 1}
    assert index.matched(keys, now=11.0) == {1: 1}
    index.forget(1)
    assert index.matched(keys, now=6.0) == {0: 3}


@given(st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=64), st.integers(0, 3)), max_size=60))
def test_index_never_outgrows_its_capacity(sent: list[tuple[list[int], int]]) -> None:
    """Every prompt ever seen would fit in no memory."""
    index = PrefixIndex(capacity=5)
    for at, (ids, replica) in enumerate(sent):
        index.note(token_keys(ids, ""), replica, float(at))
        assert len(index) <= 5


def test_cached_prompt_wins_until_its_queue_costs_more() -> None:
    """Affinity alone sends everybody to one replica; load alone computes every prompt anew."""
    idle, busy = Load(prefill_rate=1000), Load(prefill_rate=1000, queued=500)
    near = rank(1000, {0: 800}, 10, {0: busy, 1: idle})
    assert [one.replica for one in near] == [0, 1]
    assert (near[0].prefill, near[0].queue, near[0].saved) == (200.0, 500.0, 800.0)
    far = rank(1000, {0: 400}, 10, {0: busy, 1: idle})
    assert [one.replica for one in far] == [1, 0]


def test_ties_go_to_the_session_then_to_the_fewest() -> None:
    """A session's replica is the better guess, but never worth a queue."""
    loads = {0: Load(prefill_rate=100, running=3), 1: Load(prefill_rate=100, running=1), 2: Load(prefill_rate=100)}
    assert [one.replica for one in rank(10, {}, 5, loads)] == [2, 1, 0]
    assert rank(10, {}, 5, loads, sticky=0)[0].replica == 0
    loads[0] = Load(prefill_rate=100, queued=1)
    assert rank(10, {}, 5, loads, sticky=0)[0].replica == 2


def test_a_sleeper_is_woken_when_waiting_costs_more() -> None:
    """Waking takes a while, but less than a long queue."""
    asleep = Load(prefill_rate=1000, wake_ms=300)
    assert rank(100, {}, 5, {0: Load(prefill_rate=1000, queued=100), 1: asleep})[0].replica == 0
    assert rank(100, {}, 5, {0: Load(prefill_rate=1000, queued=400), 1: asleep})[0].replica == 1


@given(st.integers(0, 5000), st.integers(0, 9000), st.integers(0, 50), st.floats(0.1, 1e5), st.integers(0, 100))
def test_cost_is_never_negative_and_one_token_is_always_computed(
    prompt: int, matched: int, output: int, rate: float, running: int
) -> None:
    """A prefix hit on a whole prompt still computes its last token."""
    found = cost(0, prompt, matched, output, Load(prefill_rate=rate, running=running, slowdown_ms=0.1))
    assert found.total >= found.prefill >= min(prompt, 1) * 1000 / rate * 0.999


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 1), max_size=6), st.integers(0, 3), st.integers(0, 3)), max_size=30),
    st.lists(st.integers(0, 1), max_size=6),
)
def test_groups_are_what_each_replica_was_sent_of_late(
    sent: list[tuple[list[int], int, int]], asked: list[int]
) -> None:
    """Bits stand for replicas and halves of a life for times: told by a plain list of everything that was sent."""

    def prefixes(word: list[int]) -> list[tuple[int, ...]]:
        return [tuple(word[:size]) for size in range(1, len(word) + 1)]

    index, now, log = PrefixIndex(ttl_s=2.0), 0.0, list[tuple[list[int], int, float]]()
    for word, replica, wait in sent:
        now += wait
        index.note(prefixes(word), replica, now)
        log.append((word, replica, now))

    def held(replica: int) -> int:
        lately = {
            prefix for word, who, at in log if who == replica and int(now) - int(at) <= 1 for prefix in prefixes(word)
        }
        count = 0
        for prefix in prefixes(asked):
            if prefix not in lately:
                break
            count += 1
        return count

    expected = {replica: count for replica in range(4) if (count := held(replica))}
    assert index.matched(prefixes(asked), now) == expected
