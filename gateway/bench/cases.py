"""The cases of `nearhit bench gateway`, and what is counted in each.

Knows: which prompt, which cache tier, which mark every answer of a case must carry (a case whose marks are wrong is an
error, not a figure). Does not know: starting processes, printing.
"""

import itertools
import random
import statistics
from collections.abc import Callable

from msgspec import Struct

from gateway.bench.asks import TOPICS, Target, chat, cycle, fresh, question, wordings
from gateway.bench.load import Ask, Connection, Sample, drive
from gateway.bench.processes import BenchError, cpu_seconds
from gateway.bench.stage import Stage

WARM_UP = 0.5
# Clients know nothing of each other: 32 streams that begin in the same moment would queue behind one another, at the
# upstream too, and their wait would be counted as the gateway's.
STREAMS_PER_SECOND = 90.0
TRIED_ON = 3


class Case(Struct, frozen=True, kw_only=True):
    """`ask` makes the requests for a target. At least `purity` of the gateway's answers must carry `mark`.

    `gateway`: which of the stage's is asked. `direct`: also asked of the upstream itself and of peers.
    `rate`: requests per second, evenly spread, instead of each connection asking again at once.
    """

    name: str
    about: str
    mark: str
    connections: int
    ask: Callable[[Target], Ask]
    stream: bool = False
    direct: bool = True
    gateway: str = "exact"
    purity: float = 0.98
    rate: float = 0.0


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


def _unique(*, stream: bool = False, seed: int = 0) -> Callable[[Target], Ask]:
    prompts = fresh(seed)

    return lambda target: lambda: chat(target, next(prompts), stream=stream)


def _same(target: Target) -> Ask:
    return cycle([chat(target, question(TOPICS[0]))])


def cases() -> list[Case]:
    """In the order in which they are measured and printed; hits by meaning join once their wordings are known."""
    return [
        Case(name="miss", about="exact tier only", mark="miss", connections=16, ask=_unique(seed=1)),
        Case(name="hit_exact", about="the same again", mark="hit-exact", connections=16, ask=_same, direct=False),
        Case(
            name="miss_semantic",
            about="both tiers, nothing close",
            mark="miss",
            connections=4,
            ask=_unique(seed=2),
            gateway="semantic",
        ),
        Case(
            name="stream",
            about=f"exact tier only, 51 tokens at the upstream's pace, {STREAMS_PER_SECOND:g} begun a second",
            mark="miss",
            connections=32,
            rate=STREAMS_PER_SECOND,
            ask=_unique(stream=True, seed=3),
            stream=True,
        ),
        Case(
            name="streams_busy",
            about="the same, 100 at once, each connection asking again at once",
            mark="miss",
            connections=100,
            ask=_unique(stream=True, seed=5),
            stream=True,
        ),
    ]


async def hit_semantic(stage: Stage) -> list[Case]:
    """Hits by meaning that a list of guards lets through, and such that are read before they are served."""
    guarded, learned = stage.semantic.plain, stage.learned.plain
    return [
        _hits("semantic", guarded, await _served(guarded), how="served unread"),
        _hits("learned", learned, await _served(learned), how="both texts read first"),
    ]


async def _served(target: Target) -> list[str]:
    """Each topic is asked once; other wordings, tried on a few topics, are then used on the rest, each text once.

    Raises BenchError when no wording is a semantic hit on all of the first few.
    """
    connection = await Connection.open(*target.where)
    try:
        for topic in TOPICS:
            await connection.exchange(chat(target, question(topic)))
        served: list[str] = []
        for wording in wordings():
            tried = [await connection.exchange(chat(target, wording.format(topic))) for topic in TOPICS[:TRIED_ON]]
            if all(one.mark == "hit-semantic" for one in tried):
                served.append(wording)
    finally:
        connection.close()
    if not served:
        raise BenchError(f"none of {len(wordings())} wordings is a semantic hit on all of {TOPICS[:TRIED_ON]}")
    return served


def _hits(gateway: str, target: Target, served: list[str], *, how: str) -> Case:
    """Each text once for all rounds: asked again it would be its own key."""
    texts = [wording.format(topic) for wording, topic in itertools.product(served, TOPICS[TRIED_ON:])]
    random.Random(4).shuffle(texts)  # noqa: S311 - the same order in every run
    ask, topics = cycle([chat(target, text) for text in texts]), len(TOPICS) - TRIED_ON
    return Case(
        name="hit_semantic" if gateway == "semantic" else "hit_read",
        about=f"one connection, {len(texts)} other wordings of {topics} questions, {how}",
        mark="hit-semantic",
        connections=1,
        ask=lambda _: ask,
        direct=False,
        gateway=gateway,
        purity=0.9,
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
    if marks and sample.marks[case.mark] < case.purity * count:
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
