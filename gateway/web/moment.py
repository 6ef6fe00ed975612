"""What the last moments come to: rates, percentiles, goodput, a line per upstream, histograms of how sure hits were.

Knows: arithmetic over ended requests. Does not know: where they come from, pages.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from msgspec import Struct

from gateway.db.lately import Ended

BARS = 30
_SHARES = (0.5, 0.95, 0.99)


class Spread(Struct, frozen=True):
    """Percentiles by nearest rank, ms; all None without any value."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


class Target(Struct, frozen=True):
    """What a streamed answer must keep to count as goodput, ms."""

    ttft: float
    tpot: float


class Upstream(Struct, frozen=True, kw_only=True):
    """One provider in these moments. `share`: of what was asked of any provider."""

    name: str
    requests: int
    share: float
    errors: int
    ttft: Spread
    total: Spread


class Moment(Struct, frozen=True, kw_only=True):
    """`seconds` is the stretch that is summed up, shorter than asked for where there were too many requests.

    `goodput`: of the streamed answers, the share that kept both targets. `bars`: requests and errors per part of it.
    """

    seconds: float
    requests: int
    rps: float
    tps: float
    errors: int
    ttft: Spread
    tpot: Spread
    total: Spread
    overhead: Spread
    streamed: int
    goodput: float | None
    good_rps: float
    bars: tuple[tuple[int, int], ...]
    upstreams: tuple[Upstream, ...]


class Column(Struct, frozen=True):
    """One column of a histogram: `[low, high)`."""

    low: float
    high: float
    count: int


def spread(values: Iterable[float | None]) -> Spread:
    known = sorted(value for value in values if value is not None)
    if not known:
        return Spread()
    return Spread(*(known[max(0, math.ceil(share * len(known)) - 1)] for share in _SHARES))


def moment(rows: Sequence[Ended], now: float, window: float, target: Target, *, cut: bool) -> Moment:
    """`rows` newest first. `cut`: there were more in the window, so only the stretch these cover is summed up."""
    seconds = max(1.0, now - rows[-1].at) if cut and rows else window
    streamed = [row for row in rows if row.stream and row.status < 400]
    good = sum(1 for row in streamed if _kept(row, target))
    return Moment(
        seconds=seconds,
        requests=len(rows),
        rps=len(rows) / seconds,
        tps=sum(row.completion for row in rows) / seconds,
        errors=sum(1 for row in rows if row.status >= 400),
        ttft=spread(row.ttft_ms for row in streamed),
        tpot=spread(row.tpot_ms for row in streamed),
        total=spread(row.total_ms for row in rows),
        overhead=spread(row.overhead_ms for row in rows),
        streamed=len(streamed),
        goodput=good / len(streamed) if streamed else None,
        good_rps=good / seconds,
        bars=_bars(rows, now, seconds),
        upstreams=upstreams(rows),
    )


def upstreams(rows: Sequence[Ended]) -> tuple[Upstream, ...]:
    """The busiest first. Hits asked nobody."""
    by_name: dict[str, list[Ended]] = defaultdict(list)
    for row in rows:
        if row.source == "upstream" and row.provider:
            by_name[row.provider].append(row)
    whole = sum(map(len, by_name.values()))
    found = (
        Upstream(
            name=name,
            requests=len(own),
            share=len(own) / whole,
            errors=sum(1 for row in own if row.status >= 400),
            ttft=spread(row.ttft_ms for row in own if row.stream),
            total=spread(row.total_ms for row in own),
        )
        for name, own in by_name.items()
    )
    return tuple(sorted(found, key=lambda one: (-one.requests, one.name)))


def histogram(values: Iterable[float | None], edges: Sequence[float]) -> list[Column]:
    """Counts between the edges; what lies outside is counted in the first or last column."""
    counts = [0] * (len(edges) - 1)
    for value in values:
        if value is not None:
            place = sum(1 for edge in edges[1:-1] if value >= edge)
            counts[place] += 1
    return [Column(low, high, count) for low, high, count in zip(edges, edges[1:], counts, strict=False)]


def _kept(row: Ended, target: Target) -> bool:
    first, each = row.ttft_ms, row.tpot_ms
    return first is not None and first <= target.ttft and (each is None or each <= target.tpot)


def _bars(rows: Sequence[Ended], now: float, seconds: float) -> tuple[tuple[int, int], ...]:
    """Requests and errors in `BARS` equal parts, oldest first."""
    asked, failed = [0] * BARS, [0] * BARS
    for row in rows:
        place = BARS - 1 - min(BARS - 1, max(0, int((now - row.at) / seconds * BARS)))
        asked[place] += 1
        failed[place] += row.status >= 400
    return tuple(zip(asked, failed, strict=True))
