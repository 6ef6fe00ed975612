"""The gate before a simulated worker: whole turns of an event loop, so that what a turn does to the next one is seen.

A turn looks at the loop, takes every request that is under way one step further, then reads all that has come
meanwhile. The costs are those measured: an answer takes 1.4 ms of the worker in seven steps, a refusal 20 µs.
"""

import asyncio
import heapq
import random
from collections.abc import Callable
from typing import NamedTuple, cast

import pytest

from gateway.gate import Clocks, Gate

CAPACITY = 700.0  # answers per second
BEFORE, AFTER = 4, 3  # turns that an answer takes, before and after the upstream
STEP = 1.0 / CAPACITY / (BEFORE + AFTER)  # seconds of the worker for each
READ, REFUSE, REFUSE_LATE = 15e-6, 20e-6, 40e-6
UPSTREAM = 0.2
IN_TIME = 0.25
HEADERS = [(b"authorization", b"Bearer a")]


class Told(NamedTuple):
    """One request: when it came, how long it took beyond the upstream, whether it was answered."""

    came: float
    took: float
    answered: bool


class Loop:
    """As much of an event loop as the gate needs: a clock that the test moves, and one timer."""

    def __init__(self) -> None:
        self.now = self.busy = 0.0
        self._timer: tuple[float, Callable[[], None]] | None = None
        self._soon: Callable[[], None] | None = None

    def time(self) -> float:
        return self.now

    def processor(self) -> float:
        return self.busy

    def work(self, seconds: float) -> None:
        self.now += seconds
        self.busy += seconds

    def call_at(self, when: float, act: Callable[..., None], *given: object) -> None:
        self._timer = (when, lambda: act(*given))

    def call_soon(self, act: Callable[..., None], *given: object) -> None:
        self._soon = lambda: act(*given)

    def turn(self) -> None:
        """What was to be called soon, and what is due."""
        soon, self._soon = self._soon, None
        if soon is not None:
            soon()
        if self._timer is not None and self._timer[0] <= self.now:
            due, self._timer = self._timer[1], None
            due()

    def sleep(self, until: float) -> None:
        if self._soon is None:
            assert self._timer is not None
            until = min(until, self._timer[0])
            self.now = max(self.now + 1e-6, until)
        else:
            self.now += 1e-5


class World:
    """A worker that is asked at the given moments; of every `period` seconds the machine gives others the `first`."""

    def __init__(self, arrivals: list[float], *, period: float = 1.0, first: float = 0.0) -> None:
        self._period, self._first, self._periods = period, first, 0
        self.loop = Loop()
        self.told: list[Told] = []
        self._arrivals = arrivals
        self._next = 0
        self._under_way: list[tuple[float, int]] = []  # when it came, steps left
        self._upstream: list[tuple[float, float]] = []
        draw = random.Random(1).random
        self._gate = Gate(
            2_000,
            0.025,
            random=draw,
            turned_away=lambda _: None,
            memory=lambda: (0, None),
            clocks=Clocks(self.loop.time, self.loop.processor, self.loop.processor),
        )
        self._gate._next(cast("asyncio.AbstractEventLoop", self.loop))

    def run(self) -> list[Told]:
        while self._next < len(self._arrivals) or self._under_way or self._upstream:
            self._wait_for_others()
            before = self.loop.now
            self.loop.turn()
            self._work()
            self._read()
            if self.loop.now == before:
                coming = [self._arrivals[self._next]] if self._next < len(self._arrivals) else []
                self.loop.sleep(min([*coming, *(due for due, _ in self._upstream[:1]), self.loop.now + 1.0]))
        return self.told

    def _wait_for_others(self) -> None:
        if self._first and self.loop.now // self._period > self._periods:
            self._periods = int(self.loop.now // self._period)
            self.loop.now += self._first

    def _work(self) -> None:
        going = self._under_way + [(heapq.heappop(self._upstream)[1], AFTER) for _ in self._due()]
        self._under_way = []
        for came, left in going:
            if left == AFTER + BEFORE and self._gate.enter() is not None:
                self._refuse(came, REFUSE_LATE)
                continue
            self.loop.work(STEP)
            if left == AFTER + 1:
                heapq.heappush(self._upstream, (self.loop.now + UPSTREAM, came))
            elif left > 1:
                self._under_way.append((came, left - 1))
            else:
                self._gate.left()
                self.told.append(Told(came, self.loop.now - came - UPSTREAM, answered=True))

    def _due(self) -> list[float]:
        return [due for due, _ in self._upstream if due <= self.loop.now]

    def _read(self) -> None:
        until = self.loop.now
        while self._next < len(self._arrivals) and self._arrivals[self._next] <= until:
            came = self._arrivals[self._next]
            self._next += 1
            if self._gate.knock(HEADERS) is None:
                self.loop.work(READ)
                self._under_way.append((came, AFTER + BEFORE))
            else:
                self._refuse(came, REFUSE)

    def _refuse(self, came: float, cost: float) -> None:
        self.loop.work(cost)
        self.told.append(Told(came, self.loop.now - came, answered=False))


def evenly(rate: float, seconds: float, begin: float = 0.0) -> list[float]:
    return [begin + number / rate for number in range(int(rate * seconds))]


@pytest.mark.parametrize(("times", "promise"), [(2.0, 0.95), (5.0, 0.90), (10.0, 0.80)])
def test_goodput_refusals_and_recovery_keep_what_is_promised(times: float, promise: float) -> None:
    """Once the burst that is always let in has been worked off, and up to the first moment after an overload.

    A gate that looks at windows only lets the lag swing between nothing and seconds, as this one did before it looked
    at turns: a fifth to a half of the capacity was answered in time, and refusals took three seconds.
    """
    seconds = 10.0
    told = World(evenly(times * CAPACITY, seconds) + evenly(CAPACITY / 2, 6.0, seconds)).run()
    good = sum(one.answered and 3.0 <= one.came < seconds and one.took <= IN_TIME for one in told)
    assert good / ((seconds - 3.0) * CAPACITY) >= promise
    refused = sorted(one.took for one in told if not one.answered and 3.0 <= one.came < seconds)
    assert refused[int(0.99 * len(refused))] <= 0.05
    assert max(one.took for one in told if not one.answered) < 1.0
    calm = [one for one in told if one.came >= seconds + 1.0]
    assert all(one.answered and one.took < 0.03 for one in calm)


def test_nobody_is_turned_away_below_capacity_nor_for_a_burst() -> None:
    """The gate must not cost what it protects: 200 at once are a third of a second of work, and no overload."""
    steady = evenly(0.95 * CAPACITY, 10.0)
    assert all(one.answered for one in World(steady).run())
    burst = [5.0] * 200
    assert all(one.answered for one in World(sorted(evenly(0.3 * CAPACITY, 8.0) + burst)).run())


@pytest.mark.parametrize(("load", "period", "first"), [(0.07, 0.1, 0.092), (0.15, 0.5, 0.4), (0.3, 3.0, 0.8)])
def test_a_machine_that_is_busy_with_others_turns_nobody_away(load: float, period: float, first: float) -> None:
    """The loop is late then, whatever this worker does: it answers when it can, and refusing would help nobody."""
    told = World(evenly(load * CAPACITY, 10.0), period=period, first=first).run()
    assert all(one.answered for one in told)
