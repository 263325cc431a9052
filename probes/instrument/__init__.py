"""The only thing of the other rooms that the store imports: one call site gives a span, a range and counters.

    instrument = Instrument("kvstore.shard")

    with instrument.span("kv.put", kind="server", parent=traceparent, blocks=n, meter=meters.operations["put"]) as span:
        ...
        send(traceparent=span.traceparent)

Each part is switched at start, by the environment or by `configure`:

    KVSTORE_TRACE=otel,nvtx   OpenTelemetry spans and NVTX ranges (default: neither)
    KVSTORE_COUNTERS=off      no counters at the call sites (default: on)
    KVSTORE_TRACE_FILE=PATH   spans as JSON lines; OTEL_EXPORTER_OTLP_ENDPOINT and its like hold too

What is off is not asked about in a call: `Instrument.span` is the function that was chosen, and where nothing is on it
gives one shared no-op. `async with` instead of ``with`` where the operation awaits (see `span.Span`).
"""

from probes.instrument.histogram import Exemplar, Histogram, HistogramState
from probes.instrument.operation import Operation
from probes.instrument.span import NO_SPAN, Span
from probes.instrument.switch import (
    Instrument,
    InstrumentError,
    Switches,
    begun,
    configure,
    shutdown,
    silenced,
)
from probes.instrument.traced import current_traceparent

__all__ = [
    "NO_SPAN",
    "Exemplar",
    "Histogram",
    "HistogramState",
    "Instrument",
    "InstrumentError",
    "Operation",
    "Span",
    "Switches",
    "begun",
    "configure",
    "current_traceparent",
    "shutdown",
    "silenced",
]
