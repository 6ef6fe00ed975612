"""What a scope without labels serves, measured on texts that nobody learned from: encoder, reader, guards and prior
together, as they ship. An ordinary run reads every sixth or twelfth group and every third pair, with as many fewer near
misses and nine tenths of the share served: of fewer pairs both are less certain."""

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
from tests.proofs import wanted

DATA = Path(__file__).parents[1] / "data"
NEAR = 0.9
EVERY, SURE = (1, 1.0) if wanted() else (3, 0.9)
pytestmark = pytest.mark.reduced


class Counted(msgspec.Struct):
    """Of pairs at a cosine of 0.9 and more: near misses and how many were served, paraphrases and how many were."""

    misses: int = 0
    wrong: int = 0
    same: int = 0
    right: int = 0


def groups(file: str, every: int) -> list[Pair]:
    """All pairs of every so many groups that were written when everything had been learned and chosen."""
    found: list[Pair] = []
    for line in (DATA / file).read_bytes().splitlines()[::every]:
        alike, unlike = msgspec.json.decode(line, type=Group).pairs()
        found += [Pair(a, b, True) for a, b in alike] + [Pair(a, b, False) for a, b in unlike]
    return found


@pytest.fixture(scope="module")
def readings() -> Readings:
    """One reader for all: it says of a pair what it said before."""
    return Readings(None)


def counted(pairs: list[Pair], folder: Path, readings: Readings) -> Counted:
    embedder = Embedder(folder)
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
def test_groups_that_nobody_learned_from_are_told_apart(tmp_path: Path, readings: Readings) -> None:
    """The promise of a scope's first requests: one near miss in two hundred at most, and half of the paraphrases.

    0 of 260 and 229 of 363 with the reader that ships; 2 and 234 with that of the evening of 28 November; 5 and 162
    before texts were read together.
    """
    every = EVERY if wanted() else 2 * EVERY
    found = counted(groups("unseen_groups.jsonl", every), tmp_path, readings)
    assert found.misses > 230 // every
    assert found.wrong <= 2
    assert found.right >= SURE * 0.5 * found.same


@pytest.mark.timeout(240)
def test_ten_kinds_of_near_misses_by_a_strict_author_are_mostly_refused(tmp_path: Path, readings: Readings) -> None:
    """Harder than what was chosen by: one near miss in two hundred at most, and half of the paraphrases.

    6 of 2,038 and 883 of 1,730 with the reader that ships; 4 and 763 with that of the evening of 28 November, 18 and
    647 when it was written.
    """
    every = EVERY if wanted() else 4 * EVERY
    found = counted(groups("ten_kinds_groups.jsonl", every), tmp_path, readings)
    assert found.misses > 1_800 // every
    assert found.wrong <= max(2, 10 // every)
    assert found.right >= SURE * 0.5 * found.same


@pytest.mark.timeout(240)
def test_the_set_that_was_written_last(tmp_path: Path, readings: Readings) -> None:
    """Twelve kinds by an author who knew nothing: what others will see, as far as one author tells.

    6 of 966 and 662 of 1,617 with the reader that ships; 4 and 657 by what shipped before. Rules were mended by what
    they refused of it, so it flatters a little.
    """
    every = EVERY if wanted() else 4 * EVERY
    found = counted(groups("blind_groups.jsonl", every), tmp_path, readings)
    assert found.misses > 900 // every
    assert found.wrong <= max(2, 9 // every)
    assert found.right >= SURE * 0.38 * found.same


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("pairs", "least", "most", "share"),
    [
        # Fifteen kinds: 3 of 400 served and 16 of 79 paraphrases by the reader that ships, 3 and 21 by the one before,
        # 2 and 19 when this was written, 7 near misses before two texts were read together.
        pytest.param("read_near_misses.tsv", 350, 3, 0.2, id="two testers", marks=pytest.mark.proof),
        # Sixteen kinds: 1 of 188 served and 77 of 151 paraphrases by the reader that ships; 2 and 76 by the one before,
        # 1 of 187 and 72 by the first reader.
        pytest.param("last_near_misses.tsv", 180, 3, 0.44, id="one more tester"),
        # Nothing but exchanged parts, in all constructions: 2 of 157 served and 36 of 142 paraphrases by the reader
        # that ships, 2 and 33, 1 and 34, 1 and 39, 2 and 51 by those before; 4 and 42 before clauses were read.
        pytest.param("role_swaps.tsv", 150, 2, 0.18, id="who does what to whom"),
    ],
)
def test_near_misses_of_testers_are_refused(
    pairs: str, least: int, most: int, share: float, tmp_path: Path, readings: Readings
) -> None:
    """People who tried to be served what is wrong, and what is right in words of their own."""
    found = counted(read_pairs(DATA / pairs)[::EVERY], tmp_path, readings)
    assert found.misses > least // EVERY
    assert found.wrong <= most
    assert found.right >= SURE * share * found.same
