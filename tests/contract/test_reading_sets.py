"""What a scope without labels serves, measured on texts that nobody learned from: encoder, reader, guards and prior
together, as they ship."""

from pathlib import Path

import msgspec
import pytest

from cache import priors
from cache.bench.data import Pair, read_pairs
from cache.bench.readings import Readings
from cache.bench.replay import read
from cache.bench.vectors import Embedder
from cache.training.reading import Group
from policies.reuse import Budget, Neighbour, Serve, learned

DATA = Path(__file__).parents[1] / "data"
NEAR = 0.9


class Counted(msgspec.Struct):
    """Of pairs at a cosine of 0.9 and more: near misses and how many were served, paraphrases and how many were."""

    misses: int = 0
    wrong: int = 0
    same: int = 0
    right: int = 0


def groups() -> list[Pair]:
    """All pairs of the groups that were written when everything had been learned and chosen."""
    found: list[Pair] = []
    for line in (DATA / "unseen_groups.jsonl").read_bytes().splitlines():
        alike, unlike = msgspec.json.decode(line, type=Group).pairs()
        found += [Pair(a, b, True) for a, b in alike] + [Pair(a, b, False) for a, b in unlike]
    return found


def counted(pairs: list[Pair], folder: Path) -> Counted:
    embedder, readings = Embedder(folder), Readings(None)
    policy = learned.Policy(prior=priors.shipped(embedder.digest))
    first, second = embedder.embed([pair.a for pair in pairs]), embedder.embed([pair.b for pair in pairs])
    total = Counted()
    for pair, cosine in zip(pairs, (first * second).sum(axis=1).tolist(), strict=True):
        if cosine < NEAR:
            continue
        near = [Neighbour(entry_id=1, text=pair.a, similarity=min(1.0, cosine))]
        verdict = read(lambda held, asked=pair.b: policy.judge(asked, held, Budget()), pair.b, near, readings.read)
        served = isinstance(verdict, Serve)
        total.misses += not pair.same
        total.wrong += served and not pair.same
        total.same += pair.same
        total.right += served and pair.same
    return total


@pytest.mark.timeout(240)
def test_groups_that_nobody_learned_from_are_told_apart(tmp_path: Path) -> None:
    """The promise of a scope's first requests: one near miss in two hundred at most, and half of the paraphrases.

    1 of 259 and 199 of 362 when this was written; 5 and 162 before two texts were read together.
    """
    found = counted(groups(), tmp_path)
    assert found.misses > 250
    assert found.wrong <= 2
    assert found.right >= 0.5 * found.same


@pytest.mark.timeout(240)
def test_near_misses_of_two_testers_are_refused(tmp_path: Path) -> None:
    """Fifteen kinds of near misses: 2 of 400 served when this was written, 7 before two texts were read together."""
    found = counted(read_pairs(DATA / "read_near_misses.tsv"), tmp_path)
    assert found.misses > 350
    assert found.wrong <= 3
    assert found.right >= 0.2 * found.same


@pytest.mark.timeout(240)
def test_near_misses_of_one_more_tester_are_refused(tmp_path: Path) -> None:
    """Sixteen kinds, written when all was as it ships: 1 of 187 served, and 72 of 151 paraphrases."""
    found = counted(read_pairs(DATA / "last_near_misses.tsv"), tmp_path)
    assert found.misses > 180
    assert found.wrong <= 2
    assert found.right >= 0.44 * found.same
