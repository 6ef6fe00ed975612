"""Turning newcomers away: enough of them, not more, the right ones, and no longer than it is needed."""

import random
from collections import Counter
from collections.abc import Callable
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.overload import Pressure, Seen, chance, comes_back_in, let_in, level, memory_full, pressed

CAPACITY = 500.0  # requests per second of the simulated worker
TARGET = 0.025
STEP, WINDOW = 0.02, 0.1
REFUSAL = 1 / 50  # what turning one away costs of what answering one does


class Worker:
    """One queue before one processor, looked at as the gate looks at its loop."""

    def __init__(self, seed: int = 1) -> None:
        self.pressure = Pressure()
        self.late = 0.0
        self.let_in: Counter[str] = Counter()
        self.came: Counter[str] = Counter()
        self.good = 0
        self.worst = 0.0
        self._random = random.Random(seed)

    def run(self, seconds: float, load: dict[str, float], *, batch: tuple[str, ...] = ()) -> None:
        """`load`: requests per second by key; those of `batch` get what the others leave."""
        for _ in range(round(seconds / WINDOW)):
            came, inside, least = 0, 0, 9e9
            people = [rate for key, rate in load.items() if key not in batch]
            first = level(people, self.pressure.rate)
            left = self.pressure.rate - let_in(people, first) if self.pressure.rate < inf else inf
            last = level([load[key] for key in batch], left)
            for _ in range(round(WINDOW / STEP)):
                for key, rate in load.items():
                    number = int(rate * STEP) + (self._random.random() < rate * STEP % 1)
                    away = chance(rate, last if key in batch else first) if self.pressure.share else 0.0
                    in_now = sum(self._random.random() >= away for _ in range(number))
                    came, inside = came + number, inside + in_now
                    self.came[key] += number
                    self.let_in[key] += in_now
                    self.good += in_now if self.late < 0.25 else 0
                    self.late += (in_now + (number - in_now) * REFUSAL) / CAPACITY
                self.late = max(0.0, self.late - STEP)
                self.worst = max(self.worst, self.late)
                least = min(least, self.late)
            self.pressure = pressed(self.pressure, Seen(WINDOW, least, came, inside, WINDOW), TARGET)

    def forget(self) -> None:
        self.let_in.clear()
        self.came.clear()
        self.good, self.worst = 0, 0.0


@pytest.mark.parametrize(("times", "promise"), [(1.0, 0.99), (1.2, 0.95), (2.0, 0.95), (5.0, 0.90), (10.0, 0.80)])
def test_goodput_stays_under_any_overload(times: float, promise: float) -> None:
    """Without a gate a worker at twice its capacity answers nobody in time."""
    worker = Worker()
    worker.run(4.0, {"a": times * CAPACITY})
    worker.forget()
    worker.run(20.0, {"a": times * CAPACITY})
    assert worker.good / (20.0 * CAPACITY) >= promise
    assert worker.worst < 0.25


def test_nobody_is_turned_away_below_capacity() -> None:
    """The gate must not cost what it protects."""
    worker = Worker()
    worker.run(30.0, {"a": 0.9 * CAPACITY})
    assert worker.let_in == worker.came


def test_a_burst_is_worked_off_instead_of_refused() -> None:
    """A hundred requests at once are half a second of work, not an overload."""
    worker = Worker()
    worker.run(WINDOW, {"a": 100 / WINDOW})
    worker.run(2.0, {"a": 0.3 * CAPACITY})
    assert worker.let_in == worker.came


def test_it_is_over_soon_after_the_load_has_gone() -> None:
    """Those who come after an overload have done nothing to be refused."""
    worker = Worker()
    worker.run(10.0, {"a": 10 * CAPACITY})
    worker.run(5.0, {"a": 0.5 * CAPACITY})
    worker.forget()
    worker.run(5.0, {"a": 0.5 * CAPACITY})
    assert worker.let_in == worker.came


def test_a_quiet_key_is_not_starved_by_a_loud_one() -> None:
    """One tenant's runaway loop must not take the service from everybody else."""
    worker = Worker()
    load = {"loud": 10 * CAPACITY, "quiet": 0.1 * CAPACITY}
    worker.run(4.0, load)
    worker.forget()
    worker.run(10.0, load)
    assert worker.let_in["quiet"] == worker.came["quiet"]
    assert worker.let_in["loud"] / worker.came["loud"] < 0.15


def test_batch_work_goes_first() -> None:
    """Nobody waits for it; its retry costs nothing."""
    worker = Worker()
    load = {"person": 0.7 * CAPACITY, "batch": 0.7 * CAPACITY}
    worker.run(4.0, load, batch=("batch",))
    worker.forget()
    worker.run(10.0, load, batch=("batch",))
    person, batch = (worker.let_in[key] / worker.came[key] for key in ("person", "batch"))
    assert person > 0.99
    assert batch < 0.6


def test_a_stretch_that_lets_hardly_anybody_in_does_not_say_what_a_request_costs() -> None:
    """While a burst is worked off: a worker that took 700 a second thought it could take 7, and idled for seconds."""
    pressure = Pressure()
    for _ in range(10):
        pressure = pressed(pressure, Seen(WINDOW, 0.0, 70, 70, WINDOW), TARGET)
    for delay in (0.9, 0.8, 0.7):
        pressure = pressed(pressure, Seen(WINDOW, delay, 350, 1, WINDOW, cut=True), TARGET)
    assert pressure.share > 0.9
    for _ in range(2):
        pressure = pressed(pressure, Seen(WINDOW, 0.0, 350, 5, 0.02), TARGET)
    assert pressure.rate > 300.0


def _walk(values: list[tuple[float, int, int]], check: Callable[[Pressure], None]) -> None:
    pressure = Pressure()
    for delay, came, inside in values:
        pressure = pressed(pressure, Seen(WINDOW, delay, came, min(came, inside), WINDOW), TARGET)
        check(pressure)


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 10_000), st.integers(0, 10_000)), max_size=60))
def test_whatever_is_seen_some_always_come_through(values: list[tuple[float, int, int]]) -> None:
    """A gate that closed for good could never notice that it may open again."""

    def check(pressure: Pressure) -> None:
        assert 0.0 <= pressure.share <= 0.98
        assert pressure.rate > 0.0
        assert 1.0 * 0.75 <= comes_back_in(pressure, 0.0) <= comes_back_in(pressure, 0.999) <= 30.0 * 1.25

    _walk(values, check)


@given(st.lists(st.floats(0, 1_000), min_size=1, max_size=30), st.floats(0.1, 5_000))
def test_the_rate_is_divided_fairly_and_used_up(asked: list[float], rate: float) -> None:
    """Max-min: nobody who got less than they asked for got less than anybody else, and nothing is left over."""
    up_to = level(asked, rate)
    got = let_in(asked, up_to)
    assert got <= rate * (1 + 1e-9)
    assert got == pytest.approx(min(rate, sum(asked)))
    for own in asked:
        assert 0.0 <= chance(own, up_to) <= 0.98
        assert (chance(own, up_to) == 0.0) == (own <= up_to)


def test_memory_is_full_with_a_margin() -> None:
    """Without one the gate would flap at the edge; without a limit there is nothing to be full."""
    assert not memory_full(94, 100, before=False)
    assert memory_full(95, 100, before=False)
    assert memory_full(92, 100, before=True)
    assert not memory_full(91, 100, before=True)
    assert not memory_full(10**12, None, before=False)
