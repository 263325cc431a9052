"""Spans as JSON lines: for tests, benchmarks, and machines without a collector."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

_compact = json.JSONEncoder(separators=(",", ":")).encode


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
