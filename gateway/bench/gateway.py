"""`nearhit bench gateway`: what the gateway adds, in CPU, time and memory, beside direct calls and peers.

How: `nearhit scripted` and `nearhit serve` run as processes; the gateway with its encoder on one core, the upstream and
this load generator on another. Slices at the upstream itself, at the gateway and at each peer take turns, several
rounds; a figure is the median over rounds with the least and the most. CPU is the worker's own (/proc/PID/stat).
`floor` is an application that does nothing, on the same server; `hop` only syncs a record and asks the upstream.
Everything a request normally pays is on: key, scope, look-up, priced budget hold, journal, ledger row, spans at 10 %.

Caveats: one machine, loopback, an upstream that costs next to nothing; on a busy machine trust CPU per request, not
rates. Peers are measured as they stand; they may do less, or more, than this gateway does.
The last line of standard output is one JSON object.
"""

import argparse
import datetime as dt
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import httpx
import msgspec
import uvloop

from gateway.bench.asks import Target
from gateway.bench.cases import Case, Figures, cases, hit_semantic, measure, spread
from gateway.bench.processes import BenchError, disk_sync_ms, memory_mb
from gateway.bench.report import HalfLoad, Result, stream_result, summary, table
from gateway.bench.stage import Stage, peer, start

ROUNDS = 3
HALF = 0.5


def run(peers: list[str], *, seconds: float = 3.0, rounds: int = ROUNDS, save: Path | None = None) -> int:
    """Measure, print, keep the result under `save`. Exit code 1, with the reason, when a figure cannot be had."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nearhit-bench-")))
        try:
            stage = start(stack, folder)
            result = uvloop.run(_measure_all(stage, [peer(url) for url in peers], seconds, rounds, folder))
        except (BenchError, OSError, httpx.HTTPError) as error:
            sys.stdout.write(f"bench gateway: {error}\n")
            return 1
    result.sign()
    line = msgspec.json.encode(result)
    sys.stdout.write(f"{table(result)}\n")
    if save is not None:
        save.mkdir(parents=True, exist_ok=True)
        at = save / f"gateway-{dt.date.fromisoformat(result.date[:10])}.json"
        at.write_bytes(msgspec.json.format(line, indent=2) + b"\n")
        sys.stdout.write(f"kept as {at}\n")
    sys.stdout.write(f"{line.decode()}\n")
    return 0


async def _measure_all(stage: Stage, peers: list[Target], seconds: float, rounds: int, folder: Path) -> Result:
    plan = cases()
    plan[2:2] = await hit_semantic(stage)
    taken: dict[str, dict[str, list[Figures]]] = {case.name: {} for case in plan}
    for _ in range(rounds):
        for case in plan:
            await _slice(case, stage, peers, seconds, taken[case.name])
    most = sorted(figures.rps for figures in taken["miss"]["nearhit"])[rounds // 2]
    half = await _half_load(plan[0], stage, HALF * most, seconds, rounds)
    results = {case.name: summary(case, taken[case.name]) for case in plan}
    return Result(
        cases=results,
        half_load=half,
        stream=stream_result(results["stream"], results["streams_busy"], results["miss"]),
        memory_mb={
            "exact_start": stage.exact.rss_start_mb,
            "exact_end": round(memory_mb(stage.exact.pids[0]), 1),
            "semantic_start": stage.semantic.rss_start_mb,
            "semantic_end": round(memory_mb(stage.semantic.pids[0]), 1),
            "learned_end": round(memory_mb(stage.learned.pids[0]), 1),
        },
        disk_sync_ms=disk_sync_ms(folder),
        start_s={
            "port_open": stage.exact.port_s,
            "ready": stage.exact.ready_s,
            "ready_encoder": stage.semantic.ready_s,
        },
        seconds=seconds,
        rounds=rounds,
    )


async def _slice(
    case: Case, stage: Stage, peers: list[Target], seconds: float, taken: dict[str, list[Figures]]
) -> None:
    """One round of one case: direct, gateway, peers, one after the other."""
    upstream = stage.paced if case.stream else stage.direct
    gateway = stage.gateway(case.gateway)
    if case.direct:
        pids = (upstream.pid,) if upstream.pid else ()
        direct = await measure(case, upstream, seconds=seconds, rate=case.rate, pids=pids, checked=False)
        taken.setdefault("direct", []).append(direct)
    through = gateway.paced if case.stream else gateway.plain
    ours = await measure(case, through, seconds=seconds, rate=case.rate, pids=gateway.pids)
    taken.setdefault("nearhit", []).append(ours)
    floor = [stage.floor, stage.hop] if case.name == "miss" else []
    for other in (*floor, *peers) if case.direct else ():
        pids = (other.pid,) if other.pid else ()
        theirs = await measure(case, other, seconds=seconds, rate=case.rate, pids=pids, checked=False)
        taken.setdefault(other.name, []).append(theirs)


async def _half_load(case: Case, stage: Stage, rate: float, seconds: float, rounds: int) -> HalfLoad:
    """Direct and gateway at the same pace, taking turns."""
    added: dict[str, list[float]] = {"p50": [], "p99": []}
    for _ in range(rounds):
        direct = await measure(case, stage.direct, seconds=seconds, rate=rate, checked=False)
        through = await measure(case, stage.exact.plain, seconds=seconds, rate=rate)
        added["p50"].append(through.p50_ms - direct.p50_ms)
        added["p99"].append(through.p99_ms - direct.p99_ms)
    return HalfLoad(rate=round(rate, 1), added_p50_ms=spread(added["p50"]), added_p99_ms=spread(added["p99"]))


def main() -> int:
    """`python -m gateway.bench.gateway`, the same as `nearhit bench gateway`."""
    parser = argparse.ArgumentParser(prog="nearhit bench gateway", description="What the gateway adds.")
    parser.add_argument(
        "--peer", action="append", default=[], metavar="URL", help="http://host:port/v1?model=…&key=…&pid=…"
    )
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--save", type=Path, default=None, metavar="FOLDER")
    given = parser.parse_args()
    return run(given.peer, seconds=given.seconds, rounds=given.rounds, save=given.save)


if __name__ == "__main__":
    sys.exit(main())
