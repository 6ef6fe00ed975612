"""What a ranking would allow: chosen after the fact, so it must be counted as by hand and serve nothing."""

from cache.bench import ceiling
from cache.bench.ceiling import Seen, Watching, allowed, told
from cache.bench.data import Row
from cache.bench.replay import Options, replay
from cache.embedder import HashEncoder
from policies.reuse import Budget, learned

WAYS = ("how do i {}", "how can i {}", "please {}", "help me {}", "{} now", "can you {}")
ROWS = [Row(way.format(topic), topic) for way in WAYS for topic in ("reset my password", "track a parcel")]


def test_the_best_cut_is_the_one_found_by_hand() -> None:
    """By risk right, right, wrong, right, wrong: one wrong allows four hits, none two."""
    seen = [Seen(at, risk, right) for at, risk, right in ((4, 0.4, False), (0, 0.01, True), (1, 0.02, True))]
    seen += [Seen(2, 0.03, False), Seen(3, 0.2, True)]
    assert allowed(seen, 10, Budget(max_error_rate=1.0, max_wrong_hit_rate=0.25)) == 4
    assert allowed(seen, 10, Budget(max_error_rate=0.1, max_wrong_hit_rate=1.0)) == 4
    assert allowed(seen, 10, Budget(max_error_rate=0.05, max_wrong_hit_rate=1.0)) == 2
    assert allowed([], 10, Budget()) == 0


def test_bands_hold_each_answer_once() -> None:
    """What is feared and what is found are compared over the same answers."""
    seen = [Seen(at, risk, at % 2 == 0) for at, risk in enumerate((0.0, 0.02, 0.03, 0.05, 0.3, 0.5, 0.9))]
    found = told(seen, 8)
    assert [band["requests"] for band in found["bands"]] == [2, 2, 0, 0, 2]
    assert [band["wrong"] for band in found["bands"]] == [1, 1, 0, 0, 1]
    assert found["safe_by_quarter"] == [2, 2, 0, 0]


async def test_nothing_is_served_while_it_is_watched() -> None:
    """A hit would take its label away, and the cut could not be chosen."""
    mind = Watching(learned.Policy())
    vectors = await HashEncoder().embed([row.text for row in ROWS])
    steps = replay(ROWS, vectors, mind, Options(budget=ceiling.BUDGETS[0]))
    assert not any(step.hit or step.audited for step in steps)
    assert len({item.place for item in mind.seen}) == len(mind.seen)
    assert all(0 <= item.place < len(ROWS) for item in mind.seen)
    assert mind.state.labels == sum(step.judged for step in steps)
