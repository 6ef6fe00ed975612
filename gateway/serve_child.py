"""A child process of `nearhit serve`: how it is started, bound to its parent's life, and started again.

`python -m gateway.serve_child PARENT MODULE …` runs a module that ends when PARENT does. Knows processes and back-off.
Does not know what the children are for, nor the clock: time comes in as a callable.
"""

import ctypes
import gc
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol

from msgspec import Struct

from gateway import log_lines

FIRST_DELAY = 0.2  # seconds before the first restart, doubling
LONGEST_DELAY = 10.0
LONGEST_WORKER_DELAY = 2.0  # a worker carries traffic and may hold open journals: never long without one
CONFIGURATION_ERROR = 78  # EX_CONFIG of sysexits.h: starting it again with the same files will not help
STEADY = 30.0  # seconds alive after which the back-off begins anew
_PR_SET_PDEATHSIG = 1

Kind = Literal["encoder", "engine", "worker"]


class Plan(Struct, frozen=True, kw_only=True):
    """What to run. `fds` are handed down under the same numbers."""

    name: str
    kind: Kind
    command: list[str]
    environment: dict[str, str]
    fds: tuple[int, ...] = ()


class Process(Protocol):
    """The part of subprocess.Popen that is used here."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def send_signal(self, sig: int) -> None: ...


def spawn(plan: Plan) -> Process:
    """Start it in a session of its own, so that Ctrl-C reaches the supervisor alone and the drain keeps its order."""
    return subprocess.Popen(  # noqa: S603 - a command of our own making, no shell
        plan.command,
        env=plan.environment,
        pass_fds=plan.fds,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


class Child:
    """One process that is kept alive. Drive it with `tick`, which says how a process that ended has ended."""

    def __init__(self, plan: Plan, *, spawn: Callable[[Plan], Process], monotonic: Callable[[], float]) -> None:
        self.plan = plan
        self.failures = 0  # in a row, each within STEADY seconds of its start
        self.ends = 0  # that nobody asked for, however long after a start
        self.due: float | None = None  # when to start again
        self._spawn = spawn
        self._monotonic = monotonic
        self._process: Process | None = None
        self._began = 0.0
        self._stopping = False
        self._replacing = False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def ending(self) -> bool:
        """Whether it was asked to end."""
        return self._stopping or self._replacing

    def start(self) -> None:
        self._process = self._spawn(self.plan)
        self._began = self._monotonic()
        self.due = None

    def tick(self) -> int | None:
        """Start again what is due; answer the exit status of a process that has just ended, else None."""
        if self._process is None:
            if self.due is not None and self._monotonic() >= self.due and not self._stopping:
                self.start()
            return None
        status = self._process.poll()
        if status is None:
            return None
        self._process = None
        now = self._monotonic()
        if self._replacing:
            self._replacing, self.failures, self.due = False, 0, now
            return status
        self.ends += 1
        self.failures = 1 if now - self._began >= STEADY else self.failures + 1
        longest = LONGEST_WORKER_DELAY if self.plan.kind == "worker" else LONGEST_DELAY
        # An engine loads torch each time: five tries at broken weights in ten seconds held up those that can be loaded.
        useless = status == CONFIGURATION_ERROR and self.plan.kind != "worker"
        self.due = now + (longest if useless else min(longest, FIRST_DELAY * 2 ** min(self.failures - 1, 16)))
        return status

    def stop(self, sig: int = signal.SIGTERM) -> None:
        """Ask it to end; it is not started again."""
        self._stopping = True
        self.due = None
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(sig)

    def replace(self) -> None:
        """Ask it to end; it is started again as soon as it has."""
        self._replacing = self._process is not None
        self.failures = 0
        self.signal(signal.SIGTERM)

    def signal(self, sig: int) -> None:
        """Tell it something, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(sig)

    def ended(self) -> bool:
        """True when nothing runs."""
        return self._process is None or self._process.poll() is not None


def how_it_ended(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


def module_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of ours and ends with us."""
    return [*python(), "-m", "gateway.serve_child", str(os.getpid()), module, *arguments]


def python() -> list[str]:
    """This interpreter, for modules of ours.

    `-m` puts the working folder first on the path, and somebody's folder called `cache` would be taken for our package;
    in a checkout the working folder is where our packages are.
    """
    here = Path.cwd() == Path(__file__).resolve().parents[1]
    return [sys.executable] if here else [sys.executable, "-P"]


def die_with_parent(parent: int) -> None:
    """SIGTERM for this process when `parent` ends, even by SIGKILL. Linux only; elsewhere it does nothing."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before this was asked for
        raise SystemExit(1)


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    sys.argv = sys.argv[2:]
    if sys.argv[0] != "gateway.server":  # a worker has more to say, and sets that up itself
        log_lines.child(os.environ.get(log_lines.LOG_FORM))  # noqa: TID251 - reading the settings would load half of the gateway
    else:
        gc.disable()  # until it serves: looking through what it imports, which stays, is a seventh of a start
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
