"""The supervisor of `nearhit serve`: opens the port, starts every process, starts again what dies, drains in order.

A small process without the application in it: it must open the port within two seconds and outlive everything else.
Knows which processes there are and in which order they end. Does not know what they do.
"""

import contextlib
import http.client
import math
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from gateway import serve_banner, serve_home
from gateway.log_lines import LOG_FORM, spoken
from gateway.serve_child import CONFIGURATION_ERROR, Child, Plan, how_it_ended, module_command, spawn
from gateway.serve_engines import engine_plans
from gateway.serve_hearing import Hearing
from gateway.serve_home import CannotServe, forget_gauges, fresh_folder, listen, lock, prepare, take_first_key
from gateway.serve_rolling import Rolling
from gateway.settings import Settings, environment, load

FIRST_TRIES = 3  # of a worker that has never answered anything
AFTER_DRAIN = 15.0  # seconds a worker gets beyond its own drain before it is killed
OTHERS = 5.0  # seconds engines and encoder get to end
# torch keeps what it compiled for the last 1,024 shapes of a product, and texts come in thousands of them: kept, the
# encoder grows from 460 MB to a gigabyte and is not faster.
_FEW_SHAPES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "32", "LRU_CACHE_CAPACITY": "32"}
_TICK = 0.5
_PATIENCE = 5.0  # seconds for the workers of a killed supervisor to let go of the home
_LOCAL = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - how to reach who listens on every address


class Report(Struct):
    """The part of `GET /health/ready` that is read here."""

    waiting_for: dict[str, str] = {}


_decode = msgspec.json.Decoder(Report).decode


class Started(NamedTuple):
    """What was set up before any child runs."""

    settings: Settings
    config: Path | None
    sockets: list[socket.socket]
    lock: int
    admin_key: str | None
    born: tuple[int, int]  # a pipe: read here, written by every worker that serves

    @property
    def port(self) -> int:
        return self.sockets[0].getsockname()[1]

    @property
    def url(self) -> str:
        return serve_banner.base_url(self.settings.server.host, self.port)


def run(config: Path | None = None, **server: Any) -> int:
    """Serve until SIGTERM or SIGINT. `server`: host, port, workers, server, where given as flags.

    Answers the exit status: 0 after a drain, 1 when the gateway cannot start (the reason is on stderr).
    """
    began = time.monotonic()
    chosen = {name: value for name, value in server.items() if value is not None}
    try:
        started = _set_up(config, chosen)
    except (CannotServe, ValueError) as error:
        sys.stderr.write(f"nearhit: {error}\n")
        return 1
    say = spoken(started.settings.server.log, time.time)
    say(f"nearhit: listening on {started.url}\n")
    sys.stdout.flush()
    plans = plans_for(started, chosen)
    children = [Child(plan, spawn=spawn, monotonic=time.monotonic) for plan in plans]
    try:
        return Supervisor(started, children, began=began, say=say).run()
    finally:
        (started.settings.home / "run" / "port").unlink(missing_ok=True)


def _set_up(config: Path | None, chosen: dict[str, Any]) -> Started:
    settings = load(config, server=chosen) if chosen else load(config)
    run_folder = prepare(settings)
    held = lock(settings.home, patience=_PATIENCE)
    sockets = listen(settings.server.host, settings.server.port)
    serve_home.leave_port(run_folder / "port", sockets[0].getsockname()[1])
    return Started(settings, _found(config), sockets, held, serve_home.make_keys(settings), os.pipe())


def _found(config: Path | None) -> Path | None:
    """The file that was read. One that was there and is gone later is a mistake, not a wish for no settings at all."""
    usual = Path("nearhit.yaml")
    return usual if config is None and usual.exists() else config


def plans_for(started: Started, chosen: dict[str, Any]) -> list[Plan]:
    """Every process of this gateway: encoder and engines first, as they take longest to load."""
    settings, home = started.settings, started.settings.home
    run_folder = home / "run"
    base = environment() | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", LOG_FORM: settings.server.log}
    for name, value in chosen.items():
        base[f"NEARHIT_SERVER__{name.upper()}"] = str(value)
    base["NEARHIT_SERVER__PORT"] = str(started.port)
    half = _threads(base, max(1, len(os.sched_getaffinity(0)) // 2))
    encoder = module_command(
        "cache.encoder", "--socket", str(run_folder / "encoder.sock"), "--model", settings.cache.encoder
    )
    plans = [Plan(name="encoder", kind="encoder", command=encoder, environment=_FEW_SHAPES | half)]
    plans += engine_plans(settings.engines, run_folder, half)
    single = _threads(base, 1) | {"PROMETHEUS_MULTIPROC_DIR": str(fresh_folder(run_folder / "metrics").absolute())}
    # glibc gives every thread an arena of its own; a worker's few threads do not need them, its memory does.
    single.setdefault("MALLOC_ARENA_MAX", "2")
    return plans + [_worker(started, index, single) for index in range(settings.server.workers)]


def _worker(started: Started, index: int, variables: dict[str, str]) -> Plan:
    fds = tuple(sock.fileno() for sock in started.sockets)
    command = module_command("gateway.server", *(part for fd in fds for part in ("--fd", str(fd))))
    command += ["--supervisor", str(os.getpid()), "--born", str(started.born[1])]
    if started.config is not None:
        command += ["--config", str(started.config)]
    if index == 0:
        command += ["--admin", str(started.settings.home / "run" / "admin.sock")]
    # Workers write to the home, so they hold its lock too: it is free when the last of them has ended.
    held = (*fds, started.lock, started.born[1])
    return Plan(name=f"worker {index}", kind="worker", command=command, environment=variables, fds=held)


def _threads(base: dict[str, str], count: int) -> dict[str, str]:
    """An operator's own numbers stand."""
    return {"OMP_NUM_THREADS": str(count), "MKL_NUM_THREADS": str(count)} | base


class Readiness(threading.Thread):
    """Asks our own port until it says it is ready. `answered`: some worker serves; `waiting`: what is still loading."""

    def __init__(self, host: str, port: int, wake: Callable[[], None]) -> None:
        super().__init__(name="readiness", daemon=True)
        self.answered = False
        self.ready = False
        self.waiting: dict[str, str] = {}
        self._address = (host, port)
        self._wake = wake
        self.stop = threading.Event()

    def run(self) -> None:
        while not self.ready and not self.stop.wait(0.2):
            with contextlib.suppress(OSError, http.client.HTTPException, msgspec.DecodeError):
                self._ask()
                self._wake()

    def _ask(self) -> None:
        connection = http.client.HTTPConnection(*self._address, timeout=5.0)
        try:
            connection.request("GET", "/health/ready", headers={"connection": "close"})
            answer = connection.getresponse()
            self.waiting = _decode(answer.read(65_536)).waiting_for
        finally:
            connection.close()
        self.answered = True
        self.ready = answer.status == http.client.OK


class Supervisor:
    """Runs the children until told to stop. One per process: it owns the signal handlers."""

    def __init__(
        self,
        started: Started,
        children: list[Child],
        *,
        began: float,
        say: Callable[[str], object],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._started = started
        self._children = children
        self._began = began
        self._monotonic = monotonic
        self._say = say
        self._signals = 0
        self._reload = False
        self._roll = False
        self._hearing = Hearing(started.born[0])
        longest = started.settings.server.drain_timeout + AFTER_DRAIN
        self._rolling = Rolling(self._workers(), self._hearing, longest=longest)
        self._at_terminal = os.isatty(0)
        self._fatal: str | None = None
        self._announced = False
        self._useless: set[str] = set()  # engines whose model cannot be loaded
        self._last_line = ""
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        host: str = started.sockets[0].getsockname()[0]
        self._readiness = Readiness(_LOCAL.get(host, host), started.port, self._wake)

    def run(self) -> int:
        self._catch_signals()
        for child in self._children:
            child.start()
        self._readiness.start()
        while not self._signals and self._fatal is None:
            self._sleep()
            self._look_after_children()
            self._pass_on_reload()
            self._restart_workers()
            self._end_the_silent()
            self._announce()
        self._drain()
        if self._fatal is not None:
            sys.stderr.write(f"nearhit: {self._fatal}\n")
            return 1
        return 0

    # Waking up

    def _catch_signals(self) -> None:
        if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup asks to outlive the terminal
            self._at_terminal = False
        signal.signal(signal.SIGHUP, self._on_signal)  # then too: it is how workers have the others read the file again
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._on_signal)
        signal.signal(signal.SIGCHLD, _woken)
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        if number == signal.SIGUSR2:
            self._roll = True
        elif number == signal.SIGHUP and not (self._at_terminal and not os.isatty(0)):
            self._reload = True
        else:  # SIGHUP too, when it says that the terminal we were started from is gone
            self._signals += 1

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full: it will wake anyway; closed: nobody sleeps any more
            self._wake_write.send(b"\0")

    def _sleep(self, longest: float = _TICK) -> None:
        now = self._monotonic()
        due = [child.due - now for child in self._children if child.due is not None]
        select.select([self._wake_read], [], [], max(0.0, min([longest, *due])))
        with contextlib.suppress(BlockingIOError):
            while self._wake_read.recv(4096):
                pass

    # While it runs

    def _look_after_children(self) -> None:
        for child in self._children:
            pid = child.pid
            status = child.tick()
            if status is None:
                continue
            if pid is not None and child.plan.kind == "worker":
                forget_gauges(self._started.settings.home / "run" / "metrics", pid)
            if child.plan.kind == "engine" and status == CONFIGURATION_ERROR:
                self._useless.add(child.plan.name)
            told = f"{child.plan.name} {how_it_ended(status)}"
            if child.plan.kind == "worker" and self._hopeless(child, status):
                self._fatal = f"{told}; the gateway cannot start."
                return
            delay = (child.due or 0.0) - self._monotonic()
            self._tell(f"nearhit: {told}; starting it again in {max(0.0, delay):.1f} s")

    def _pass_on_reload(self) -> None:
        """Every worker reads the configuration again."""
        if self._reload:
            self._reload = False
            self._tell("nearhit: the workers read the configuration again")
            self._rolling.reread()

    def _restart_workers(self) -> None:
        """One after another, where the configuration they will read is one."""
        if self._roll:
            self._roll = False
            try:
                load(self._started.config)
            except ValueError as error:
                self._tell(f"nearhit: no worker is started anew: {error}")
            else:
                if self._rolling.begin():
                    self._tell("nearhit: every worker is started anew, one after another")
        if (told := self._rolling.step(self._monotonic())) is not None:
            self._tell(f"nearhit: {told}")

    def _end_the_silent(self) -> None:
        """A worker whose loop stands still keeps its connections waiting for ever: another one starts in its place."""
        now, longest = self._monotonic(), self._started.settings.server.hang_timeout or math.inf
        for worker in self._workers():
            if (silent := self._hearing.silent(worker.pid, now)) > longest and not worker.ending:
                self._hearing.excuse(worker.pid, now)
                self._tell(f"nearhit: {worker.plan.name} has stood still for {silent:.0f} s; it is killed")
                worker.signal(signal.SIGKILL)

    def _workers(self) -> list[Child]:
        return [child for child in self._children if child.plan.kind == "worker"]

    def _hopeless(self, worker: Child, status: int) -> bool:
        if status == CONFIGURATION_ERROR:
            # Later on the others go on with what they read when it still was a configuration.
            return not (self._readiness.answered and any(other.pid for other in self._workers()))
        return not self._readiness.answered and worker.ends >= FIRST_TRIES

    def _announce(self) -> None:
        if self._announced:
            return
        if self._readiness.ready or self._rest_is_useless():
            self._announced = True
            ready = serve_banner.Ready(
                url=self._started.url,
                seconds=self._monotonic() - self._began,
                api_key=take_first_key(self._started.settings.home),
                admin_key=self._started.admin_key,
            )
            self._tell(serve_banner.banner(self._started.settings, ready))
        elif self._readiness.answered:
            line = serve_banner.loading(self._readiness.waiting)
            if line != self._last_line:
                self._last_line = line
                self._tell(line)

    def _rest_is_useless(self) -> bool:
        """Whether all that can be served is: a newcomer with one wrong folder needs the first key all the same."""
        waiting, useless = self._readiness.waiting, [f"{name} " for name in self._useless]  # "engine NAME NUMBER"
        hopeless = all(any(name.startswith(f"engine {one} ") for name in useless) for one in waiting)
        return self._readiness.answered and bool(waiting) and hopeless

    def _tell(self, text: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # nobody listens any more: no reason to stop serving
            self._say(text if text.endswith("\n") else text + "\n")
            sys.stdout.flush()

    # The end

    def _drain(self) -> None:
        """Workers first, as they need engines and encoder to finish; a second signal hurries."""
        self._readiness.stop.set()
        for sock in self._started.sockets:
            sock.close()
        workers = self._workers()
        others = [child for child in self._children if child.plan.kind != "worker"]
        if self._fatal is None:
            self._tell("nearhit: finishing what was begun")
        drain = 0.0 if self._fatal is not None else self._started.settings.server.drain_timeout
        self._end(workers, drain + AFTER_DRAIN)
        self._end(others, OTHERS)

    def _end(self, children: list[Child], seconds: float) -> None:
        for child in children:
            child.stop()
        until, killed = self._monotonic() + seconds, False
        while any(not child.ended() for child in children):
            # Counted from the start: two quick ones may both be there before the first was acted on.
            if not killed and (self._monotonic() >= until or self._signals > 1):
                killed = True
                for child in children:
                    child.stop(signal.SIGKILL)
            self._sleep(0.05)


def _woken(number: int, frame: FrameType | None) -> None:
    """A handler that does nothing: its being there makes the signal write to the wake-up descriptor."""
    del number, frame


def main() -> int:
    """`python -m gateway.serve [CONFIG]`; the command line proper is `nearhit serve`."""
    return run(Path(sys.argv[1]) if len(sys.argv) > 1 else None)


if __name__ == "__main__":
    sys.exit(main())
