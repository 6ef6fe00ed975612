"""What operators see: metrics for every request, a span tree for those worth keeping.

    telemetry.entered()                     a request begins
    telemetry.observe(outcome, timings)     it has ended: metrics now, spans once the reply has left
    telemetry.exposition()                  GET /metrics
    telemetry.trace(request_id)             one kept trace, for the page about that request

Knows: which requests are kept (head sampling by trace id, the caller's decision, every error, every slow one) and where
they go (OTLP when `telemetry.otlp` is set, and the last few in memory). Does not know: HTTP, who reads.
The OpenTelemetry SDK (`gateway/otlp.py`) is imported only when something is exported.
"""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from msgspec import Struct

from cache.types import Trust
from engine.api import EngineStats
from gateway.call import Outcome
from gateway.engine_figures import EngineMetrics, Watched
from gateway.gate import Load
from gateway.metrics import CONTENT_TYPE, Metrics
from gateway.settings import TelemetrySettings
from gateway.steps import Attempt, Timings
from gateway.traces import Reason, Trace, build_trace, identity_of

__all__ = ["CONTENT_TYPE", "Attempt", "Exporter", "Telemetry", "Timings", "Trace", "otlp_exporter"]

MOST_TRACES = 512
MOST_PENDING = 4_096
POUR_EVERY = 0.5
LOOK_EVERY = 5.0
_POUR_TIMEOUT = 2.0


class Exporter(Protocol):
    """Takes finished traces elsewhere. `export` must not block; `close` may, and delivers what is queued."""

    def export(self, trace: Trace) -> None: ...

    def close(self) -> None: ...


class Standing(Struct, frozen=True, kw_only=True):
    """Where to look for what only stands, and is no event: the gate, what waits for the database, places left alone."""

    load: Callable[[], Load]
    waiting: Callable[[], tuple[int, float]]
    left_alone: Callable[[], Mapping[str, int]]


class Telemetry:
    """One per process. `now`: wall-clock seconds. `models`: the configured names, which always get a metric label."""

    def __init__(
        self,
        settings: TelemetrySettings,
        *,
        now: Callable[[], float],
        models: Iterable[str] = (),
        exporter: Exporter | None = None,
    ) -> None:
        self._metrics = Metrics(models, (settings.ttft_target, settings.tpot_target))
        self._metrics.started(now())
        self._share = settings.sample
        self._slow_ms = settings.slow * 1_000
        self._content = settings.capture_content
        lost = self._metrics.traces.labels("dropped").inc
        self._exporter = exporter or (otlp_exporter(settings.otlp, lost) if settings.otlp else None)
        self._pending: list[tuple[Outcome, Timings, Reason]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pouring = False
        self._kept: OrderedDict[str, Trace] = OrderedDict()
        self._engines: dict[str, Watched] = {}
        self._engine_metrics = EngineMetrics(self._engines)
        self._watched: Standing | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._traces_bound = {
            reason: self._metrics.traces.labels(reason).inc for reason in ("sampled", "error", "slow", "dropped")
        }

    def entered(self) -> None:
        """A request is being answered from now on, until `left`."""
        self._metrics.in_flight += 1
        if not self._pouring:
            self._pour_later()

    def left(self) -> None:
        """The other half of `entered`, whatever became of the request."""
        self._metrics.in_flight -= 1

    def refused(self, operation: str, status: int) -> None:
        """Count a request turned away before it became a Call."""
        self._metrics.refused(operation, status)
        if not self._pouring:
            self._pour_later()

    def turned_away(self, reason: str) -> None:
        """Count a newcomer that the gate did not let in."""
        self._metrics.shed(reason)

    def watch(self, standing: Standing) -> None:
        """Show how this worker's parts stand, from every exposition and with what is counted in between."""
        self._watched = standing

    def start(self) -> None:
        """From now on look at the parts again and again, also where nothing is asked of this worker: siblings show what
        it said last for as long as it lives. In a running loop.
        """
        self._look()
        self._looking = asyncio.get_running_loop().call_later(LOOK_EVERY, self.start)

    def reread(self, good: bool) -> None:
        """Count a reading of the configuration, by whether it could be used."""
        self._metrics.reloads.labels("ok" if good else "failed").inc()

    def audited(self, result: str) -> None:
        """Count a hit that was to be checked, by what became of that."""
        self._metrics.audits.labels(result).inc()

    def shadowed(self, verdict: str) -> None:
        """Count an answer of another model to the same question, by how it compares."""
        self._metrics.shadows.labels(verdict).inc()

    def compared(self, result: str) -> None:
        """Count a miss whose answer was held beside kept ones."""
        self._metrics.compared.labels(result).inc()

    def waited(self, result: str) -> None:
        """Count a wait for another worker's answer, by how it ended."""
        self._metrics.waits.labels(result).inc()

    def measured(self, group: tuple[str, str, str], trust: Trust) -> None:
        """Show how far hits are to be trusted."""
        found = {"low": trust.low, "measured": trust.rate, "high": trust.high}
        self._metrics.wrong_hits(group, {name: value for name, value in found.items() if value is not None})

    def alerted(self, kind: str) -> None:
        self._metrics.alerts.labels(kind).inc()

    def missed(self, reason: str) -> None:
        """Count a look-up that a part of the cache gave no answer to; other misses are none of its business."""
        if (inc := self._metrics.impaired.get(reason)) is not None:
            inc(1)

    def unreadable(self, why: str) -> None:
        """Count a kept record that could not be read."""
        self._metrics.unreadable.labels(why).inc()

    def watch_engine(self, name: str, engine: Watched) -> None:
        """Show this engine's figures in every exposition."""
        self._engines[name] = engine

    def observe(self, outcome: Outcome, timings: Timings) -> None:
        """Count an ended request; if it is worth keeping, build its spans in a later turn of the event loop."""
        self._metrics.count(outcome, timings)
        if not self._pouring:
            self._pour_later()
        reason = self._worth_keeping(outcome)
        if reason is None:
            return
        if len(self._pending) >= MOST_PENDING:
            self._traces_bound["dropped"]()
            return
        self._pending.append((outcome, timings, reason))
        if len(self._pending) == 1:
            self._later()

    def trace(self, request_id: str) -> Trace | None:
        """A kept trace of this process, None when it was not kept or has been pushed out by newer ones."""
        self._build()
        return self._kept.get(request_id)

    def traces(self) -> list[Trace]:
        """The kept traces, newest first."""
        self._build()
        return list(reversed(self._kept.values()))

    def exposition(self) -> bytes:
        """The Prometheus text. Reads files of all workers in multi-process mode, so call it in a thread.

        Shows everything this process has observed, and what its siblings had half a second ago.
        """
        self._look()
        self._pour_now()
        for name, engine in self._engines.items():
            self._metrics.engine(name, _figures(engine.stats()))
        return self._metrics.exposition() + self._engine_metrics.exposition()

    def stop(self) -> None:
        """Look no more; in the loop."""
        if self._looking is not None:
            self._looking.cancel()

    def close(self) -> None:
        """Build and deliver what is pending; blocks while an exporter delivers, so call it in a thread."""
        self._pour_now()
        self._build()
        if self._exporter is not None:
            self._exporter.close()

    def _worth_keeping(self, outcome: Outcome) -> Reason | None:
        if outcome.status >= 500 or (outcome.error is not None and outcome.status < 400):
            return "error"
        if outcome.total_ms >= self._slow_ms:
            return "slow"
        return "sampled" if identity_of(outcome.call, self._share)[1] else None

    def _pour_later(self) -> None:
        """Arm the next pouring; at once where no loop runs."""
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            self._metrics.pour()
        else:
            self._pouring = True
            self._loop.call_later(POUR_EVERY, self._pour)

    def _pour(self) -> None:
        self._pouring = False
        self._look()
        self._metrics.pour()

    def _look(self) -> None:
        """How the parts stand, for siblings who are asked for all: a worker that is never asked must not look calm."""
        if self._watched is not None:
            load = self._watched.load()
            self._metrics.pressure(load.lag, load.share)
            self._metrics.unposted(*self._watched.waiting())
            self._metrics.left_alone(self._watched.left_alone())

    def _pour_now(self) -> None:
        """Pour in the thread that counts, because sums belong to one thread; in this one when that loop is gone."""
        loop = self._loop
        try:
            elsewhere = asyncio.get_running_loop() is not loop
        except RuntimeError:
            elsewhere = True
        if loop is None or loop.is_closed() or not elsewhere:
            self._metrics.pour()
            return
        poured = threading.Event()
        loop.call_soon_threadsafe(lambda: (self._metrics.pour(), poured.set()))
        poured.wait(_POUR_TIMEOUT)

    def _later(self) -> None:
        """After the current turn, so that the reply leaves first; at once where no loop runs."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._build()
        else:
            loop.call_soon(self._build)

    def _build(self) -> None:
        pending, self._pending = self._pending, []
        for outcome, timings, reason in pending:
            trace = build_trace(outcome, timings, reason, content=self._content)
            self._traces_bound[reason]()
            self._kept[trace.request_id] = trace
            if len(self._kept) > MOST_TRACES:
                self._kept.popitem(last=False)
            if self._exporter is not None:
                self._exporter.export(trace)


def _figures(stats: EngineStats) -> dict[str, float]:
    return {
        "ready": float(stats.ready),
        "running": stats.running,
        "waiting": stats.waiting,
        "kv_used": stats.kv_used,
        "prefix_hit_rate": stats.prefix_hit_rate,
        "batch": stats.batch,
        "tokens_per_s": stats.tokens_per_s,
        "step_ms": stats.step_ms,
        "sleeping": stats.sleeping,
        "wake_ms": stats.wake_ms,
        "restarts": stats.restarts,
    }


def otlp_exporter(endpoint: str, lost: Callable[[int], object]) -> Exporter:
    """OTLP over HTTP (protobuf) to a collector; `endpoint` is its base URL or the full URL of its trace intake.

    `lost`: told of how many traces did not get there.
    """
    from gateway.otlp import Otlp

    return Otlp(endpoint, lost)
