"""The real ledger under every mix of kills, power cuts, lost replies, outages and edits Hypothesis can think of."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from gateway.ledger import leases
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

    @rule(who=NUMBER, extra=st.integers(0, 8), power=st.booleans(), keep=st.sampled_from([0.0, 0.5, 1.0]))
    def kill(self, who: int, extra: int, power: bool, keep: float) -> None:
        self.world.kill(who, extra, power, keep)

    @rule(down=st.booleans())
    def break_database(self, down: bool) -> None:
        self.world.break_database(down)

    @rule()
    def lose_next_reply(self) -> None:
        self.world.lose_next_reply()

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
    _run(examples=25, steps=40)


@pytest.mark.proof
@pytest.mark.timeout(1_800)
def test_ledger_survives_everything_for_long() -> None:
    """The same at full size."""
    _run(examples=400, steps=80)
    for seed in range(1_000):
        wander(seed, steps=100)


def wander(seed: int, steps: int = 60) -> None:
    """One random schedule, reproducible from its seed."""
    chance, world = random.Random(seed), World()

    def key() -> str:
        return chance.choice(("k0", "k1", "k2"))

    actions: list[tuple[float, Callable[[], None]]] = [
        (
            8,
            lambda: world.admit(
                chance.randrange(8),
                key(),
                chance.randint(1, 40),
                chance.randint(0, 40),
                chance.random() < 0.5,
                chance.random() < 0.1,
            ),
        ),
        (5, lambda: world.generate(chance.randrange(8), chance.randint(0, 10))),
        (4, lambda: world.finish(chance.randrange(8))),
        (3, lambda: world.cut(chance.randrange(8), chance.randint(0, 8), chance.choice(("cut", "cancelled")))),
        (4, lambda: world.ship(chance.randrange(8))),
        (2, lambda: world.ship_again(chance.randrange(100))),
        (2, lambda: world.tend(chance.randrange(8), chance.choice((0.3, 2.0, 30.0)), chance.random() < 0.3)),
        (2, lambda: world.kill(chance.randrange(8), chance.randint(0, 8), chance.random() < 0.5, chance.random())),
        (1, lambda: world.break_database(chance.random() < 0.4)),
        (1, lambda: world.lose_next_reply()),
        (1, lambda: world.roll_day()),
        (1, lambda: world.edit_limit(chance.choice(sorted(LIMITS)), chance.randint(0, 500))),
    ]
    weights, rules = zip(*actions, strict=True)
    try:
        for _ in range(steps):
            chance.choices(rules, weights)[0]()
            world.check()
        world.settle_down()
    finally:
        world.close()
