"""What money costs a request: admission, hold, journal and settlement, without HTTP and without an upstream.

`python -m gateway.bench.money [--seconds N] [--rate N] [--postgres URL] [--processes N] [--save FOLDER]`

Two figures. `random`, `even`: requests at a fixed rate on SQLite with fsync on, at random instants as from many clients
(`gateway.bench.arrivals`) or evenly spaced, on the event loop and with the interpreter's settings of a worker. CPU is
what the whole process takes (journal, shipper and database threads included) less what the same arrivals take without
a ledger; `added` is the time from asking for the hold until it may be sent. `hot`: processes that share one
organisation's budget on PostgreSQL, each as fast as it can with 64 at once. The last line of standard output is one
JSON object. Does not know: HTTP, caches.
"""

import argparse
import asyncio
import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import uvloop
from msgspec import Struct

from gateway.bench import arrivals
from gateway.bench.cases import quantile, spread
from gateway.bench.report import machine
from gateway.call import Call, Directives, Principal
from gateway.db.session import Database
from gateway.ids import uuid7
from gateway.ledger import AttemptPlan, Ledger, Settlement
from gateway.server import tune
from gateway.settings import LedgerSettings, Settings
from gateway.tasks import Tasks
from policies.budget import Budget
from policies.money import NANO_PER_USD, Price, Usage, bound_nano

_PRICE = Price(id="bench@1", input=150_000, output=600_000, cached_input=75_000, cache_write=150_000)
_USAGE = Usage(prompt=400, completion=120)
_AT_ONCE = 64
_ROUNDS = 3
_PATIENCE = 60.0
_SHIPPED = 1.0  # seconds after which what was asked for is in the database


class Paced(Struct, kw_only=True):
    """Median, least and most over the rounds; `rate` is what was reached, requests a second.

    `threads`: CPU µs per request of each thread, median; empty where the system does not tell.
    """

    rate: float
    cpu_us: dict[str, float]
    threads: dict[str, float]
    added_p50_ms: dict[str, float]
    added_p99_ms: dict[str, float]


class Hot(Struct, kw_only=True):
    """A second, all processes together. `admitted`: held, journalled (fsync) and settled; `posted`: the same counted
    until every one of them stood in the database, which is what can be sustained.
    """

    processes: int
    admitted: dict[str, float]
    posted: dict[str, float]


class Report(Struct, kw_only=True):
    """The last line of standard output. `hot` None: no PostgreSQL was given."""

    date: str
    random: Paced
    even: Paced
    hot: Hot | None
    machine: Any


def _call(number: int) -> Call:
    """A request of one key of one team; as many users as tens of requests."""
    return Call(
        id=uuid7(),
        operation="chat",
        principal=Principal(key_id="bench", team="acme", project="app"),
        body={"model": "bench/model"},
        model="bench/model",
        stream=False,
        include_usage=False,
        directives=Directives(user=f"user{number % 10}"),
        received=time.monotonic(),
        at=time.time(),
        deadline=time.monotonic() + 60,
    )


def _plan(call: Call) -> AttemptPlan:
    return AttemptPlan(
        id=f"{call.id}.1",
        request_id=call.id,
        provider="bench",
        model="model",
        price=_PRICE,
        reserve_nano=bound_nano(600, 512, _PRICE),
        input_bound=600,
        max_output=512,
    )


async def _charge(ledger: Ledger, number: int) -> float:
    """One attempt from hold to settlement; answers how long it took until it might have been sent, seconds."""
    call = _call(number)
    plan = _plan(call)
    began = time.perf_counter()
    hold = await ledger.hold(call, plan)
    held = time.perf_counter() - began
    ledger.settle(hold, Settlement(usage=_USAGE, source="provider", ended="complete"))
    return held


async def _nothing(number: int) -> float:
    _plan(_call(number))
    return 0.0


class _Run(Struct):
    """CPU µs per request: of the process, and of its threads; times added, ms."""

    count: int
    cpu: float
    threads: dict[str, float]
    added: list[float]


async def _pace(ask: Callable[[int], Awaitable[float]], rate: float, seconds: float, spacing: arrivals.Spacing) -> _Run:
    """`ask` is begun `rate` times a second."""
    tasks, number, added = Tasks(), 0, list[float]()

    async def timed(number: int) -> None:
        added.append(await ask(number) * 1e3)

    def begin() -> None:
        nonlocal number
        number += 1
        tasks.spawn(timed(number), "bench")

    before, cpu = _threads(), time.process_time()
    count = await arrivals.each(rate, seconds, spacing, begin)
    await tasks.finish(_PATIENCE)
    await asyncio.sleep(_SHIPPED)
    spent, after = time.process_time() - cpu, _threads()
    threads = {name: (after[name] - before.get(name, 0.0)) / count for name in after}
    return _Run(count, spent / count * 1e6, threads, added)


def _threads() -> dict[str, float]:
    """CPU µs so far by name of the thread."""
    found: dict[str, float] = {}
    for thread in threading.enumerate():
        told = Path(f"/proc/self/task/{thread.native_id}/schedstat")
        if told.exists():
            name = "database" if "connection_worker" in thread.name else thread.name
            found[name] = found.get(name, 0.0) + int(told.read_text().split()[0]) / 1e3
    return found


async def _opened(url: str, home: Path) -> tuple[Ledger, Database, Tasks]:
    database, tasks = Database(url), Tasks()
    await database.start()
    settings = Settings(home=home, ledger=LedgerSettings(durability="fsync"))
    made = Ledger(database, home / "journal", settings=settings, now=time.time, monotonic=time.monotonic, tasks=tasks)
    await made.start()
    return made, database, tasks


async def _closed(ledger: Ledger, database: Database, tasks: Tasks) -> None:
    await ledger.close()
    await tasks.finish(5.0)
    await database.close()


async def paced(seconds: float, rate: float, spacing: arrivals.Spacing) -> Paced:
    """On SQLite, with an organisation's, a team's and a key's budget to compare with."""
    idle: list[_Run] = []
    busy: list[_Run] = []
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        ledger, database, tasks = await _opened(f"sqlite:///{home / 'bench.db'}", home)
        for scope in ("org", "team:acme", "key:bench"):
            await ledger.set_budget(Budget(scope=scope, limit_nano=100_000 * NANO_PER_USD), "bench")
        await _pace(lambda number: _charge(ledger, number), rate, 1.0, spacing)
        for _ in range(_ROUNDS):
            idle.append(await _pace(_nothing, rate, seconds, spacing))
            busy.append(await _pace(lambda number: _charge(ledger, number), rate, seconds, spacing))
        await _closed(ledger, database, tasks)
    pairs = list(zip(busy, idle, strict=True))
    threads = {
        name: [run.threads[name] - nothing.threads.get(name, 0.0) for run, nothing in pairs] for name in busy[0].threads
    }
    return Paced(
        rate=statistics.median(run.count / seconds for run in busy),
        cpu_us=spread([run.cpu - nothing.cpu for run, nothing in pairs]),
        threads={name: round(statistics.median(values), 1) for name, values in threads.items()},
        added_p50_ms=spread([quantile(run.added, 0.5) for run in busy]),
        added_p99_ms=spread([quantile(run.added, 0.99) for run in busy]),
    )


def _hammer(url: str, seconds: float, ready: Any, counts: Any) -> None:
    tune()
    uvloop.run(_hammered(url, seconds, ready, counts))


async def _hammered(url: str, seconds: float, ready: Any, counts: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ledger, database, tasks = await _opened(url, Path(folder))
        await asyncio.to_thread(ready.wait)
        until, done = time.monotonic() + seconds, 0

        async def one(lane: int) -> None:
            nonlocal done
            while time.monotonic() < until:
                await _charge(ledger, lane)
                done += 1

        await asyncio.gather(*(one(lane) for lane in range(_AT_ONCE)))
        began = until - seconds
        await ledger.catch_up()
        counts.put((done, time.monotonic() - began))
        await _closed(ledger, database, tasks)


async def hot(url: str, seconds: float, processes: int) -> Hot:
    """Every process draws on the same budget; what they admit together."""
    with tempfile.TemporaryDirectory() as folder:
        ledger, database, tasks = await _opened(url, Path(folder))
        await ledger.set_budget(Budget(scope="org", limit_nano=100_000 * NANO_PER_USD), "bench")
        await _closed(ledger, database, tasks)
    context = multiprocessing.get_context("spawn")
    admitted: list[float] = []
    posted: list[float] = []
    for _ in range(_ROUNDS):
        ready, counts = context.Barrier(processes), context.Queue()
        started = [
            context.Process(target=_hammer, args=(url, seconds, ready, counts), daemon=True) for _ in range(processes)
        ]
        for process in started:
            process.start()
        found = [counts.get(timeout=seconds + 300) for _ in started]
        total = sum(done for done, _ in found)
        admitted.append(total / seconds)
        posted.append(total / max(took for _, took in found))
        for process in started:
            process.join(60)
    return Hot(processes=processes, admitted=spread(admitted), posted=spread(posted))


async def measure(seconds: float, rate: float, postgres: str | None, processes: int) -> Report:
    scattered, even = await paced(seconds, rate, "random"), await paced(seconds, rate, "even")
    shared = await hot(postgres, seconds, processes) if postgres else None
    today = time.strftime("%Y-%m-%d", time.gmtime())
    return Report(date=today, random=scattered, even=even, hot=shared, machine=machine())


def main() -> int:
    asked = argparse.ArgumentParser(description="What money costs a request.")
    asked.add_argument("--seconds", type=float, default=5.0)
    asked.add_argument("--rate", type=float, default=1_000.0)
    asked.add_argument("--postgres", help="an empty database of its own")
    asked.add_argument("--processes", type=int, default=4)
    asked.add_argument("--save", type=Path)
    given = asked.parse_args()
    tune()
    found = uvloop.run(measure(given.seconds, given.rate, given.postgres, given.processes))
    text = msgspec.json.encode(found).decode()
    if given.save:
        given.save.mkdir(parents=True, exist_ok=True)
        (given.save / f"money-{found.date}.json").write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
