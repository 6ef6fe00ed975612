"""`make bench-slow`: what 500 clients that never finish a request do to the ones that do.

How: the gateway on one core, this load generator and an upstream on another. A steady load of whole requests, once
beside nothing and once beside slow clients in turns: half of them send a head and never its end, half a head, a known
key and a body that never ends; each gets a byte further twice a second, and begins anew when it is hung up on.
The last line of standard output is one JSON object.
"""

import argparse
import asyncio
import contextlib
import itertools
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import httpx
import uvloop
from msgspec import Struct

from gateway.bench.asks import Target, chat, fresh
from gateway.bench.cases import spread
from gateway.bench.load import drive
from gateway.bench.processes import BenchError
from gateway.bench.report import Machine, Spread, kept
from gateway.bench.stage import AT_ONCE, alone

_CONNECTIONS = 16
_DRIP = 0.5
_HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: slow\r\nx-slow: "


class Slow(Struct, kw_only=True):
    """Milliseconds and requests a second over the rounds, without and with slow clients; `failed`: answers but 200."""

    p50_ms: dict[str, Spread]
    p99_ms: dict[str, Spread]
    rps: dict[str, Spread]
    failed: dict[str, int]
    clients: int
    rate: float
    seconds: float
    rounds: int
    bench: str = "slow"
    date: str = ""
    machine: Machine | None = None


@asynccontextmanager
async def slow_clients(target: Target, number: int) -> AsyncGenerator[None, None]:
    """They are all connected when this is entered."""
    body = b"authorization: Bearer %b\r\ncontent-type: application/json\r\ncontent-length: 4000\r\n\r\n{"
    bodies = _HEAD + b"0\r\n" + body % target.key.encode()
    connected = asyncio.Semaphore(0)
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_never_done(target.where, _HEAD if one % 2 else bodies, connected))
            for one in range(number)
        ]
        for _ in range(number):
            await connected.acquire()
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


async def _never_done(where: tuple[str, int], begun: bytes, connected: asyncio.Semaphore) -> None:
    """One slow client, for ever."""
    first = True
    while True:
        reader, writer = await asyncio.open_connection(*where)
        try:
            writer.write(begun)
            if first:
                connected.release()
                first = False
            with contextlib.suppress(ConnectionError):
                while not reader.at_eof():
                    writer.write(b" ")
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(reader.read(4_096), _DRIP)
        finally:
            writer.transport.abort()


class Arm(Struct):
    """What one side of the comparison saw, a figure a round."""

    p50: list[float] = []
    p99: list[float] = []
    rps: list[float] = []
    failed: int = 0

    async def measure(self, target: Target, rate: float, seconds: float, numbers: "itertools.count[int]") -> None:
        prompts = fresh(next(numbers))
        sample = await drive(
            target.where, lambda: chat(target, next(prompts)), connections=_CONNECTIONS, seconds=seconds, rate=rate
        )
        totals = sorted(sample.totals)
        self.p50.append(totals[len(totals) // 2] * 1e3)
        self.p99.append(totals[int(0.99 * len(totals))] * 1e3)
        self.rps.append(sample.rate)
        self.failed += sum(times for status, times in sample.statuses.items() if status != 200)


async def _measure(target: Target, clients: int, rate: float, seconds: float, rounds: int) -> Slow:
    arms, numbers = {"without": Arm(), "with": Arm()}, itertools.count(11)
    await Arm().measure(target, rate, 2.0, numbers)  # caches, connections
    for _ in range(rounds):
        await arms["without"].measure(target, rate, seconds, numbers)
        async with slow_clients(target, clients):
            await arms["with"].measure(target, rate, seconds, numbers)
        sys.stderr.write(", ".join(f"{name} p99 {arm.p99[-1]:.1f} ms" for name, arm in arms.items()) + "\n")
    return Slow(
        p50_ms={name: spread(arm.p50) for name, arm in arms.items()},
        p99_ms={name: spread(arm.p99) for name, arm in arms.items()},
        rps={name: spread(arm.rps) for name, arm in arms.items()},
        failed={name: arm.failed for name, arm in arms.items()},
        clients=clients,
        rate=rate,
        seconds=seconds,
        rounds=rounds,
    )


def main() -> int:
    """Measure, print, keep. Exit code 1, with the reason, when a figure cannot be had."""
    parser = argparse.ArgumentParser(prog="python -m gateway.bench.slow", description=__doc__)
    parser.add_argument("--clients", type=int, default=500, help="slow ones")
    parser.add_argument("--rate", type=float, default=100.0, help="whole requests a second")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each measurement")
    parser.add_argument("--rounds", type=int, default=5, help="of both sides")
    parser.add_argument("--save", type=Path, help="folder to keep the result in")
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nearhit-slow-")))
        try:
            target = alone(stack, folder, AT_ONCE).plain
            result = uvloop.run(_measure(target, given.clients, given.rate, given.seconds, given.rounds))
        except (BenchError, OSError, httpx.HTTPError) as error:
            sys.stdout.write(f"bench slow: {error}\n")
            return 1
    sys.stdout.write(f"{kept(result, 'slow', given.save)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
