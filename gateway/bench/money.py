"""What money costs a request: admission, hold, journal and settlement, without HTTP and without an upstream.

`python -m gateway.bench.money [--seconds N] [--rate N] [--postgres URL] [--processes N] [--save FOLDER]`

Two figures. `paced`: requests at a fixed rate on SQLite with fsync on; CPU is what the whole process takes (journal,
shipper and database threads included) less what the same pacing takes without a ledger; `added` is the time from
asking for the hold until it may be sent. `hot`: processes that share one organisation's budget on PostgreSQL, each as
fast as it can with 64 at once. The last line of standard output is one JSON object. Does not know: HTTP, caches.
"""

import argparse
import asyncio
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from gateway.bench.cases import spread
from gateway.bench.report import machine
from gateway.call import Call, Directives, Principal
from gateway.db.session import Database
from gateway.ids import uuid7
from gateway.ledger import AttemptPlan, Ledger, Settlement
from gateway.settings import LedgerSettings, Settings
from gateway.tasks import Tasks
from policies.budget import Budget
from policies.money import NANO_PER_USD, Price, Usage, bound_nano

_PRICE = Price(id="bench@1", input=150_000, output=600_000, cached_input=75_000, cache_write=150_000)
_USAGE = Usage(prompt=400, completion=120)
_AT_ONCE = 64
_ROUNDS = 3
_PATIENCE = 60.0


class Paced(Struct, kw_only=True):
    """Median, least and most over the rounds; `rate` is what was reached, requests a second."""

    rate: float
    cpu_us: dict[str, float]
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
    paced: Paced
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


async def _pace(
    ask: Callable[[int], Awaitable[float]], rate: float, seconds: float
) -> tuple[float, float, list[float]]:
    """(CPU seconds of the process, requests, times added): `ask` is begun `rate` times a second."""
    began, cpu = time.perf_counter(), time.process_time()
    times: list[float] = []
    number, tasks = 0, Tasks()

    async def timed(number: int) -> None:
        times.append(await ask(number))

    while (passed := time.perf_counter() - began) < seconds:
        while number < passed * rate:
            tasks.spawn(timed(number), "bench")
            number += 1
        await asyncio.sleep(0.001)
    await tasks.finish(_PATIENCE)
    return time.process_time() - cpu, number, times


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


async def paced(seconds: float, rate: float) -> Paced:
    """On SQLite, with an organisation's, a team's and a key's budget to compare with."""
    cpu: list[float] = []
    p50: list[float] = []
    p99: list[float] = []
    reached: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        ledger, database, tasks = await _opened(f"sqlite:///{home / 'bench.db'}", home)
        for scope in ("org", "team:acme", "key:bench"):
            await ledger.set_budget(Budget(scope=scope, limit_nano=100_000 * NANO_PER_USD), "bench")
        await _pace(lambda number: _charge(ledger, number), rate, 1.0)
        for _ in range(_ROUNDS):
            idle, count, _times = await _pace(_nothing, rate, seconds)
            spent, asked, times = await _pace(lambda number: _charge(ledger, number), rate, seconds)
            cpu.append((spent / asked - idle / count) * 1e6)
            reached.append(asked / seconds)
            ordered = sorted(times)
            p50.append(ordered[len(ordered) // 2] * 1e3)
            p99.append(ordered[len(ordered) * 99 // 100] * 1e3)
        await _closed(ledger, database, tasks)
    return Paced(
        rate=statistics.median(reached), cpu_us=spread(cpu), added_p50_ms=spread(p50), added_p99_ms=spread(p99)
    )


def _hammer(url: str, seconds: float, ready: Any, counts: Any) -> None:
    asyncio.run(_hammered(url, seconds, ready, counts))


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
    at_rate = await paced(seconds, rate)
    shared = await hot(postgres, seconds, processes) if postgres else None
    return Report(date=time.strftime("%Y-%m-%d", time.gmtime()), paced=at_rate, hot=shared, machine=machine())


def main() -> int:
    asked = argparse.ArgumentParser(description="What money costs a request.")
    asked.add_argument("--seconds", type=float, default=5.0)
    asked.add_argument("--rate", type=float, default=1_000.0)
    asked.add_argument("--postgres", help="an empty database of its own")
    asked.add_argument("--processes", type=int, default=4)
    asked.add_argument("--save", type=Path)
    given = asked.parse_args()
    found = asyncio.run(measure(given.seconds, given.rate, given.postgres, given.processes))
    text = msgspec.json.encode(found).decode()
    if given.save:
        given.save.mkdir(parents=True, exist_ok=True)
        (given.save / f"money-{found.date}.json").write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
