"""Traces on their way to a collector: a real HTTP request to a collector on loopback, or one that is not there."""

# ruff: noqa: TID251 - what the exporter's own sink looks like is the SDK's to say

import gzip
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from gateway.otlp import MOST_QUEUED, Otlp
from gateway.settings import TelemetrySettings
from gateway.telemetry import Telemetry
from tests.clock import FrozenClock
from tests.unit.telemetry.requests import AT, a_call, a_miss, marks

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector(ThreadingHTTPServer):
    """Keeps what is posted to it: (path, message)."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Intake)
        self.got: list[tuple[str, ExportTraceServiceRequest]] = []


class _Intake(BaseHTTPRequestHandler):
    server: Collector  # pyright: ignore[reportIncompatibleVariableOverride] - always started by Collector

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            raw = gzip.decompress(raw)
        self.server.got.append((self.path, ExportTraceServiceRequest.FromString(raw)))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_collector_gets_the_tree(collector: Collector, clock: FrozenClock) -> None:
    """What leaves the process must be what a collector reads: ids, parents, kinds, times, status."""
    base = f"http://127.0.0.1:{collector.server_port}"
    telemetry = Telemetry(TelemetrySettings(otlp=base, sample=0.0), now=clock.now)
    telemetry.observe(a_miss(a_call(traceparent=CALLER), status=502, error="UpstreamFailed"), marks())
    telemetry.close()
    [(path, message)] = collector.got
    assert path == "/v1/traces"
    [resource] = message.resource_spans
    assert ("service.name", "nearhit") in [(pair.key, pair.value.string_value) for pair in resource.resource.attributes]
    spans = {span.name: span for span in resource.scope_spans[0].spans}
    assert set(spans) == {"request", "admit", "cache.find", "dispatch", "provider.first_chunk", "provider.stream"}
    root = spans["request"]
    assert root.trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"
    assert root.parent_span_id.hex() == "b7ad6b7169203331"
    assert root.kind == WireSpan.SPAN_KIND_SERVER
    assert root.status.code == Status.STATUS_CODE_ERROR
    assert abs(root.start_time_unix_nano - int(AT * 1e9)) < 1_000
    assert spans["dispatch"].kind == WireSpan.SPAN_KIND_CLIENT
    assert spans["dispatch"].parent_span_id == root.span_id
    assert spans["provider.first_chunk"].parent_span_id == spans["dispatch"].span_id
    costs = [pair.value.string_value for pair in root.attributes if pair.key == "nearhit.cost.usd"]
    assert costs == ["0.0015"]


class Away(SpanExporter):
    """A collector that is not there, for as long as `gone` is set; `hangs`: it does not say so either."""

    def __init__(self) -> None:
        self.gone = True
        self.hangs = Event()
        self.hangs.set()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.hangs.wait(30)
        return SpanExportResult.FAILURE if self.gone else SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Nothing is held."""


def _dropped(telemetry: Telemetry) -> float:
    return telemetry._metrics.traces.labels("dropped")._value.get()


def _exporting_to(sink: SpanExporter, clock: FrozenClock) -> Telemetry:
    telemetry = Telemetry(TelemetrySettings(sample=0.0), now=clock.now)
    telemetry._exporter = Otlp("http://unused.invalid", telemetry._metrics.traces.labels("dropped").inc, sink=sink)
    return telemetry


@pytest.mark.parametrize("gone", [True, False])
def test_traces_that_do_not_reach_the_collector_are_counted(clock: FrozenClock, *, gone: bool) -> None:
    """The alert on dropped traces asks whether the collector is there; it never fired when it was not."""
    sink = Away()
    sink.gone = gone
    telemetry = _exporting_to(sink, clock)
    for _ in range(3):
        telemetry.observe(a_miss(a_call(traceparent=CALLER), status=502, error="UpstreamFailed"), marks())
    telemetry.close()
    assert _dropped(telemetry) == (3 if gone else 0)


def test_what_has_no_room_while_the_collector_hangs_is_counted(clock: FrozenClock) -> None:
    """A collector that takes the connection and says nothing loses as much as one that is away."""
    sink = Away()
    sink.gone = False
    sink.hangs.clear()
    telemetry = _exporting_to(sink, clock)
    asked = MOST_QUEUED // 4
    for _ in range(asked):
        telemetry.observe(a_miss(a_call(traceparent=CALLER), status=502, error="UpstreamFailed"), marks())
    telemetry._build()
    lost = _dropped(telemetry)
    assert 0 < lost < asked
    sink.hangs.set()
    telemetry.close()
    assert _dropped(telemetry) == lost
