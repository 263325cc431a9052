"""OpenTelemetry: a tracer of our own, or the host application's, and where its spans go.

Spans go to an OTLP collector where ``OTEL_EXPORTER_OTLP_ENDPOINT`` (or ``…_TRACES_ENDPOINT``) is set, and to a file of
JSON lines where ``KVSTORE_TRACE_FILE`` is. Where the application that embeds the client has set up tracing for itself,
its provider is used as it is. Imported only when tracing is switched on.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags

from probes.instrument.context import parse, render

if TYPE_CHECKING:
    from opentelemetry.trace import Span as OtelSpan
    from opentelemetry.util.types import AnyValue

    from probes.instrument.traced import Call

KINDS = {kind.name.lower(): kind for kind in SpanKind}
QUEUE_SPANS = int(os.environ.get("OTEL_BSP_MAX_QUEUE_SIZE", 16_384))
"""Spans that may wait for their exporter; OpenTelemetry's 2,048 are gone in a burst of single-block operations."""
CLOSE_S = 3.0
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


class JsonLines(SpanExporter):
    """One JSON object a span, appended to a file that several processes may share."""

    def __init__(self, path: str) -> None:
        """Raises OSError where the file cannot be opened."""
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._resource: tuple[Resource | None, str] = (None, "")

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write a batch at once, so that lines of different processes do not mix."""
        text = "".join(map(self._line, spans))
        try:
            os.write(self._file, text.encode())
        except OSError:
            return SpanExportResult.FAILURE
        return SpanExportResult.SUCCESS

    def _line(self, span: ReadableSpan) -> str:
        """The resource is the same for all spans of a process: it is written down once."""
        if span.resource is not self._resource[0]:
            self._resource = (span.resource, _compact(dict(span.resource.attributes)))
        return f'{_compact(as_dict(span))[:-1]},"resource":{self._resource[1]}}}\n'

    def shutdown(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


_compact = json.JSONEncoder(separators=(",", ":")).encode


def as_dict(span: ReadableSpan) -> dict[str, Any]:
    """The fields of a span (but its resource) under OTLP's names; ids in hex, times in nanoseconds since the epoch."""
    context, parent = span.get_span_context(), span.parent
    return {
        "name": span.name,
        "kind": span.kind.name.lower(),
        "traceId": f"{context.trace_id:032x}" if context else "",
        "spanId": f"{context.span_id:016x}" if context else "",
        "parentSpanId": f"{parent.span_id:016x}" if parent else "",
        "startTimeUnixNano": span.start_time,
        "endTimeUnixNano": span.end_time,
        "attributes": dict(span.attributes or {}),
        "links": [{"traceId": f"{x.context.trace_id:032x}", "spanId": f"{x.context.span_id:016x}"} for x in span.links],
        "status": span.status.status_code.name.lower(),
        "scope": span.instrumentation_scope.name if span.instrumentation_scope else "",
    }


def exporters(file: str) -> list[SpanExporter]:
    """Those that the environment and `file` name; raises ImportError where one is not installed."""
    found: list[SpanExporter] = []
    if any(os.environ.get(name) for name in _ENDPOINTS):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        found.append(OTLPSpanExporter())
    if file:
        found.append(JsonLines(file))
    return found


class Tracing:
    """The tracer of one process."""

    def __init__(self, service: str, instance: str, file: str) -> None:
        """`service` and `instance` name this process; ``OTEL_SERVICE_NAME`` wins over `service`."""
        current = trace.get_tracer_provider()
        self._own: TracerProvider | None = None
        if not isinstance(current, TracerProvider):
            names: dict[str, AnyValue] = {
                "service.name": os.environ.get("OTEL_SERVICE_NAME", service),
                "process.pid": os.getpid(),
            }
            if instance:
                names["service.instance.id"] = instance
            current = self._own = TracerProvider(resource=Resource.create(names), shutdown_on_exit=False)
            for exporter in exporters(file):
                current.add_span_processor(BatchSpanProcessor(exporter, QUEUE_SPANS))
            atexit.register(self.close)
        self._provider = current
        self._tracers: dict[str, trace.Tracer] = {}
        self.begun = 0
        """Spans begun so far, those that are not sampled among them."""

    def begin(self, call: Call) -> OtelSpan:
        """A span that has begun: a child of the call's parent where that is valid, else of what is current here."""
        tracer = self._tracers.get(call.scope)
        if tracer is None:
            tracer = self._tracers[call.scope] = self._provider.get_tracer(call.scope)
        self.begun += 1
        attributes = {**call.attributes, "kv.blocks": call.blocks} if call.blocks else call.attributes
        links = [Link(found) for found in map(span_context, call.links) if found] if call.links else None
        return tracer.start_span(
            call.name, remote(call.parent), KINDS[call.kind], attributes, links, None, False, False
        )

    def enter(self, span: OtelSpan) -> object:
        """Make it the current span of this thread or task; the token takes it back."""
        return attach(trace.set_span_in_context(span))

    def end(self, span: OtelSpan, token: Any, result: str, failure: BaseException | None) -> None:
        """Finish a span, with the exception that ended it."""
        detach(token)
        if result != "ok":
            span.set_attribute("kv.result", result)
            if failure is not None:
                span.set_attribute("error.type", getattr(failure, "reason", type(failure).__qualname__))
            if result == "error":
                span.set_status(StatusCode.ERROR, str(failure) if failure is not None else None)
        span.end()

    def current(self) -> str:
        """The traceparent of the span that is current in this thread or task, whoever began it."""
        found = trace.get_current_span().get_span_context()
        return render(found.trace_id, found.span_id, found.trace_flags) if found.is_valid else ""

    def close(self) -> None:
        """Send what waits, and stop; a provider of the host application is left alone.

        A collector that does not answer holds nobody up for longer than `CLOSE_S`: its spans are lost.
        """
        own, self._own = self._own, None
        if own is not None:
            atexit.unregister(self.close)
            closing = threading.Thread(target=own.shutdown, name="kvstore-trace-close", daemon=True)
            closing.start()
            closing.join(CLOSE_S)


def span_context(traceparent: str) -> SpanContext | None:
    """The span of another process."""
    found = parse(traceparent)
    return SpanContext(found.trace_id, found.span_id, True, TraceFlags(found.flags)) if found else None


def remote(traceparent: str) -> Context | None:
    """A context whose current span is another process's; None: use the caller's own."""
    found = span_context(traceparent) if traceparent else None
    return trace.set_span_in_context(NonRecordingSpan(found), Context()) if found else None
