"""The cases of `nearhit bench gateway`, and what is counted in each.

Knows: which prompt, which cache tier, which mark every answer of a case must carry (a case whose marks are wrong is an
error, not a figure). Does not know: starting processes, printing.
"""

import statistics
from collections.abc import Callable

from msgspec import Struct

from gateway.bench.asks import QUESTION, Target, chat, cycle, fresh, paraphrases
from gateway.bench.load import Ask, Connection, Sample, drive
from gateway.bench.processes import BenchError, cpu_seconds

STREAM_TOKENS = 51
WARM_UP = 0.5


class Case(Struct, frozen=True, kw_only=True):
    """`ask` makes the requests for a target; `mark` is what the gateway must say; `slow`: wants the paced upstream."""

    name: str
    about: str
    mark: str
    connections: int
    ask: Callable[[Target], Ask]
    stream: bool = False
    direct: bool = True


class Figures(Struct, kw_only=True):
    """One slice at one target. CPU in µs, times in ms; CPU is None where the process is not ours to read."""

    requests: int
    rps: float
    p50_ms: float
    p99_ms: float
    ttft_p50_ms: float
    events: float
    cpu_us: float | None = None
    encoder_cpu_us: float | None = None


def _unique(tier: str | None, *, stream: bool = False) -> Callable[[Target], Ask]:
    prompts = fresh(seed=20_261_121 + (len(tier or "") << 4) + stream)

    def of(target: Target) -> Ask:
        tokens = STREAM_TOKENS if stream else 16
        return lambda: chat(target, next(prompts), stream=stream, tier=tier, max_tokens=tokens)

    return of


def _same(target: Target) -> Ask:
    return cycle([chat(target, QUESTION, tier="exact")])


def cases() -> list[Case]:
    """In the order in which they are measured and printed."""
    return [
        Case(name="miss", about="exact tier only, not streamed", mark="miss", connections=16, ask=_unique("exact")),
        Case(
            name="hit_exact", about="the same request again", mark="hit-exact", connections=16, ask=_same, direct=False
        ),
        Case(name="miss_semantic", about="both tiers, nothing close", mark="miss", connections=4, ask=_unique(None)),
        Case(
            name="stream",
            about=f"exact tier only, {STREAM_TOKENS} tokens at the upstream's pace",
            mark="miss",
            connections=32,
            ask=_unique("exact", stream=True),
            stream=True,
        ),
    ]


async def hit_semantic(target: Target) -> Case:
    """Ask once, then use the wordings that the gateway really answers by meaning. Raises BenchError when none is."""
    connection = await Connection.open(*target.where)
    try:
        await connection.exchange(chat(target, QUESTION))
        requests = [chat(target, text) for text in paraphrases()]
        served = [one for one in requests if (await connection.exchange(one)).mark == "hit-semantic"]
    finally:
        connection.close()
    if not served:
        raise BenchError(f"none of {len(requests)} wordings of {QUESTION!r} was a semantic hit")
    return Case(
        name="hit_semantic",
        about=f"one connection, {len(served)} of {len(requests)} wordings of one question",
        mark="hit-semantic",
        connections=1,
        ask=lambda _: cycle(served),
        direct=False,
    )


async def measure(
    case: Case, target: Target, *, seconds: float, rate: float = 0.0, pids: tuple[int, ...] = (), checked: bool = True
) -> Figures:
    """One slice after a short warm-up. `pids`: the worker, then the encoder. Raises BenchError on wrong answers."""
    ask = case.ask(target)
    await drive(target.where, ask, connections=case.connections, seconds=min(WARM_UP, seconds), rate=rate)
    before = [cpu_seconds(pid) for pid in pids]
    sample = await drive(target.where, ask, connections=case.connections, seconds=seconds, rate=rate)
    used = [cpu_seconds(pid) - start for pid, start in zip(pids, before, strict=True)]
    _check(case, target, sample, marks=checked)
    count = len(sample.totals)
    each = [seconds_used / count * 1e6 for seconds_used in used] + [None, None]
    return Figures(
        requests=count,
        rps=round(sample.rate, 1),
        p50_ms=round(quantile(sample.totals, 0.5) * 1e3, 3),
        p99_ms=round(quantile(sample.totals, 0.99) * 1e3, 3),
        ttft_p50_ms=round(quantile(sample.firsts, 0.5) * 1e3, 3),
        events=round(sample.events / count, 1),
        cpu_us=None if each[0] is None else round(each[0], 1),
        encoder_cpu_us=None if each[1] is None else round(each[1], 1),
    )


def _check(case: Case, target: Target, sample: Sample, *, marks: bool) -> None:
    count = len(sample.totals)
    if not count or sample.statuses[200] != count:
        raise BenchError(f"{case.name} at {target.name}: statuses {dict(sample.statuses)}")
    if marks and sample.marks[case.mark] < 0.98 * count:
        raise BenchError(f"{case.name} at {target.name}: wanted {case.mark}, got {dict(sample.marks)}")


def quantile(values: list[float], share: float) -> float:
    """The value below which `share` of them lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def spread(values: list[float]) -> dict[str, float]:
    """Median, least and most of the repeats."""
    return {
        "median": round(statistics.median(values), 3),
        "min": round(min(values), 3),
        "max": round(max(values), 3),
    }
