"""Kept traces to an OpenTelemetry collector. Importing this imports the SDK, so `gateway/telemetry.py` does it late.

Knows: the SDK's span type, its batch processor and the OTLP exporter over HTTP. Does not know: which traces are kept.
"""

# ruff: noqa: TID251 - the one user of the OpenTelemetry SDK

from collections.abc import Callable, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from gateway.traces import Span, Trace

MOST_QUEUED = 4_096
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class _Counting(SpanExporter):
    """The exporter, with a count of what it was handed and of what did not arrive. Runs in the batches' thread."""

    def __init__(self, inner: SpanExporter, lost: Callable[[int], object]) -> None:
        self._inner = inner
        self._lost = lost
        self.taken = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.taken += len(spans)
        found = SpanExportResult.FAILURE
        try:
            found = self._inner.export(spans)
        finally:
            if found is not SpanExportResult.SUCCESS and (traces := sum(map(_is_root, spans))):
                self._lost(traces)
        return found

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)


class Otlp:
    """Batches in a thread of its own behind a bounded queue; what does not fit while the collector is away is dropped.

    `endpoint`: a collector's base URL, or the full URL of its trace intake. `lost`: told of how many traces did not get
    there, from any thread.
    """

    def __init__(self, endpoint: str, lost: Callable[[int], object], *, sink: SpanExporter | None = None) -> None:
        base = endpoint.rstrip("/")
        url = base if base.endswith("/v1/traces") else f"{base}/v1/traces"
        self._sink = _Counting(sink or OTLPSpanExporter(endpoint=url, timeout=5), lost)
        self._lost = lost
        self._handed = 0
        self._batches = BatchSpanProcessor(self._sink, max_queue_size=MOST_QUEUED)
        self._resource = Resource.create({"service.name": "nearhit"})
        self._scope = InstrumentationScope("nearhit")

    def export(self, trace: Trace) -> None:
        """Queue every span, or none where there is no room; never blocks."""
        if self._handed - self._sink.taken + len(trace.spans) > MOST_QUEUED:
            self._lost(1)
            return
        self._handed += len(trace.spans)
        for span in trace.spans:
            self._batches.on_end(self._translate(trace, span))

    def close(self) -> None:
        """Deliver what is queued. Blocks for as long as the collector takes, at most the exporter's time limit."""
        self._batches.shutdown()

    def _translate(self, trace: Trace, span: Span) -> ReadableSpan:
        """Built directly: the tracer's own spans cost several times more and draw ids of their own."""
        root = span is trace.spans[0]
        kind = SpanKind.SERVER if root else SpanKind.CLIENT if span.name == "dispatch" else SpanKind.INTERNAL
        return ReadableSpan(
            name=span.name,
            context=_context(trace.id, span.id, remote=False),
            parent=None if span.parent is None else _context(trace.id, span.parent, remote=root),
            resource=self._resource,
            attributes=span.attributes,
            kind=kind,
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
            start_time=int(span.start * 1e9),
            end_time=int(span.end * 1e9),
            instrumentation_scope=self._scope,
        )


def _is_root(span: ReadableSpan) -> bool:
    """One of each trace: its parent is the caller's, or nobody's."""
    return span.parent is None or span.parent.is_remote


def _context(trace_id: str, span_id: str, *, remote: bool) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span_id, 16), remote, _SAMPLED)
