"""`make bench-faults`: how much longer requests take while a part hangs: Redis, or one of two upstreams.

How: the part is a process that is stopped for a while (SIGSTOP): it refuses nothing and closes nothing, which is the
worst way to fail. Load is steady and open, nothing of it was asked before; the same requests are told apart by when
they were due. For Redis: the second in which it begins to hang, the rest of that time, and afterwards. For an upstream:
those of the other one, while the hung one is asked as well.
The last line of standard output is one JSON object.
"""

import argparse
import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import msgspec
import uvloop
from msgspec import Struct

from gateway.bench import overload
from gateway.bench.overload import Asked, Kind
from gateway.bench.processes import BenchError, spare_port
from gateway.bench.report import Machine, kept
from gateway.bench.stage import AT_ONCE, HOST, pair

_WHOLE = Kind(stream=False)
_FIRST = 1.0  # seconds in which a hung part may be noticed
_HUNG_RATE = 5.0


class Phase(Struct, frozen=True):
    """Milliseconds of whole requests, from when each was due; `failed`: answers but 200."""

    requests: int
    p50_ms: float
    p99_ms: float
    worst_ms: float
    failed: int


class Faults(Struct, kw_only=True):
    """By part, by phase."""

    redis: dict[str, Phase]
    upstream: dict[str, Phase]
    rate: float
    seconds: float
    bench: str = "faults"
    date: str = ""
    machine: Machine | None = None


def phase(asked: Iterable[Asked]) -> Phase:
    """Of at least one request."""
    found = list(asked)
    took = sorted(one.ms for one in found)
    p50, p99, worst = (round(took[int(share * (len(took) - 1))], 2) for share in (0.5, 0.99, 1.0))
    return Phase(len(found), p50, p99, worst, sum(one.status != 200 for one in found))


def phases(asked: list[Asked], bounds: dict[str, float]) -> dict[str, Phase]:
    """`bounds`: where each phase ends, in seconds; in their order."""
    found: dict[str, Phase] = {}
    begin = 0.0
    for name, end in bounds.items():
        found[name] = phase(one for one in asked if begin <= one.due < end)
        begin = end
    return found


@contextmanager
def _redis(folder: Path) -> Generator[tuple[str, int]]:
    """Its address and process id."""
    binary = shutil.which("redis-server")
    if binary is None:
        raise BenchError("redis-server is not on this machine")
    port = spare_port()
    flags = ["--port", str(port), "--bind", HOST, "--save", "", "--appendonly", "no", "--dir", str(folder)]
    with subprocess.Popen([binary, *flags], stdout=subprocess.DEVNULL) as process:  # noqa: S603 - no shell
        try:
            yield f"redis://{HOST}:{port}/0", process.pid
        finally:
            process.send_signal(signal.SIGCONT)
            process.terminate()


async def _hang(pid: int, at: float, until: float) -> None:
    await asyncio.sleep(at)
    os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(until - at)
    finally:
        os.kill(pid, signal.SIGCONT)


async def _redis_hangs(gateway: overload.Generator, pid: int, rate: float, seconds: float) -> dict[str, Phase]:
    await gateway.step(rate, 2.0)  # connections
    async with asyncio.TaskGroup() as group:
        group.create_task(_hang(pid, seconds, 2 * seconds))
        step = group.create_task(gateway.step(rate, 3 * seconds))
    bounds = {"before": seconds, "first_second": seconds + _FIRST, "hung": 2 * seconds, "after": 3 * seconds}
    return phases(step.result(), bounds)


async def _upstream_hangs(
    other: overload.Generator, hung: overload.Generator, pid: int, rate: float, seconds: float
) -> dict[str, Phase]:
    for one in (other, hung):
        await one.step(rate, 2.0)
    async with asyncio.TaskGroup() as group:
        group.create_task(_hang(pid, seconds, 2 * seconds))
        group.create_task(hung.step(_HUNG_RATE, 3 * seconds))
        step = group.create_task(other.step(rate, 3 * seconds))
    return phases(step.result(), {"before": seconds, "hung": 2 * seconds, "after": 3 * seconds})


def run(rate: float, seconds: float, save: Path | None) -> int:
    """Measure, print, keep. Exit code 1, with the reason, when a figure cannot be had."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nearhit-faults-")))
        try:
            address, pid = stack.enter_context(_redis(folder))
            gateway, upstreams = pair(stack, folder, AT_ONCE, f"redis: {address}\n")
            redis = uvloop.run(_redis_hangs(overload.Generator(gateway.plain, _WHOLE), pid, rate, seconds))
            sys.stderr.write(f"redis {redis}\n")
            other, hung = (overload.Generator(target, _WHOLE) for target in (gateway.plain, gateway.paced))
            stopped = upstreams[1].pid or 0
            upstream = uvloop.run(_upstream_hangs(other, hung, stopped, rate, seconds))
        except (BenchError, OSError, httpx.HTTPError, msgspec.MsgspecError) as error:
            sys.stdout.write(f"bench faults: {error}\n")
            return 1
    result = Faults(redis=redis, upstream=upstream, rate=rate, seconds=seconds)
    sys.stdout.write(f"{kept(result, 'faults', save)}\n")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m gateway.bench.faults", description=__doc__)
    parser.add_argument("--rate", type=float, default=100.0, help="requests per second")
    parser.add_argument("--seconds", type=float, default=10.0, help="before, while and after it hangs")
    parser.add_argument("--save", type=Path, help="folder to keep the result in")
    given = parser.parse_args()
    return run(given.rate, given.seconds, given.save)


if __name__ == "__main__":
    sys.exit(main())
