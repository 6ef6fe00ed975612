"""The real ledger under every mix of kills, power cuts, lost replies, outages and edits Hypothesis can think of."""

import os
import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from gateway.ledger import leases
from tests import proofs
from tests.unit.ledger import schedules
from tests.unit.ledger.world import LIMITS, World

NUMBER = st.integers(0, 7)


class LedgerMachine(RuleBasedStateMachine):
    """Each rule is an action of the world; the invariants hold after each, the rest once it has come to rest."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @rule(
        who=NUMBER,
        key=st.sampled_from(["k0", "k1", "k2"]),
        most=st.integers(1, 40),
        want=st.integers(0, 40),
        stops=st.booleans(),
        refused=st.integers(0, 9).map(lambda n: n == 0),
    )
    def admit(self, **more: Any) -> None:
        self.world.admit(**more)

    @rule(which=NUMBER, tokens=st.integers(0, 10))
    def generate(self, which: int, tokens: int) -> None:
        self.world.generate(which, tokens)

    @rule(which=NUMBER)
    def finish(self, which: int) -> None:
        self.world.finish(which)

    @rule(which=NUMBER, extra=st.integers(0, 8), ended=st.sampled_from(["cut", "cancelled"]))
    def cut(self, which: int, extra: int, ended: str) -> None:
        self.world.cut(which, extra, ended)

    @rule(who=NUMBER)
    def ship(self, who: int) -> None:
        self.world.ship(who)

    @rule(which=st.integers(0, 100))
    def ship_again(self, which: int) -> None:
        self.world.ship_again(which)

    @rule(who=NUMBER, seconds=st.sampled_from([0.3, 2.0, 30.0]), lose_reply=st.booleans())
    def tend(self, who: int, seconds: float, lose_reply: bool) -> None:
        self.world.tend(who, seconds, lose_reply)

    @rule(who=NUMBER, times=st.integers(1, 3))
    def hand_back(self, who: int, times: int) -> None:
        self.world.hand_back(who, times)

    @rule(who=NUMBER, extra=st.integers(0, 8), power=st.booleans(), keep=st.sampled_from([0.0, 0.5, 1.0]))
    def kill(self, who: int, extra: int, power: bool, keep: float) -> None:
        self.world.kill(who, extra, power, keep)

    @rule(down=st.booleans())
    def break_database(self, down: bool) -> None:
        self.world.break_database(down)

    @rule()
    def lose_next_reply(self) -> None:
        self.world.lose_next_reply()

    @rule(seconds=st.sampled_from([-7_200.0, -30.0, 30.0, 7_200.0]))
    def set_clock(self, seconds: float) -> None:
        self.world.set_clock(seconds)

    @rule(which=NUMBER, delta=st.integers(-10, 10))
    def correct(self, which: int, delta: int) -> None:
        self.world.correct(which, delta)

    @rule()
    def roll_day(self) -> None:
        self.world.roll_day()

    @rule(scope=st.sampled_from(sorted(LIMITS)), limit=st.integers(0, 500))
    def edit_limit(self, scope: str, limit: int) -> None:
        self.world.edit_limit(scope, limit)

    @invariant()
    def balances_hold(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        try:
            self.world.settle_down()
        finally:
            self.world.close()


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "_RECLAIM_SECONDS", 0.0)


def _run(examples: int, steps: int) -> None:
    """Without the explain phase, which traces every line and is a hundred times slower."""
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
        database=None,
        phases=[Phase.generate, Phase.shrink],
    )
    run_state_machine_as_test(LedgerMachine, settings=chosen)


def test_ledger_survives_everything() -> None:
    """No schedule of faults loses a billed token, counts one twice or spends above a limit."""
    _run(examples=15, steps=40)


def test_random_schedules_keep_the_books() -> None:
    """Hypothesis looks for short counterexamples; long ones with many deaths are found by chance."""
    happened: Counter[str] = Counter()
    for seed in (*range(10), 997):  # 997: what a lost end had freed was spent by another process, past the limit
        happened += schedules.wander(seed)
    assert min(happened[kind] for kind in ("admitted", "killed", "power cut", "clock set", "database down")) > 0


def test_schedules_with_corrections_keep_the_books() -> None:
    """A correction moves balances outside of every lease, and its reply can be lost like any other."""
    happened: Counter[str] = Counter()
    for seed in range(5):
        happened += schedules.wander(seed, corrections=True)
    assert happened["corrected"] > 0


def test_schedules_on_postgresql_keep_the_books(postgres_url: str) -> None:
    """Other locks, other types, a clock of its own: what holds on SQLite is shown there as well."""
    happened: Counter[str] = Counter()
    for seed in (1, 2):
        happened += schedules.wander(seed, 40, corrections=True, server=postgres_url)
    assert min(happened[kind] for kind in ("admitted", "killed", "corrected")) > 0


@pytest.mark.proof
@pytest.mark.timeout(3_600)
def test_hundreds_of_schedules_on_postgresql_keep_the_books(postgres_url: str) -> None:
    """The same at full size; a database is made for each."""
    happened, broken = schedules.run(400, steps=60, jobs=os.cpu_count() or 1, server=postgres_url)
    proofs.keep("ledger-schedules-postgresql", steps=60, broken=broken, **happened)
    assert broken == []


@pytest.mark.proof
@pytest.mark.timeout(3_600)
def test_ledger_survives_everything_for_long() -> None:
    """The same at full size, with the state machine."""
    _run(examples=400, steps=80)


@pytest.mark.proof
@pytest.mark.timeout(4 * 3_600)
def test_ten_thousand_schedules_keep_the_books() -> None:
    """Every mix of faults a few thousand times over: what happens once in a thousand schedules is met ten times."""
    began = time.monotonic()
    happened, broken = schedules.run(10_000, steps=60, jobs=os.cpu_count() or 1)
    figures = {"seconds": round(time.monotonic() - began), "broken": broken, **happened}
    proofs.keep("ledger-schedules", steps=60, **figures)
    assert broken == []
    assert happened["schedules"] >= 10_000
