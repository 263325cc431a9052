"""W3C trace context as the store carries it: the 55 bytes of ``traceparent``, or an empty string for none.

https://www.w3.org/TR/trace-context/#traceparent-header. ``tracestate`` is not carried: the messages have room for
the fixed part only, and the specification allows dropping it.
"""

from __future__ import annotations

from typing import NamedTuple

TRACEPARENT_BYTES = 55
SAMPLED = 0x01
RANDOM = 0x02
"""The trace id was drawn at random (trace context, level 2)."""
_HEX = frozenset("0123456789abcdef")


class TraceContext(NamedTuple):
    """The ids as integers: `trace_id` 128 bits, `span_id` 64 bits, neither of them 0."""

    trace_id: int
    span_id: int
    flags: int


def parse(traceparent: str) -> TraceContext | None:
    """What a peer sent; None for anything that is not valid, which starts a new trace, as the specification asks."""
    if len(traceparent) < TRACEPARENT_BYTES:
        return None
    version, trace, span, flags = traceparent[:2], traceparent[3:35], traceparent[36:52], traceparent[53:55]
    dashes = traceparent[2] == traceparent[35] == traceparent[52] == "-"
    if not dashes or not _HEX.issuperset(version + trace + span + flags) or version == "ff":
        return None
    later = traceparent[TRACEPARENT_BYTES:]
    if later and (version == "00" or not later.startswith("-")):
        return None
    context = TraceContext(int(trace, 16), int(span, 16), int(flags, 16))
    return context if context.trace_id and context.span_id else None


def render(trace_id: int, span_id: int, flags: int) -> str:
    """The 55 bytes, version 00."""
    return f"00-{trace_id:032x}-{span_id:016x}-{flags:02x}"


def signed(word: int) -> int:
    """64 unsigned bits as the signed integer that an NVTX payload of Python's `nvtx` takes."""
    return word - (1 << 64) if word >> 63 else word


def unsigned(word: int) -> int:
    """The 64 bits of an id, from the signed integer that a profiler's export holds."""
    return word & 0xFFFF_FFFF_FFFF_FFFF
