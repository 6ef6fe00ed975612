"""Which requests are kept, when their spans are built, and where they go."""

import asyncio
import subprocess
import sys

import pytest
from msgspec import structs

from engine.api import EngineStats
from gateway import telemetry as module
from gateway.engine_figures import Watched
from gateway.gate import Load
from gateway.settings import TelemetrySettings
from gateway.telemetry import Standing, Telemetry, Trace
from tests.clock import FrozenClock
from tests.unit.telemetry.requests import REQUEST_ID, a_call, a_miss, marks
from tests.waiting import until

ALWAYS, NEVER = TelemetrySettings(sample=1.0), TelemetrySettings(sample=0.0)
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-"


class Recorder:
    """An exporter that keeps what it is given."""

    def __init__(self) -> None:
        self.traces: list[Trace] = []
        self.closed = False

    def export(self, trace: Trace) -> None:
        self.traces.append(trace)

    def close(self) -> None:
        self.closed = True


def make(settings: TelemetrySettings, clock: FrozenClock, exporter: Recorder | None = None) -> Telemetry:
    return Telemetry(settings, now=clock.now, exporter=exporter)


@pytest.mark.parametrize(
    ("changes", "traceparent", "settings", "reason"),
    [
        ({}, None, ALWAYS, "sampled"),
        ({}, None, NEVER, None),
        ({"status": 502, "error": "UpstreamFailed"}, None, NEVER, "error"),
        ({"error": "Partial"}, None, NEVER, "error"),
        ({"status": 401, "error": "Unauthorized"}, None, NEVER, None),
        ({"total_ms": 5_000.0}, None, NEVER, "slow"),
        ({}, CALLER + "01", NEVER, "sampled"),
        ({}, CALLER + "00", ALWAYS, None),
        ({"total_ms": 9_000.0}, CALLER + "00", ALWAYS, "slow"),
    ],
)
def test_what_is_kept(
    changes: dict[str, object],
    traceparent: str | None,
    settings: TelemetrySettings,
    reason: str | None,
    clock: FrozenClock,
) -> None:
    """Errors and slow requests are what people look for; for the rest the caller decides, else the sampling rate."""
    telemetry = make(settings, clock)
    telemetry.observe(a_miss(a_call(traceparent=traceparent), **changes), marks())
    kept = telemetry.trace(REQUEST_ID)
    assert (kept.reason if kept else None) == reason


def test_the_rate_is_the_rate(clock: FrozenClock) -> None:
    """Sampling decides by the trace id, so its share over many ids must be the one that was set."""
    telemetry = make(TelemetrySettings(sample=0.25), clock)
    for number in range(400):
        drawn = f"{number + 1:018x}{number * (1 << 56) // 400:014x}"
        telemetry.observe(a_miss(a_call(request_id=drawn)), marks())
    assert len(telemetry.traces()) == 100


async def test_spans_are_built_after_the_reply_has_left(clock: FrozenClock) -> None:
    """Building spans costs more than everything else here, so no client waits for it."""
    exporter = Recorder()
    telemetry = make(ALWAYS, clock, exporter)
    telemetry.observe(a_miss(), marks())
    assert exporter.traces == []
    await asyncio.sleep(0)
    assert [trace.request_id for trace in exporter.traces] == [REQUEST_ID]


async def test_a_scrape_shows_what_was_counted_a_moment_ago(clock: FrozenClock) -> None:
    """Counts rest in plain sums between pourings; a scrape, in whichever thread, must not be behind its own process."""
    telemetry = make(NEVER, clock)
    telemetry.observe(a_miss(), marks())
    telemetry.refused("chat", 401)
    asked = 'nearhit_requests_total{cache="miss",operation="chat",status="200"} 1.0'
    assert asked in telemetry.exposition().decode()
    telemetry.observe(a_miss(), marks())
    text = (await asyncio.to_thread(telemetry.exposition)).decode()
    assert asked.replace("1.0", "2.0") in text
    assert 'nearhit_requests_total{cache="none",operation="chat",status="401"} 1.0' in text


def test_a_scrape_after_the_loop_has_ended(clock: FrozenClock) -> None:
    """A closing worker must not hang on a loop that no longer turns."""
    telemetry = make(NEVER, clock)

    async def one_request() -> None:
        telemetry.observe(a_miss(), marks())

    asyncio.run(one_request())
    assert 'status="200"} 1.0' in telemetry.exposition().decode()


async def test_a_burst_is_bounded_and_says_so(clock: FrozenClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the loop has no time to build spans, memory must not grow; the loss is counted."""
    monkeypatch.setattr(module, "MOST_PENDING", 5)
    telemetry = make(ALWAYS, clock)
    for _ in range(8):
        telemetry.observe(a_miss(), marks())
    text = telemetry.exposition().decode()
    assert 'nearhit_traces_total{reason="dropped"} 3.0' in text
    assert 'nearhit_requests_total{cache="miss",operation="chat",status="200"} 8.0' in text


def test_only_the_last_traces_stay(clock: FrozenClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ring is for the page about a recent request, not a store."""
    monkeypatch.setattr(module, "MOST_TRACES", 2)
    telemetry = make(ALWAYS, clock)
    for number in range(4):
        telemetry.observe(a_miss(a_call(request_id=f"{number:032x}")), marks())
    assert [trace.request_id[-1] for trace in telemetry.traces()] == ["3", "2"]
    assert telemetry.trace(f"{0:032x}") is None


def test_closing_delivers_what_is_pending(clock: FrozenClock) -> None:
    """The last requests before a shutdown are the ones somebody will ask about."""
    exporter = Recorder()
    telemetry = make(ALWAYS, clock, exporter)

    async def last_request() -> None:
        telemetry.observe(a_miss(), marks())
        telemetry.close()

    asyncio.run(last_request())
    assert len(exporter.traces) == 1
    assert exporter.closed


def test_in_flight_and_engines_are_shown(clock: FrozenClock) -> None:
    """Gauges are read at the moment of the scrape."""
    telemetry = make(NEVER, clock)
    stats = EngineStats(ready=True, running=3, waiting=2)
    telemetry.watch_engine("local", Watched("demo", lambda: stats, dict))
    telemetry.entered()
    telemetry.entered()
    telemetry.left()
    text = telemetry.exposition().decode()
    assert "\nnearhit_in_flight 1.0" in text
    assert 'nearhit_engine{engine="local",figure="running"} 3.0' in text
    assert float(text.split("\nnearhit_start_time_seconds ")[1].split()[0]) == clock.now()


STANDING = Standing(
    load=lambda: Load(in_flight=0, lag=0.25, share=0.5, full=False),
    waiting=lambda: (7, 12.0),
    left_alone=lambda: {"lab": 2},
)


def test_what_the_parts_stand_at_is_shown(clock: FrozenClock) -> None:
    """Circuits that are open and spending that cannot be posted are what an alert has to see before people do."""
    telemetry = make(NEVER, clock)
    telemetry.watch(STANDING)
    text = telemetry.exposition().decode()
    for line in (
        "nearhit_loop_lag_seconds 0.25",
        "nearhit_shed_share 0.5",
        "nearhit_ledger_unposted 7.0",
        "nearhit_ledger_behind_seconds 12.0",
        'nearhit_places_left_alone{provider="lab"} 2.0',
    ):
        assert f"\n{line}\n" in text


async def test_a_worker_that_is_never_scraped_tells_its_siblings_how_it_stands(clock: FrozenClock) -> None:
    """Any worker answers for all; one that only ever works must not look as calm as it was at its start."""
    telemetry = make(NEVER, clock)
    telemetry.watch(STANDING)
    telemetry.observe(a_miss(), marks())
    await until(lambda: telemetry._metrics._behind._value.get() == 12.0)


def test_importing_it_is_light() -> None:
    """Every worker imports this at start; the OpenTelemetry SDK costs a third of a second that most never need."""
    code = "import sys, gateway.telemetry; sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


async def test_a_worker_that_is_asked_nothing_looks_at_its_parts(
    clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Siblings show what it said last: an alert would go on through a quiet night, or never come."""
    monkeypatch.setattr(module, "LOOK_EVERY", 0.01)
    looks: list[int] = []

    def left_alone() -> dict[str, int]:
        looks.append(1)
        return {}

    standing = structs.replace(STANDING, left_alone=left_alone)
    telemetry = make(NEVER, clock)
    telemetry.watch(standing)
    telemetry.start()
    await until(lambda: len(looks) >= 3)
    telemetry.stop()
    seen = len(looks)
    await asyncio.sleep(0.05)
    assert len(looks) == seen
