"""Random traffic on a core with far too few blocks: every answer must equal the oracle's and no block may be lost."""

import inspect
import textwrap
from dataclasses import asdict
from typing import Any

import msgspec
import pytest
import torch

from engine import rows
from engine.blocks import BlockPool
from engine.core import EngineCore
from engine.models import tiny
from engine.models.decoder import Decoder
from engine.models.loader import build
from engine.models.packed import packing
from engine.models.spec import read_spec
from engine.scheduler import Scheduler, Work
from engine.sequence import Sequence
from tests.proofs import keep
from tests.unit.engine.traffic import play

ORDINARY = 12  # every fault below is found by the first three
FULL = 4_060
GROUPS = 2  # so that a failure names a part, and two workers can share


def small(seed: int, layers: int) -> Decoder:
    shape = {"hidden": 32, "heads": 2, "kv_heads": 1, "head": 16, "feed_forward": 48, "layers": layers}
    spec = msgspec.structs.replace(read_spec(tiny.config("qwen3")), windows=(0,) * layers, **shape)
    return build(spec, tiny.tensors(spec, seed), packing(torch.float32, torch.device("cpu")))


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return small(3, 2)


@pytest.fixture(scope="module")
def draft() -> Decoder:
    """Another model of the same vocabulary, often wrong, sometimes right."""
    return small(3, 1)


def total(seeds: range, decoder: Decoder, draft: Decoder, clock: Any) -> dict[str, int]:
    sums: dict[str, int] = {}
    for seed in seeds:
        for name, value in asdict(play(seed, decoder, draft, clock)).items():
            sums[name] = sums.get(name, 0) + value
        assert sums["wrong"] == 0, f"scenario {seed}"
    return sums


@pytest.mark.parametrize("group", range(GROUPS))
def test_any_traffic_gives_the_oracles_answers(group: int, decoder: Any, draft: Any, clock: Any) -> None:
    """Chunking, sharing, preemption, guessing and aborts are bookkeeping: none may change a single token."""
    seen = total(range(group, ORDINARY, GROUPS), decoder, draft, clock)
    met = ("preemptions", "hit", "evicted", "drafted", "accepted", "aborted", "copies", "divided")
    assert all(seen[name] for name in met), f"a fuzz that never meets these proves nothing about them: {seen}"


@pytest.mark.proof
def test_thousands_of_scenarios(decoder: Any, draft: Any, clock: Any) -> None:
    """What is rare in some hundred scenarios is met in thousands."""
    seen = total(range(FULL), decoder, draft, clock)
    keep("engine_fuzz", scenarios=FULL, lost_blocks=0, **seen)


FAULTS: list[tuple[Any, str, str, str]] = [
    (Sequence, "extend_hashes", "self.hashes[-1] if at else root(self.salt)", "root(self.salt)"),
    (Scheduler, "_reusable", "(len(sequence.tokens) - 1) // BLOCK", "len(sequence.tokens) // BLOCK"),
    (Scheduler, "_release", "self._pool.give_back(sequence.blocks)", "pass"),
    (Scheduler, "settle", "max(drawn - 1, 0)", "len(work.drafts)"),
    (Scheduler, "_guesses", "sequence.blocks += self._pool.take(max(need, 0))", "pass"),
    (Scheduler, "_preempt", "self._release(sequence)", "pass"),
    (EngineCore, "collect", "if sequence.over:", "if False:"),
    (EngineCore, "_divide", "not self._read.sequence.reading", "False"),
    (EngineCore, "_divide", "plan.remove(work)", "pass"),
    (Scheduler, "plan", "if sequence.reading:", "if False:"),
    (EngineCore, "_finish", "if sequence.arrival not in self._flying:", "if True:"),
    (BlockPool, "take", "del self._by_hash[digest]", "pass"),
    (BlockPool, "give_back", "self._references[block] == 0", "True"),
    (BlockPool, "share", "del self._free[block]", "pass"),
    (Work, "ids", "+ list(self.drafts)", "+ [0] * len(self.drafts)"),
    (rows, "take", "(at and tokens[-1] != asked.work.drafts[at - 1])", "False"),
    (rows, "_draw", "len(sequence.tokens) + at)", "len(sequence.tokens))"),
]


@pytest.mark.parametrize("at", range(len(FAULTS)), ids=lambda at: f"{FAULTS[at][1]}: {FAULTS[at][2]:.30}")
def test_the_fuzz_finds_faults(at: int, decoder: Any, draft: Any, clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these one-line faults was possible to make; a fuzz that does not see it would be no proof."""
    owner, name, old, new = FAULTS[at]
    function = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(function))
    assert old in source, "the table names code that is gone"
    made: dict[str, Any] = {}
    source = source.replace("@staticmethod\n", "")
    exec(source.replace(old, new), function.__globals__, made)
    static = isinstance(inspect.getattr_static(owner, name), staticmethod)
    monkeypatch.setattr(owner, name, staticmethod(made[name]) if static else made[name])
    if owner is rows:
        monkeypatch.setattr("engine.core.take", rows.take)
    with pytest.raises((AssertionError, ArithmeticError, LookupError, RuntimeError, ValueError)):
        total(range(ORDINARY), decoder, draft, clock)
