"""`make bench-overload`: what a gateway still does at 2, 5 and 10 times its capacity, and how soon that is over.

How: the gateway on one core, an upstream with a fixed pace and this load generator on another. Load is open (a request
is due when it is due, whether or not earlier ones were answered). Capacity is the highest rate at which the gateway
itself takes at most 25 ms of 99 % of requests and refuses none; a rate that fails gets a second try. Then steps at
multiples of it, and one at half of it. Goodput: answered whole with 200, at most 250 ms beyond the upstream's own time.
Answers are streams of 51 tokens, as chats are, or (`--whole`) come at once: those cost the gateway so little that at
ten times the capacity most of its time goes into saying no.
Caveats: one machine; where the generator itself cannot keep up, `offered_rps` says what it really sent. What it is late
by in sending, and in reading what the kernel already has, is measured and told apart from what the gateway took.
The last line of standard output is one JSON object.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import uvloop
from msgspec import Struct

from gateway.bench.asks import Target, chat, fresh
from gateway.bench.load import Connection
from gateway.bench.processes import BenchError, memory_mb
from gateway.bench.report import Machine, kept
from gateway.bench.stage import alone

TTFT_MS, TPOT_MS, TOKENS = 200, 5, 51
TIMES = (2.0, 5.0, 10.0)
IN_TIME_MS = 250.0
CALM_MS = 25.0
_FIRST_RATE = 40.0
_STEEP, _FINE = 1.5, 1.12
_SECOND = 1.0
_STALL = 30.0
_KNOWN = 3.0  # seconds after which an overload has been noticed


class Kind(Struct, frozen=True):
    """What is asked for: streams, or answers that come at once. `upstream_ms`: what the upstream takes for one."""

    stream: bool

    @property
    def upstream_ms(self) -> float:
        return TTFT_MS + TPOT_MS * (TOKENS - 1) * self.stream

    @property
    def pace(self) -> tuple[str, ...]:
        """Flags of the scripted upstream."""
        tpot = TPOT_MS * self.stream
        return ("--tokens", f"{TOKENS}", "--ttft-ms", f"{TTFT_MS}", "--tpot-ms", f"{tpot}")


class Asked(Struct, frozen=True):
    """One request: when it was due and when it went (seconds into the step), what came, how long after it was due, ms.

    `status` 0: nothing came. `unread`: of these `ms`, how many a refusal waited for this generator to read it.
    """

    due: float
    sent: float
    status: int
    ms: float
    unread: float = 0.0

    @property
    def gateway_ms(self) -> float:
        """Without what this generator was late by, in sending and in reading."""
        return max(0.0, self.ms - (self.sent - self.due) * 1e3 - self.unread)


class Step(Struct, kw_only=True):
    """One step of load. Shares are of the capacity; `p99_own_ms` is the gateway's own part of what it answered.

    `refusal_p99_ms`: from when the request was due; `refusal_gateway_p99_ms`: of that, what was not this generator's
    own lateness; `refusal_later_p99_ms`: the same of what was due after the first three seconds, when it is known.
    `late_p99_ms`: how late this generator sent. Where it is large, the generator was what could not keep up.
    """

    times: float
    offered_rps: float
    goodput_rps: float
    goodput_share: float
    answered: int
    refused: int
    failed: int
    p50_own_ms: float | None
    p99_own_ms: float | None
    refusal_p99_ms: float | None
    refusal_gateway_p99_ms: float | None
    refusal_later_p99_ms: float | None
    late_p99_ms: float | None


class Overload(Struct, kw_only=True):
    """`recovery_s`: seconds after the last step until a whole second passed without a refusal and nearly as calm."""

    capacity_rps: float
    calm_p99_own_ms: float | None
    steps: list[Step]
    recovery_s: float | None
    seconds: float
    rss_mb: float
    upstream_ms: float
    stream: bool
    bench: str = "overload"
    date: str = ""
    machine: Machine | None = None


class Generator:
    """Open load over kept connections; a connection that the gateway closes is opened again."""

    def __init__(self, target: Target, kind: Kind) -> None:
        self._target = target
        self.kind = kind
        self._free: list[Connection] = []
        self._prompts = fresh(7)

    async def step(self, rate: float, seconds: float) -> list[Asked]:
        """`rate` requests a second, evenly, for so long; waits until all are answered."""
        found: list[Asked] = []
        begun = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for number, due in enumerate(_dues(rate, seconds)):
                if (wait := begun + due - time.perf_counter()) > 0:
                    await asyncio.sleep(wait)
                elif number % 64 == 0:
                    await asyncio.sleep(0)
                group.create_task(self._ask(begun + due, due, found))
        return found

    async def _ask(self, at: float, due: float, found: list[Asked]) -> None:
        status, unread, sent = 0, 0.0, time.perf_counter()
        try:
            connection = self._free.pop() if self._free else await Connection.open(*self._target.where)
            sent = time.perf_counter()
            async with asyncio.timeout(_STALL):
                asked = chat(self._target, next(self._prompts), stream=self.kind.stream)
                answer = await connection.exchange(asked)
            status, unread = answer.status, answer.unread * 1e3
            self._free.append(connection)
        except (OSError, TimeoutError):
            pass  # counted as failed: status 0
        found.append(Asked(due, sent - at + due, status, (time.perf_counter() - at) * 1e3, unread))

    def close(self) -> None:
        for connection in self._free:
            connection.close()


def _dues(rate: float, seconds: float) -> Iterator[float]:
    for number in range(int(rate * seconds)):
        yield number / rate


class Judge(Struct, frozen=True):
    """What a step of `seconds` says, beside this capacity and what the upstream itself takes."""

    upstream_ms: float
    capacity: float
    seconds: float


def told(asked: list[Asked], times: float, by: Judge) -> Step:
    own = sorted(one.ms - by.upstream_ms for one in asked if one.status == 200)
    refused = [one for one in asked if one.status in (429, 503)]
    good = sum(1 for one in own if one <= IN_TIME_MS) / by.seconds
    return Step(
        times=times,
        offered_rps=round(len(asked) / max(by.seconds, max((one.sent for one in asked), default=0.0)), 1),
        goodput_rps=round(good, 1),
        goodput_share=round(good / by.capacity, 4),
        answered=len(own),
        refused=len(refused),
        failed=len(asked) - len(own) - len(refused),
        p50_own_ms=_rank(own, 0.50),
        p99_own_ms=_rank(own, 0.99),
        refusal_p99_ms=_rank(sorted(one.ms for one in refused), 0.99),
        refusal_gateway_p99_ms=_rank(sorted(one.gateway_ms for one in refused), 0.99),
        refusal_later_p99_ms=_rank(sorted(one.gateway_ms for one in refused if one.due >= _KNOWN), 0.99),
        late_p99_ms=_rank(sorted((one.sent - one.due) * 1e3 for one in asked), 0.99),
    )


def _rank(values: list[float], share: float) -> float | None:
    """Of sorted values."""
    return round(values[min(len(values) - 1, int(share * len(values)))], 2) if values else None


async def _calm(generator: Generator, rate: float, seconds: float, calm: float) -> Step | None:
    """The step at that rate, where one of two tries was calm: a hiccup of the machine is not the capacity."""
    for _ in range(2):
        judge = Judge(generator.kind.upstream_ms, rate, seconds)
        step = told(await generator.step(rate, seconds), 1.0, judge)
        sys.stderr.write(f"{rate:8.1f}/s  p99 own {step.p99_own_ms} ms, refused {step.refused}\n")
        await asyncio.sleep(0.5)
        if step.refused == step.failed == 0 and step.p99_own_ms is not None and step.p99_own_ms <= calm:
            return step
    return None


async def _capacity(generator: Generator, seconds: float, calm: float) -> Step:
    """Steep steps until one is too much, then fine ones from the last that was not."""
    best = await _calm(generator, _FIRST_RATE, seconds, calm)
    if best is None:
        raise BenchError(f"at {_FIRST_RATE:g} requests a second this machine is not quiet")
    for factor in (_STEEP, _FINE):
        while (step := await _calm(generator, best.offered_rps * factor, seconds, calm)) is not None:
            best = step
    return best


async def _measure(target: Target, kind: Kind, seconds: float, calm: float, pid: int) -> Overload:
    generator = Generator(target, kind)
    await generator.step(_FIRST_RATE, 1.0)  # caches, connections
    quiet = await _capacity(generator, min(seconds, 10.0), calm)
    capacity = quiet.offered_rps
    steps: list[Step] = []
    for times in TIMES:
        asked = await generator.step(times * capacity, seconds)
        steps.append(told(asked, times, Judge(kind.upstream_ms, capacity, seconds)))
        sys.stderr.write(f"{steps[-1]}\n")
    after = await generator.step(capacity / 2, 15.0)
    generator.close()
    return Overload(
        capacity_rps=round(capacity, 1),
        calm_p99_own_ms=quiet.p99_own_ms,
        steps=steps,
        recovery_s=recovered(after, kind.upstream_ms, (quiet.p99_own_ms or calm) * 1.1),
        seconds=seconds,
        rss_mb=round(memory_mb(pid), 1),
        upstream_ms=kind.upstream_ms,
        stream=kind.stream,
    )


def recovered(asked: list[Asked], upstream_ms: float, calm_ms: float) -> float | None:
    """The first whole second without a refusal whose p99 is as calm as it was; None when there was none."""
    last = int(max((one.due for one in asked), default=0.0))
    for second in range(last + 1):
        inside = [one for one in asked if second <= one.due < second + _SECOND]
        own = sorted(one.ms - upstream_ms for one in inside)
        if inside and all(one.status == 200 for one in inside) and (_rank(own, 0.99) or 0.0) <= max(calm_ms, 5.0):
            return float(second)
    return None


def run(kind: Kind, seconds: float, calm: float, save: Path | None) -> int:
    """Measure, print, keep. Exit code 1, with the reason, when a figure cannot be had."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nearhit-overload-")))
        try:
            gateway = alone(stack, folder, kind.pace)
            result = uvloop.run(_measure(gateway.plain, kind, seconds, calm, gateway.pids[0]))
        except (BenchError, OSError, httpx.HTTPError) as error:
            sys.stdout.write(f"bench overload: {error}\n")
            return 1
    sys.stdout.write(f"{kept(result, 'overload' if kind.stream else 'overload-whole', save)}\n")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m gateway.bench.overload", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each step")
    parser.add_argument("--calm-ms", type=float, default=CALM_MS, help="the p99 that capacity is defined by")
    parser.add_argument("--whole", action="store_true", help="answers that come at once instead of streams")
    parser.add_argument("--save", type=Path, help="folder to keep the result in")
    given = parser.parse_args()
    return run(Kind(not given.whole), given.seconds, given.calm_ms, given.save)


if __name__ == "__main__":
    sys.exit(main())
