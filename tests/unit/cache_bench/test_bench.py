"""The bench of the reuse decision: it must count right, or every figure is a story."""

import gzip
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from cache.bench.data import Row, Unreadable, read_pairs, read_stream
from cache.bench.figures import by_class, counted, figures, rates, share
from cache.bench.memo import remembered
from cache.bench.minds import FIXED, hindsight, mind, sweep
from cache.bench.nearest import Picked, Searched, Table
from cache.bench.replay import Options, Step, replay
from cache.embedder import HashEncoder
from cache.training.frames import frames, pairs
from policies.reuse import Budget
from policies.reuse import pairs as pair_features

TOPICS = ("reset my password", "cancel the order", "track a parcel", "renew the licence", "print an invoice")
WAYS = ("how do i {}", "how can i {}", "please {}", "help me {}", "i want to {}", "{} now", "{} please", "can you {}")


def stream() -> list[Row]:
    rows = [Row(way.format(topic), topic) for topic in TOPICS for way in WAYS]
    return [rows[i * 7 % len(rows)] for i in range(len(rows))]


async def vectors(rows: list[Row]) -> np.ndarray:
    return await HashEncoder().embed([row.text for row in rows])


async def test_a_fixed_threshold_is_counted_as_by_hand() -> None:
    """GPTCache's default on toy vectors: hits and wrong hits follow from the cosines alone."""
    rows = stream()
    found = await vectors(rows)
    options = Options(budget=Budget(max_wrong_hit_rate=1.0))
    steps = replay(rows, found, mind("gptcache-default", encoder=""), options)
    kept: list[int] = []
    for i, step in enumerate(steps):
        best = max(kept, key=lambda j: float(found[i] @ found[j]), default=None)
        hit = best is not None and float(found[i] @ found[best]) >= FIXED["gptcache-default"]
        assert step.hit == hit
        assert step.wrong == (hit and best is not None and rows[best].kind != rows[i].kind)
        if not hit:
            kept.append(i)


@pytest.mark.parametrize("name", ["learned", "cold", "verified", "pooled", "guarded", "threshold", "cosine-90"])
async def test_every_policy_runs_and_accounts_for_each_request(name: str) -> None:
    """hits + explored + audited + plain misses = requests, for whatever policy is named."""
    rows = stream()
    options = Options(budget=Budget(max_error_rate=0.05, max_wrong_hit_rate=0.5), flip=0.1)
    steps = replay(rows, await vectors(rows), mind(name, encoder=""), options)
    assert len(steps) == len(rows)
    assert all(step.hit + step.explored + step.audited <= 1 for step in steps)
    assert not any(step.wrong and not step.hit for step in steps)


async def test_the_same_seed_gives_the_same_run() -> None:
    """A figure nobody can reproduce is none."""
    rows = stream()
    found = await vectors(rows)
    options = Options(budget=Budget(max_error_rate=0.05), seed=3, flip=0.1)
    assert replay(rows, found, mind("cold", encoder=""), options) == replay(
        rows, found, mind("cold", encoder=""), options
    )


async def test_hindsight_is_the_best_of_the_fixed() -> None:
    """The oracle line must bound every fixed threshold that keeps the budgets."""
    rows = stream()
    found = await vectors(rows)
    budget = Budget(max_error_rate=0.1, max_wrong_hit_rate=1.0)
    best = hindsight(sweep(rows, found), budget)
    steps = replay(rows, found, mind("cosine-90", encoder=""), Options(budget=budget))
    told = figures(rows, steps, budget=budget, seed=0)
    if told["wrong_per_request"] <= 0.1:
        assert best.hits >= told["hits"]
    assert not hindsight(sweep(rows, found), Budget(max_error_rate=0.0)).wrong


@pytest.mark.parametrize("name", ["learned", "cold", "verified", "guarded", "cosine-80"])
@pytest.mark.parametrize("depth", [4, 128])
async def test_a_fast_run_decides_as_a_slow_one(name: str, depth: int) -> None:
    """The table of neighbours and what is remembered of texts may save time only: every step must be the same."""
    rows = stream()
    found = await vectors(rows)
    options = Options(budget=Budget(max_error_rate=0.05, max_wrong_hit_rate=0.5), flip=0.05, keys=3)
    slow = replay(rows, found, mind(name, encoder="minilm"), options)
    table = Table(found, depth)
    with remembered():
        for _ in range(2):
            assert replay(rows, found, mind(name, encoder="minilm"), options, table) == slow


async def test_the_table_finds_what_the_index_finds() -> None:
    """Equal vectors, removed keys and a table that is not deep enough are where a short cut goes wrong."""
    rows = stream()
    found = await vectors(rows)
    found[1], found[2], found[3] = found[0], found[0], found[0]
    picked, searched = Picked(Table(found, 6)), Searched(found.shape[1])
    for place, vector in enumerate(found):
        for k in (1, 3, 8):
            assert list(picked.search(place, vector, k)) == list(searched.search(place, vector, k))
        for kept in (picked, searched):
            kept.add(100 + place, place, vector)
            if place % 5 == 4:
                kept.remove(98 + place)


def test_memory_ends_with_its_block() -> None:
    """Nothing that serves may go on with functions that keep every text."""
    before = pair_features.analyse, pair_features.wording
    with remembered():
        assert pair_features.analyse is not before[0]
        assert pair_features.wording is not before[1]
    assert (pair_features.analyse, pair_features.wording) == before


def test_intervals_hold_the_value_and_widen_by_class() -> None:
    """Requests of one class hang together: ten wrong ones of one class say less than ten of ten."""
    every = Counter(str(i // 10) for i in range(200))
    clumped, spread = Counter({"0": 10}), Counter(str(i // 10) for i in range(0, 200, 20))
    one, other = (by_class(top, every) for top in (clumped, spread))
    assert one.value == other.value == 0.05
    assert one.high - one.low > other.high - other.low
    assert share(0, 0).high == 1.0
    assert share(3, 100).low < 0.03 < share(3, 100).high


def test_orders_of_the_same_requests_tell_little_more_than_one() -> None:
    """Five runs over the same thousand texts are not five thousand texts: the interval must not shrink as if."""
    rows = [Row(str(i), str(i)) for i in range(200)]
    steps = [Step(hit=i < 100, wrong=i < 4, explored=False, audited=False, judged=0) for i in range(200)]
    once = counted(rows, steps)
    often = once + once + once + once + once
    assert often.orders == 5
    one, five = (rates(counts) for counts in (once, often))
    for name in ("hit_rate", "wrong_per_request", "wrong_per_hit"):
        assert one[name] == five[name]
        assert five[f"{name}_95"] == pytest.approx(one[f"{name}_95"], abs=0.02)


def test_the_prototype_serves_once_it_has_labels_and_keeps_the_budget_it_is_given() -> None:
    """A baseline that cannot serve would flatter ours."""
    rows = [Row(f"text about topic {i % 8}", str(i % 8)) for i in range(600)]
    found = np.eye(8, 16, dtype=np.float32)[[i % 8 for i in range(600)]]
    steps = replay(rows, found, mind("pooled", encoder=""), Options(budget=Budget(max_error_rate=0.05)))
    assert sum(step.hit for step in steps[:80]) == 0
    assert sum(step.hit for step in steps) > 200
    assert sum(step.wrong for step in steps) <= 30


def test_a_broken_budget_is_called_so() -> None:
    """A run beyond its budget must not look like a good one."""
    rows = [Row(str(i), str(i)) for i in range(100)]
    steps = [Step(hit=True, wrong=i < 20, explored=False, audited=False, judged=0) for i in range(100)]
    told = figures(rows, steps, budget=Budget(max_error_rate=0.01, max_wrong_hit_rate=0.05), seed=0)
    assert told["violated"] == ["max_error_rate", "max_wrong_hit_rate"]
    assert told["wrong_per_hit_95"][0] > 0.05


def test_streams_lose_their_literal_repeats(tmp_path: Path) -> None:
    """They belong to the exact tier and would flatter every policy."""
    path = tmp_path / "s.tsv.gz"
    path.write_bytes(gzip.compress(b"text\tclass_id\ttag\nHi there\ta\tx\nhi there \ta\tx\nBye\tb\tx\n"))
    read = read_stream(path)
    assert len(read.rows) == 2
    assert read.repeats == 1
    assert read_stream(path, seed=5, limit=1).rows[0].text


@pytest.mark.parametrize("content", [b"a\tb\nx\ty\n", b"\xff\xfe\x00", b""])
def test_files_that_are_not_data_are_named(tmp_path: Path, content: bytes) -> None:
    """A wrong path must end in a sentence."""
    path = tmp_path / "p.tsv"
    path.write_bytes(content)
    with pytest.raises(Unreadable, match=r"p\.tsv"):
        read_pairs(path)
    with pytest.raises(Unreadable, match="missing"):
        read_stream(tmp_path / "missing.tsv")


def test_the_halves_of_our_frames_share_nothing() -> None:
    """What is learned from one half is tested on the other."""
    train, test = ({pair.a for pair in pairs(half)} for half in ("train", "test"))
    assert not train & test
    tags = {frame.tag for frame in frames()}
    assert len(tags) == 10
    for tag in tags:
        for same in (True, False):
            assert sum(pair.tag == tag and pair.same == same for pair in pairs("all")) >= 100


def test_the_test_half_lies_beside_the_tests() -> None:
    """`nearhit bench cache --pairs tests/data/near_misses.tsv` must measure what the frames say."""
    path = Path(__file__).parents[2] / "data" / "near_misses.tsv"
    assert read_pairs(path) == pairs("test")
