"""`make soak`: an hour or more of mixed traffic, and whether anything grows: memory, descriptors, threads.

How: a gateway with the exact cache before a scripted upstream; several keys ask again and again, whole and streamed,
some repeated, some left in the middle, some refused. Every few seconds the worker's figures are read from /proc. The
cache holds few answers, so that it is full after minutes and pushes one out for each it keeps: what grows after the
warm-up grows for ever. The slope of memory is Theil and Sen's (the median over all pairs), which a few odd samples do
not move. The last line of standard output is one JSON object.
"""

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path

import httpx
import msgspec
import uvloop
from msgspec import Struct

from gateway.bench.asks import Target, chat, fresh
from gateway.bench.load import Connection
from gateway.bench.processes import BenchError, memory_mb
from gateway.bench.report import Machine, kept
from gateway.bench.stage import alone

_EVERY = 5.0
_CONNECTIONS = 24
_PAUSE = 0.02
_REPEATED, _LEFT, _WRONG, _STREAMED = 0.3, 0.05, 0.02, 0.5
_KNOWN = 400  # prompts each client asks again
_ENTRIES = 5_000
_MOST_SAMPLES = 400  # of which all pairs are looked at
_HOUR = 3_600.0


class Sample(Struct, frozen=True):
    """The worker at one moment, `at` seconds into the run; memory in MiB."""

    at: float
    rss_mib: float
    descriptors: int
    threads: int


class Soak(Struct, kw_only=True):
    """Slopes are per hour, after the warm-up; `high` bounds that of memory with a chance of 95 %."""

    seconds: float
    warm_up: float
    requests: int
    statuses: dict[str, int]
    left: int
    rss_first_mib: float
    rss_last_mib: float
    rss_slope_mib_h: float
    rss_slope_high_mib_h: float
    descriptors_slope_h: float
    threads_slope_h: float
    samples: int
    entries: int = _ENTRIES
    bench: str = "soak"
    date: str = ""
    machine: Machine | None = None


class Traffic:
    """What is asked, and what came of it."""

    def __init__(self, target: Target, seed: int) -> None:
        self._target = target
        self._draw = random.Random(seed)  # noqa: S311 - repeatable traffic, nothing secret
        self._prompts = fresh(seed)
        self._known: list[str] = []
        self.statuses: Counter[str] = Counter()
        self.left = 0

    async def go_on(self, until: float) -> None:
        """One client after the other on one connection at a time, until then."""
        connection = await Connection.open(*self._target.where)
        while time.perf_counter() < until:
            try:
                connection = await self._once(connection)
            except (OSError, TimeoutError):
                self.statuses["lost"] += 1
                connection = await self._again()
            await asyncio.sleep(self._draw.random() * 2 * _PAUSE)
        connection.close()

    async def _again(self) -> Connection:
        while True:
            try:
                return await Connection.open(*self._target.where)
            except OSError:
                await asyncio.sleep(0.2)

    async def _once(self, connection: Connection) -> Connection:
        chosen = self._draw.random()
        if chosen < _WRONG:
            wrong = msgspec.structs.replace(self._target, key="sk-nh-nobody")
            self.statuses[str((await connection.exchange(chat(wrong, "x"))).status)] += 1
            return connection
        request = chat(self._target, self._prompt(), stream=self._draw.random() < _STREAMED)
        if chosen < _WRONG + _LEFT:
            asking = asyncio.get_running_loop().create_task(connection.exchange(request))
            await asyncio.sleep(0.01)
            connection.close()
            await asyncio.gather(asking, return_exceptions=True)
            self.left += 1
            return await self._again()
        self.statuses[str((await connection.exchange(request)).status)] += 1
        return connection

    def _prompt(self) -> str:
        if self._known and self._draw.random() < _REPEATED:
            return self._draw.choice(self._known)
        prompt = next(self._prompts)
        if len(self._known) < _KNOWN:
            self._known.append(prompt)
        return prompt


def looked(pid: int, at: float) -> Sample:
    process = Path("/proc") / str(pid)
    return Sample(
        at=at,
        rss_mib=memory_mb(pid) * 1e6 / (1 << 20),
        descriptors=len(list((process / "fd").iterdir())),
        threads=len(list((process / "task").iterdir())),
    )


def slopes(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Theil and Sen's slope per hour, and the upper end of its 95 % interval (Sen 1968, by Kendall's variance)."""
    step = max(1, len(points) // _MOST_SAMPLES)
    kept = points[::step]
    found = sorted((b[1] - a[1]) / (b[0] - a[0]) * _HOUR for a, b in combinations(kept, 2) if b[0] > a[0])
    if not found:
        return 0.0, 0.0
    n = len(kept)
    spread = 1.96 * (n * (n - 1) * (2 * n + 5) / 18) ** 0.5
    return statistics.median(found), found[min(len(found) - 1, int((len(found) + spread) / 2) + 1)]


async def _measure(target: Target, pid: int, seconds: float, warm_up: float) -> Soak:
    begun = time.perf_counter()
    traffic = [Traffic(target, seed) for seed in range(_CONNECTIONS)]
    samples: list[Sample] = []
    async with asyncio.TaskGroup() as group:
        for one in traffic:
            group.create_task(one.go_on(begun + seconds))
        while (at := time.perf_counter() - begun) < seconds:
            samples.append(looked(pid, at))
            await asyncio.sleep(min(_EVERY, seconds / 20))
    warm = [sample for sample in samples if sample.at >= warm_up] or samples
    slope, high = slopes([(sample.at, sample.rss_mib) for sample in warm])
    statuses = Counter[str]()
    for one in traffic:
        statuses.update(one.statuses)
    return Soak(
        seconds=seconds,
        warm_up=warm_up,
        requests=statuses.total(),
        statuses=dict(statuses),
        left=sum(one.left for one in traffic),
        rss_first_mib=round(warm[0].rss_mib, 1),
        rss_last_mib=round(warm[-1].rss_mib, 1),
        rss_slope_mib_h=round(slope, 2),
        rss_slope_high_mib_h=round(high, 2),
        descriptors_slope_h=round(slopes([(one.at, float(one.descriptors)) for one in warm])[0], 2),
        threads_slope_h=round(slopes([(one.at, float(one.threads)) for one in warm])[0], 2),
        samples=len(warm),
    )


def run(seconds: float, warm_up: float, save: Path | None) -> int:
    """Measure, print, keep. Exit code 1, with the reason, when a figure cannot be had."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nearhit-soak-")))
        try:
            gateway = alone(stack, folder, ("--tokens", "24", "--ttft-ms", "20", "--tpot-ms", "2"), entries=_ENTRIES)
            result = uvloop.run(_measure(gateway.plain, gateway.pids[0], seconds, warm_up))
        except (BenchError, OSError, httpx.HTTPError) as error:
            sys.stdout.write(f"soak: {error}\n")
            return 1
    sys.stdout.write(f"{kept(result, 'soak', save)}\n")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m gateway.bench.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=_HOUR, help="length of the run")
    parser.add_argument("--warm-up", type=float, help="seconds that do not count; a third where left out")
    parser.add_argument("--save", type=Path, help="folder to keep the result in")
    given = parser.parse_args()
    return run(given.seconds, given.seconds / 3 if given.warm_up is None else given.warm_up, given.save)


if __name__ == "__main__":
    sys.exit(main())
