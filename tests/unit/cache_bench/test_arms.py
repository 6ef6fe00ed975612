"""The arms must show what they say they show: each is run here in small, and against a cache that breaks the claim."""

import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from cache.bench import arms, hostile, lasting, quality
from cache.bench.claims import Figure, Shown
from cache.bench.data import Row
from cache.bench.minds import policy
from cache.bench.run import Setting
from cache.bench.world import Matrix, Plan, World
from cache.embedder import HashEncoder
from cache.semantic import SemanticCache
from policies.reuse import Budget

TOPICS = ("reset my password", "cancel the order", "track a parcel", "renew the licence", "print an invoice")
WAYS = ("how do i {}", "how can i {}", "please {}", "help me {}", "i want to {}", "{} soon", "{} please", "can you {}")
_ENCODER = HashEncoder()
GENEROUS = Budget(max_error_rate=1.0, max_wrong_hit_rate=1.0)


def embed(texts: Sequence[str]) -> Matrix:
    """The hash encoder never waits, so its coroutine ends at once."""
    try:
        _ENCODER.embed(texts).send(None)
    except StopIteration as done:
        vectors: Matrix = done.value
        return vectors
    raise AssertionError


def rows(copies: int = 2) -> list[Row]:
    made = [Row(way.format(f"{topic} {i}"), f"{topic} {i}") for i in range(copies) for topic in TOPICS for way in WAYS]
    random.Random(0).shuffle(made)
    return made


def plan(name: str = "gptcache-default", budget: Budget = GENEROUS) -> Plan:
    return Plan(policy=policy(name), embed=embed, budget=budget)


async def test_zero_counts_every_hit_as_wrong() -> None:
    """A cache that serves whatever is near fails it, and one that serves nothing passes."""
    loose = await quality.zero(rows(), plan())
    alone = {row.kind for row in rows()}
    assert loose.figures["wrong"].total == len(alone)
    assert loose.figures["wrong"].count > 0
    assert loose.facts["right_hits"] == 0
    strict = await quality.zero(rows(), plan(budget=Budget(max_error_rate=0.0)))
    assert strict.figures["wrong"].count == 0
    tight = Figure(count=loose.figures["wrong"].count, total=len(alone), most=0.01)
    assert tight.kept is False


async def test_drift_thins_out_what_is_asked_again() -> None:
    """The second phase must be new and sparse, and no request may be lost or doubled."""
    parts = quality.phases(rows(4))
    assert sorted(row.text for part in parts for row in part) == sorted(row.text for row in rows(4))
    assert not {row.kind for row in parts[0]} & {row.kind for row in parts[1]}
    shown = await quality.drift(rows(4), plan())
    facts = shown.facts
    assert (facts["thin_asked_before"] or 0) < (facts["dense_asked_before"] or 0)
    assert shown.figures["hits"].total == len(rows(4))
    assert sum(shown.figures[f"{name}_wrong"].count for name in ("dense", "thin", "rest")) == (
        shown.figures["wrong"].count
    )


async def test_stale_answers_are_served_until_their_time_is_over() -> None:
    """Without remedy the old answers are served; after a time to live or a purge none is."""
    shown = await quality.stale(rows(3), plan())
    assert shown.figures["audits_stale"].count > 0
    assert shown.figures["ttl_stale"].count == shown.figures["purge_stale"].count == 0
    assert shown.kept


async def test_an_attackers_answer_is_counted() -> None:
    """The most permissive cache must fail the poisoning arm, or the arm sees nothing."""
    shown = await hostile.poison(rows(1), plan(budget=Budget(max_error_rate=0.01, max_wrong_hit_rate=1.0)))
    assert shown.figures["near_collisions_served"].kept is False
    assert shown.figures["suffixes_served"].count > 0
    assert shown.figures["planted_served"].count > 0
    assert shown.figures["planted_served_after_report"].count == 0


async def test_lies_are_told_and_cost_hits() -> None:
    """A false report takes an answer back, so there are fewer hits than without."""
    shown = await hostile.liars(rows(3), plan("cosine-80"))
    assert shown.figures["hits"].count < shown.figures["hits_without_lies"].count


async def test_no_tenant_sees_anothers_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly none; and where the wall is taken down, the arm says so."""
    shown = await lasting.tenants(rows(1), plan())
    assert shown.figures["leaked"].count == 0
    assert (shown.facts["by_meaning"] or 0) > 0
    query = World.query
    monkeypatch.setattr(World, "query", lambda self, text, tenant="one": query(self, text))
    assert not (await lasting.tenants(rows(1), plan())).kept


async def test_what_was_taken_back_is_never_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """By id, by a person's word and by purge, with others asking; a cache that forgets to is caught."""
    shown = await lasting.delete(rows(5), plan())
    assert shown.kept
    assert all((shown.facts[way] or 0) > 0 for way in ("evict", "feedback", "purge"))

    async def nothing(*_: object, **__: object) -> None:
        return None

    monkeypatch.setattr(SemanticCache, "evict", nothing)
    assert not (await lasting.delete(rows(5), plan())).kept


async def test_a_killed_process_has_lost_nothing() -> None:
    """Entries, labels and deletions are on the disk without any closing."""
    shown = await lasting.crash(rows(2), plan("cold", Budget(max_error_rate=0.05, max_wrong_hit_rate=0.5)))
    assert shown.kept
    assert shown.figures["entries_lost"].total > 0
    assert (shown.facts["labels_before"] or 0) > 0


def _nothing_copied(_: Path, to: Path) -> None:
    to.mkdir()


async def test_a_crash_that_loses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the copy were of an empty disk, the claims must break."""
    monkeypatch.setattr(shutil, "copytree", _nothing_copied)
    shown = await lasting.crash(rows(2), plan("cold", Budget(max_error_rate=0.05, max_wrong_hit_rate=0.5)))
    assert not shown.kept


def test_a_line_says_what_was_claimed() -> None:
    """People read the line, machines the object: both must carry interval and verdict."""
    shown = Shown({"wrong": Figure(count=9, total=100, most=0.01), "hits": Figure(count=50, total=100)})
    assert "9/100 = 9.00%" in shown.line()
    assert "BROKEN" in shown.line()
    assert not shown.kept
    assert shown.told()["figures"]["hits"]["rate_95"][0] < 0.5
    assert Shown({"leak": Figure(count=0, total=10, most=0.0)}).line().endswith("never) kept")


def test_an_unknown_arm_is_named() -> None:
    """A slip of the pen must not run for minutes first."""
    with pytest.raises(LookupError, match="zero, drift"):
        arms.run_arm("zeroes", None, Setting(budget=Budget(), folder=Path()))


def test_our_own_texts_have_near_misses_of_other_classes() -> None:
    """What is asked where no stream is given: every text once, near misses never of the same class."""
    found = arms.own_rows()
    assert len({row.text for row in found}) == len(found)
    assert len({row.kind for row in found}) < len(found)


@pytest.mark.proof
@pytest.mark.parametrize("name", list(arms.ARMS))
def test_every_arm_on_our_own_texts(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The shipped prior and the real encoder: what may never happen does not, and the budget per request holds."""
    folder = tmp_path_factory.getbasetemp() / "arms"
    ran = arms.run_arm(name, None, Setting(budget=Budget(), folder=folder))
    for label, figure in ran.shown.figures.items():
        assert figure.kept is not False or label.endswith("of_hits"), ran.shown.line()
