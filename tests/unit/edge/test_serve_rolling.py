"""Workers are started anew one after another: never two at once, and not the next where the last one failed."""

import os
import signal
from collections.abc import Generator

import pytest

from gateway.serve_child import Child, Plan
from gateway.serve_hearing import Hearing
from gateway.serve_rolling import Rolling
from tests.unit.edge.test_serve_child import Pretend


class Rig:
    """Two workers that the test starts and ends, on a clock that stands still."""

    def __init__(self, read: int, write: int) -> None:
        self.now = 100.0
        self.born = write
        self.started: list[Pretend] = []
        plans = [Plan(name=f"worker {n}", kind="worker", command=["x"], environment={}) for n in range(2)]
        self.workers = [Child(plan, spawn=self._spawn, monotonic=lambda: self.now) for plan in plans]
        for worker in self.workers:
            worker.start()
            self.serves()
        self.rolling = Rolling(self.workers, Hearing(read), longest=30.0)

    def _spawn(self, plan: Plan) -> Pretend:
        del plan
        self.started.append(Pretend(len(self.started) + 1))
        return self.started[-1]

    def serves(self) -> None:
        """What was started last says so."""
        os.write(self.born, b"%d\n" % self.started[-1].pid)

    def step(self) -> str | None:
        for worker in self.workers:
            worker.tick()
        return self.rolling.step(self.now)


@pytest.fixture
def rig() -> Generator[Rig, None, None]:
    read, write = os.pipe()
    yield Rig(read, write)
    os.close(read)
    os.close(write)


def test_the_next_one_waits_until_the_last_ones_successor_serves(rig: Rig) -> None:
    """Two at once would leave nobody to take what comes."""
    assert rig.step() is None
    first, second = rig.started
    assert first.signals == []
    assert rig.rolling.begin()
    rig.step()
    assert first.signals == [signal.SIGTERM]
    assert not rig.rolling.begin()
    for _ in range(3):
        rig.step()
    assert second.signals == []
    first.status = 0
    rig.step()  # it has ended
    rig.step()  # its successor is started at once
    assert len(rig.started) == 3
    rig.step()
    assert second.signals == []
    rig.serves()
    rig.step()
    rig.step()
    assert second.signals == [signal.SIGTERM]
    second.status = 0
    rig.step()
    rig.step()
    rig.serves()
    assert rig.step() == "every worker has been started anew"
    assert rig.rolling.begin()


def test_a_successor_that_does_not_start_ends_it(rig: Rig) -> None:
    """A version that cannot run must not take the one that does with it."""
    rig.rolling.begin()
    rig.step()
    rig.started[0].status = 0
    rig.step()
    rig.step()
    rig.started[2].status = 1
    assert rig.step() == "the successor of worker 0 does not start; the others stay as they are"
    for _ in range(5):
        rig.now += 1.0
        rig.step()
    assert rig.started[1].signals == []


def test_one_that_does_not_end_is_killed(rig: Rig) -> None:
    """A worker that hangs must not stop an operator's restart for ever."""
    rig.rolling.begin()
    rig.step()
    rig.now += 29.0
    rig.step()
    assert rig.started[0].signals == [signal.SIGTERM]
    rig.now += 2.0
    rig.step()
    assert rig.started[0].signals[-1] == signal.SIGKILL


def test_one_that_is_starting_reads_the_configuration_again_once_it_serves(rig: Rig) -> None:
    """It has no handler yet: the signal ended it, again and again where somebody was impatient."""
    rig.step()
    first, second = rig.started
    first.status = -signal.SIGKILL
    rig.step()
    rig.now += 1.0
    rig.step()
    successor = rig.started[-1]
    assert successor is not second
    rig.rolling.reread()
    rig.step()
    assert (successor.signals, second.signals) == ([], [signal.SIGHUP])
    rig.serves()
    rig.step()
    rig.step()
    assert (successor.signals, second.signals) == ([signal.SIGHUP], [signal.SIGHUP])
