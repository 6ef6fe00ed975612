"""A child that dies is started again, later and later; one that was stopped is not."""

import gc
import signal
import sys

import pytest

from gateway import server
from gateway.serve_child import (
    CONFIGURATION_ERROR,
    LONGEST_DELAY,
    LONGEST_WORKER_DELAY,
    STEADY,
    Child,
    Kind,
    Plan,
    how_it_ended,
    module_command,
    spawn,
)
from tests.clock import FrozenClock


class Pretend:
    """A process whose life the test decides."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.status: int | None = None
        self.signals: list[int] = []

    def poll(self) -> int | None:
        return self.status

    def send_signal(self, sig: int) -> None:
        self.signals.append(sig)


class Rig:
    """A child on a clock that stands still."""

    def __init__(self, kind: Kind = "engine") -> None:
        self.now = 100.0
        self.started: list[Pretend] = []
        plan = Plan(name="c", kind=kind, command=["x"], environment={})
        self.child = Child(plan, spawn=self._spawn, monotonic=lambda: self.now)
        self.child.start()

    def _spawn(self, plan: Plan) -> Pretend:
        del plan
        self.started.append(Pretend(len(self.started) + 1))
        return self.started[-1]

    def die(self, status: int = 1) -> float:
        """The process ends and is noticed; answers the seconds until it is due again."""
        self.started[-1].status = status
        assert self.child.tick() == status
        assert self.child.due is not None
        return self.child.due - self.now

    def restart(self) -> None:
        assert self.child.due is not None
        self.now = self.child.due
        assert self.child.tick() is None


def test_the_delay_doubles_up_to_its_bound() -> None:
    """A crash at start must not become a loop that eats a core."""
    rig = Rig()
    delays: list[float] = []
    for _ in range(9):
        delays.append(rig.die())
        rig.restart()
    assert delays == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, LONGEST_DELAY, LONGEST_DELAY, LONGEST_DELAY])
    assert len(rig.started) == 10


def test_what_its_files_keep_from_starting_is_left_alone_for_long() -> None:
    """Each try of an engine loads torch: at a wrong folder that slowed the start of all others down."""
    assert Rig("engine").die(CONFIGURATION_ERROR) == pytest.approx(LONGEST_DELAY)
    assert Rig("worker").die(CONFIGURATION_ERROR) == pytest.approx(0.2)


def test_a_worker_is_never_long_away() -> None:
    """It carries the traffic: however often it was killed, the next one is due within two seconds."""
    rig = Rig("worker")
    delays: list[float] = []
    for _ in range(6):
        delays.append(rig.die())
        rig.restart()
    assert delays == pytest.approx([0.2, 0.4, 0.8, 1.6, LONGEST_WORKER_DELAY, LONGEST_WORKER_DELAY])


def test_nothing_starts_before_it_is_due() -> None:
    """The back-off is worth nothing otherwise."""
    rig = Rig()
    delay = rig.die()
    rig.now += delay * 0.9
    assert rig.child.tick() is None
    assert len(rig.started) == 1


def test_a_long_life_begins_the_back_off_anew() -> None:
    """One crash a day is not the tenth in a row."""
    rig = Rig()
    for _ in range(5):
        rig.die()
        rig.restart()
    rig.now += STEADY + 1
    assert rig.die() == pytest.approx(0.2)
    assert rig.child.failures == 1


def test_ends_are_counted_however_long_after_a_start() -> None:
    """A start that fails after half a minute each time was taken for a new one, and tried for ever."""
    rig = Rig("worker")
    for tries in range(1, 4):
        rig.now += STEADY + 1
        rig.die()
        assert (rig.child.failures, rig.child.ends) == (1, tries)
        rig.restart()
    rig.child.replace()
    rig.started[-1].status = 0
    rig.child.tick()
    assert rig.child.ends == 3


def test_a_stopped_child_stays_stopped() -> None:
    """A drain must not race with a restart."""
    rig = Rig()
    rig.child.stop()
    assert rig.started[0].signals == [signal.SIGTERM]
    rig.started[0].status = 0
    rig.child.tick()
    rig.now += 60
    rig.child.tick()
    assert len(rig.started) == 1
    assert rig.child.ended()


def test_a_child_that_waits_to_be_started_can_be_stopped() -> None:
    """There is no process to signal then."""
    rig = Rig()
    rig.die()
    rig.child.stop()
    rig.now += 60
    assert rig.child.tick() is None
    assert len(rig.started) == 1


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "ended with status 0"),
        (3, "ended with status 3"),
        (-9, "was killed by SIGKILL"),
        (-99, "was killed by signal 99"),
    ],
)
def test_an_end_is_told_in_words(status: int, words: str) -> None:
    """An operator reads it at night."""
    assert how_it_ended(status) == words


def test_a_real_process_runs_and_is_signalled(clock: FrozenClock) -> None:
    """`spawn` is the one part that a pretended process leaves out."""
    plan = Plan(name="sleep", kind="engine", command=[sys.executable, "-c", "input()"], environment={})
    child = Child(plan, spawn=spawn, monotonic=clock.monotonic)
    child.start()
    assert child.pid is not None
    child.stop(signal.SIGKILL)
    while not child.ended():
        pass
    assert child.tick() is not None


def test_a_module_is_run_by_the_launcher_that_ends_with_us() -> None:
    """An orphaned engine would hold its memory and its socket for ever."""
    command = module_command("cache.encoder", "--socket", "x")
    assert command[:3] == [sys.executable, "-m", "gateway.serve_child"]
    assert command[4:] == ["cache.encoder", "--socket", "x"]


def test_a_worker_looks_for_garbage_as_soon_as_it_serves() -> None:
    """Its launcher turns that off for the start, and without an end to it cycles would stay until memory is full."""
    before, thresholds, turn = gc.isenabled(), gc.get_threshold(), sys.getswitchinterval()
    gc.disable()
    try:
        server.tune()
        assert gc.isenabled()
    finally:
        gc.set_threshold(*thresholds)
        sys.setswitchinterval(turn)
        (gc.enable if before else gc.disable)()
