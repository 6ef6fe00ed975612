"""What routing and translation cost: decisions, failover, calls under total failure, languages of upstreams.

`python -m gateway.bench.routing [--times N] [--save FOLDER]`

    decision    one choice among fifty deployments, in microseconds of CPU, by strategy and size of the prompt
    failover    what a first provider that refuses at once adds to the answer of the second, its refusal included
    failure     upstream calls for each request while every upstream of a route fails, one after another and at once
    takeover    what a crowd waits for whose first provider refuses it at once, before one that takes two seconds
    translation CPU per request and per streamed event, by language (`gateway.bench.translation`)

The last line of standard output is one JSON object. Failover and failure go over loopback to scripted upstreams,
money included. Does not know: caches, the HTTP of clients.
"""

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from gateway.bench.report import machine
from gateway.bench.stand import Stand, stand
from gateway.bench.translation import events, per, requests
from gateway.call import Body, Call, Directives, Principal
from gateway.catalog import Route, Target
from gateway.deployments import Deployments
from gateway.model_settings import ModelSettings, RouteEntry
from gateway.routing import Router
from gateway.scripted_calls import Options
from gateway.settings import ProviderSettings, Settings
from gateway.upstreams import Upstreams
from policies.money import Price
from policies.routing import known
from policies.routing.samples import MOST

_PLACES = 50
_REQUESTS = 200
_SIZES = (200, 8_000, 60_000)  # bytes of a prompt
_LONG = 300.0
_CROWDS = ((60, 2), (60, 3), (60, 6), (20, 6))  # requests at once, and places of a route that fails as a whole
_TAKEN_OVER, _SLOW = 20, 2_000.0  # requests at once, and milliseconds that the place takes to which they turn
_encode = msgspec.json.Encoder().encode


class Report(Struct, kw_only=True):
    """Microseconds of CPU, but wall clock where a name says otherwise; medians over the rounds."""

    date: str
    decision_us: dict[str, dict[str, float]]
    failover_added_ms: float
    calls_per_request: float
    calls_per_request_at_once: dict[str, float]
    taken_over_s: float
    request_us: dict[str, dict[str, float]]
    event_us: dict[str, float]
    machine: Any


def decisions(times: int) -> dict[str, dict[str, float]]:
    """The whole choice among fifty places of which a tenth is shut; a prompt's beginning is at none, one or all."""
    found: dict[str, dict[str, float]] = {}
    for size in _SIZES:
        call = _call("words " * (size // 6))
        for name in known():
            found.setdefault(name, {})[f"{size} B"] = _decision(call, name, 0, times)
        for holders in (1, _PLACES):
            row = found.setdefault(f"prefix_affine, held by {holders}", {})
            row[f"{size} B"] = _decision(call, "prefix_affine", holders, times)
        row = found.setdefault("weighted, a session at its home", {})
        row[f"{size} B"] = _decision(call, "weighted", 0, times, sticky="session")
    return found


def _decision(call: Call, name: str, holders: int, times: int, *, sticky: Literal["none", "session"] = "none") -> float:
    """`holders`: places to which the prompt was sent before."""
    names = [f"p{number}" for number in range(_PLACES)]
    settings = Settings(providers={name: ProviderSettings(kind="vllm") for name in names})
    price = Price(id="p", input=150_000, output=600_000, cached_input=0, cache_write=0)
    deployments = Deployments(monotonic=time.monotonic)
    router = Router(
        Upstreams({}, settings),
        deployments,
        lambda _call, _route, _target: price,
        monotonic=time.monotonic,
        random=random.random,
    )
    targets = tuple(Target(name, "m") for name in names)
    entries = [RouteEntry(to=str(one)) for one in targets]
    route = Route("smart", targets, ModelSettings(route=entries, strategy=name, sticky=sticky))
    now = time.monotonic()
    for number, deployment in enumerate(map(deployments.of, targets)):
        for _ in range(MOST):
            deployment.sent(10, now)
            deployment.began(10, 0.3 + number / 100, now)
            deployment.wrote(20, 0.5, now)
            deployment.ended("succeeded", now)
        for _ in range(number % 7):
            deployment.sent(100, now)
        if number % 10 == 0:
            deployment.ended("patience", now, patience=_LONG)
    choice = router.choose(call, route)
    for target in targets[-holders:] if holders else ():
        router.sent(choice, target)
    return per(lambda: router.choose(call, route), times)


def _call(text: str) -> Call:
    now = time.monotonic()
    body: Body = {"model": "smart", "messages": [{"role": "user", "content": text}], "max_tokens": 8}
    return Call(
        id="x",
        operation="chat",
        principal=Principal(key_id="bench", team="acme", project="app"),
        body=body,
        model="smart",
        stream=False,
        include_usage=False,
        directives=Directives(session="one"),
        received=now,
        at=time.time(),
        deadline=now + 30.0,
        size=len(_encode(body)),
    )


async def _failover(home: Path) -> float:
    """Milliseconds that a first upstream which refuses at once adds, its own refusal included."""
    async with stand(home, {"bad": Options(fail_rate=1.0, seed=3), "good": Options(tokens=1)}) as found:
        over: list[float] = []
        direct: list[float] = []
        for number in range(_REQUESTS):
            found.forget()  # else the circuit would leave the first one alone
            over.append(await _timed(found, "both", number))
            direct.append(await _timed(found, "good/m", number))
        return round(statistics.median(over) - statistics.median(direct), 3)


async def _timed(found: Stand, model: str, number: int) -> float:
    began = time.perf_counter()
    await found.ask(model, number)
    return (time.perf_counter() - began) * 1e3


async def _failure(home: Path) -> float:
    """Upstream calls for each request, of two upstreams that both fail."""
    failing = Options(fail_rate=1.0, seed=3)
    async with stand(home, {"bad": failing, "good": failing}) as found:
        for number in range(_REQUESTS):
            await found.ask("both", number)
        return round(found.calls() / _REQUESTS, 3)


async def _failure_at_once(home: Path, crowd: int, places: int) -> float:
    """The same for requests at once, none of which has failed when the last one is sent."""
    failing = Options(fail_rate=1.0, seed=3, ttft_ms=500.0)
    async with stand(home, {f"p{number}": failing for number in range(places)}) as found:
        await asyncio.gather(*(found.ask("both", number) for number in range(crowd)))
        return round(found.calls() / crowd, 3)


async def _takeover(home: Path) -> float:
    """Seconds until half of those whose first upstream refuses at once have the slow answer of the next one."""
    ways = {"bad": Options(fail_rate=1.0, seed=3), "slow": Options(tokens=1, ttft_ms=_SLOW)}
    async with stand(home, ways) as found:
        waited = await asyncio.gather(*(_timed(found, "both", number) for number in range(_TAKEN_OVER)))
        return round(statistics.median(waited) / 1e3, 2)


def run(save: Path | None, *, times: int) -> int:
    """Measure everything; the report goes to standard output, and into `save`."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        report = Report(
            date=time.strftime("%Y-%m-%d"),
            decision_us=decisions(times),
            failover_added_ms=asyncio.run(_failover(home / "a")),
            calls_per_request=asyncio.run(_failure(home / "b")),
            calls_per_request_at_once={
                f"{crowd} at {count} places": asyncio.run(_failure_at_once(home / f"c{crowd}-{count}", crowd, count))
                for crowd, count in _CROWDS
            },
            taken_over_s=asyncio.run(_takeover(home / "d")),
            request_us=requests(times),
            event_us=events(times),
            machine=machine(),
        )
    raw = msgspec.json.encode(report)
    if save is not None:
        save.mkdir(parents=True, exist_ok=True)
        (save / f"routing-{report.date}.json").write_bytes(msgspec.json.format(raw, indent=2) + b"\n")
    sys.stdout.write(raw.decode() + "\n")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m gateway.bench.routing", description=__doc__)
    parser.add_argument("--times", type=int, default=2_000, help="how often each small piece is repeated in a round")
    parser.add_argument("--save", type=Path, help="folder to keep the result in")
    given = parser.parse_args()
    return run(given.save, times=given.times)


if __name__ == "__main__":
    sys.exit(main())
