"""OpenTelemetry: ids while an operation runs, the span itself later, in a thread of its own.

Beginning and ending a span of OpenTelemetry's SDK takes 40 µs, and 160 µs after a copy of some MiB has emptied the
caches of it: more than the 2 % of a fetch that all instruments may take. So an operation only draws its ids, reads the
clock twice and leaves a record; the exporting thread makes spans of records. Parents, sampling, resource and exporters
are OpenTelemetry's own.

Spans go to an OTLP collector where ``OTEL_EXPORTER_OTLP_ENDPOINT`` (or ``…_TRACES_ENDPOINT``) is set, and to a file of
JSON lines where ``KVSTORE_TRACE_FILE`` is. Where the application that embeds the client has set up tracing for itself,
its provider's processors get them, and its spans are the parents of ours (set it up before the first operation).
Imported only when tracing is switched on.
"""

from __future__ import annotations

import atexit
import logging
import os
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from probes.instrument.context import RANDOM, SAMPLED, TraceContext, parse
from probes.instrument.jsonl import JsonLines

if TYPE_CHECKING:
    from opentelemetry.util.types import AnyValue

    from probes.instrument.traced import TracedSpan

QUEUE_SPANS = int(os.environ.get("OTEL_BSP_MAX_QUEUE_SIZE", 65_536))
"""Spans that may wait for their exporter; what comes beyond them is lost, and said once."""
BATCH_SPANS = 512
INTERVAL_S = 1.0
CLOSE_S = 3.0
"""A collector that does not answer holds nobody up for longer when tracing ends: its spans are lost."""
_KINDS = {kind.name.lower(): kind for kind in SpanKind}
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_ALWAYS = "ParentBased{root:AlwaysOnSampler"
_log = logging.getLogger("kvscope.instrument")

Sink = Callable[[Sequence[ReadableSpan]], Any]


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
    """The spans of one process."""

    def __init__(self, service: str, instance: str, file: str) -> None:
        """`service` and `instance` name this process; ``OTEL_SERVICE_NAME`` wins over `service`."""
        current = trace.get_tracer_provider()
        self._exporters: list[SpanExporter] = []
        self._guest = isinstance(current, TracerProvider)
        if isinstance(current, TracerProvider):
            self._provider = current
            self._sinks: list[Sink] = [_to_processors(current)]
        else:
            name = os.environ.get("OTEL_SERVICE_NAME", service)
            names: dict[str, AnyValue] = {"service.name": name, "process.pid": os.getpid()}
            if instance:
                names["service.instance.id"] = instance
            self._provider = TracerProvider(resource=Resource.create(names), shutdown_on_exit=False)
            self._exporters = exporters(file)
            self._sinks = [exporter.export for exporter in self._exporters]
        self._sampler = self._provider.sampler
        self._always = self._sampler.get_description().startswith(_ALWAYS)
        self._scopes: dict[str, InstrumentationScope] = {}
        self._waiting: deque[TracedSpan] = deque()
        self._lost = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvstore-trace", daemon=True)
        self._thread.start()
        atexit.register(self.close)
        self.begun = 0
        """Spans begun so far, those that are not sampled among them."""

    # --- while an operation runs ------------------------------------------------------------------------------------

    def begin(self, span: TracedSpan, inner: TracedSpan | None) -> None:
        """Draw the ids of `span`: a child of what its call named, else of `inner`, else of what is current here."""
        self.begun += 1
        span_id = random.getrandbits(64) or 1
        parent = parse(span.parent) if span.parent else None
        span.remote = parent is not None
        if parent is None:
            parent = inner.context if inner is not None else _foreign() if self._guest else None
        if parent is not None:
            span.parent_id = parent.span_id
            span.context = TraceContext(parent.trace_id, span_id, parent.flags)
            return
        trace_id = random.getrandbits(128) or 1
        flags = RANDOM | SAMPLED if self._always or self._samples(trace_id, span) else RANDOM
        span.context = TraceContext(trace_id, span_id, flags)

    def end(self, span: TracedSpan) -> None:
        """Leave the record of a span that is sampled."""
        if len(self._waiting) < QUEUE_SPANS:
            self._waiting.append(span)
            return
        self._lost += 1
        if self._lost == 1:
            _log.warning("tracing: %d spans wait for their exporter; further ones are lost", QUEUE_SPANS)

    def _samples(self, trace_id: int, span: TracedSpan) -> bool:
        kind, attributes = _KINDS[span.kind], dict(span.attributes)
        decision = self._sampler.should_sample(None, trace_id, span.name, kind, attributes).decision
        return decision is Decision.RECORD_AND_SAMPLE

    # --- later --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Send what waits, and stop; a provider of the host application is left alone."""
        atexit.unregister(self.close)
        self._end.set()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while not self._end.wait(INTERVAL_S):
            self._flush()
        self._flush()
        for exporter in self._exporters:
            exporter.shutdown()

    def _flush(self) -> None:
        waiting = self._waiting
        while waiting:
            batch = [self._made(waiting.popleft()) for _ in range(min(BATCH_SPANS, len(waiting)))]
            for sink in self._sinks:
                try:
                    sink(batch)
                except Exception:
                    _log.exception("tracing: an exporter failed")

    def _made(self, span: TracedSpan) -> ReadableSpan:
        found = span.context
        parent = None
        if span.parent_id:
            parent = SpanContext(found.trace_id, span.parent_id, span.remote, TraceFlags(found.flags))
        scope = self._scopes.get(span.scope)
        if scope is None:
            scope = self._scopes[span.scope] = InstrumentationScope(span.scope)
        links = [SpanContext(x.trace_id, x.span_id, True, TraceFlags(x.flags)) for x in map(parse, span.links) if x]
        return ReadableSpan(
            span.name,
            SpanContext(found.trace_id, found.span_id, False, TraceFlags(found.flags)),
            parent,
            self._provider.resource,
            _attributes(span),
            (),
            [Link(context) for context in links],
            _KINDS[span.kind],
            None,
            Status(StatusCode.ERROR, span.error[1]) if span.ended == "error" else Status(),
            span.began_ns,
            span.ended_ns,
            scope,
        )


def _attributes(span: TracedSpan) -> dict[str, Any]:
    found: dict[str, Any] = dict(span.attributes)
    if span.blocks:
        found["kv.blocks"] = span.blocks
    if span.ended != "ok":
        found["kv.result"] = span.ended
        if span.error[0]:
            found["error.type"] = span.error[0]
    return found


def _foreign() -> TraceContext | None:
    """The span of the application that is current in this thread or task."""
    found = trace.get_current_span().get_span_context()
    return TraceContext(found.trace_id, found.span_id, int(found.trace_flags)) if found.is_valid else None


def _to_processors(provider: TracerProvider) -> Sink:
    """Where the host application's own spans go."""
    processor: Any = getattr(provider, "_active_span_processor", None)

    def sink(spans: Sequence[ReadableSpan]) -> None:
        for span in spans:
            processor.on_end(span)

    return sink if processor is not None else lambda spans: None
