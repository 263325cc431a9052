"""NVTX: one range a call in the domain ``kvstore``, read by Nsight Systems.

The payload of a range is the number of blocks of its call. Where the call is also an OpenTelemetry span, a mark
``kv.span`` follows at once on the same thread with the span id as its payload: the range that began last before it is
that span's. A span that starts a trace, or continues one from another process, adds the marks ``kv.trace_hi`` and
``kv.trace_lo``, so that a report alone yields the W3C trace id. Payloads are signed 64-bit integers (`context.signed`).

`nvtx` 0.2.11 keeps every message, and every combination of message and payload, for ever (`get_event_attributes` is an
unbounded cache). So names are few and fixed, and attributes are our own: one object a name and thread, whose payload
is set before each use.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
from typing import Any

from probes.instrument.context import signed

DOMAIN = "kvstore"
COLOUR = "blue"
INJECTION = "NVTX_INJECTION64_PATH"
_log = logging.getLogger("kvscope.instrument")
_LOW = (1 << 64) - 1


def attached() -> bool:
    """A profiler started this process: nsys and its like name their injection library in the environment."""
    return bool(os.environ.get(INJECTION))


class Ranges:
    """The ranges of one process."""

    def __init__(self, module: Any) -> None:
        """`module` is the `nvtx` package, or something that offers the same."""
        self._domain = module.get_domain(DOMAIN)
        self._attributes = _Attributes(self._domain)
        self.silent = type(self._domain).__name__ == "DummyDomain"
        self.begun = 0
        """Ranges begun so far."""
        if hasattr(self._domain, "push_range"):  # from 0.2.12 on
            calls: Any = self._domain
            self._handle: tuple[Any, ...] = ()
        else:
            calls = importlib.import_module("nvtx._lib")
            self._handle = (self._domain.handle,)
        self._push, self._pop, self._mark = calls.push_range, calls.pop_range, calls.mark
        self._start, self._end = calls.start_range, calls.end_range
        if self.silent and attached():
            _log.warning(
                "NVTX: %s is set, but this release of the nvtx package records nothing under it "
                "(its domain is a DummyDomain): the report will hold no ranges of the store. Install nvtx==0.2.11.",
                INJECTION,
            )

    def push(self, name: str, blocks: int) -> None:
        """Open a range on this thread; ranges of a thread close in reverse order."""
        self.begun += 1
        attributes = self._attributes.of[name]
        attributes.payload = blocks
        self._push(attributes, *self._handle)

    def pop(self) -> None:
        """Close the range that this thread opened last."""
        self._pop(*self._handle)

    def start(self, name: str, blocks: int) -> Any:
        """Open a range that any thread may close, in any order."""
        self.begun += 1
        attributes = self._attributes.of[name]
        attributes.payload = blocks
        return self._start(attributes, *self._handle)

    def end(self, handle: Any) -> None:
        """Close what `start` opened."""
        self._end(handle)

    def identify(self, trace_id: int, span_id: int, entry: bool) -> None:
        """Mark whose range it is that this thread began last; `entry`: also the trace."""
        self._say("kv.span", span_id)
        if entry:
            self._say("kv.trace_hi", trace_id >> 64)
            self._say("kv.trace_lo", trace_id & _LOW)

    def _say(self, name: str, word: int) -> None:
        attributes = self._attributes.of[name]
        attributes.payload = signed(word)
        self._mark(attributes, *self._handle)


class _Named(dict[str, Any]):
    """Attributes by name, made when first asked for."""

    def __init__(self, domain: Any) -> None:
        self._domain = domain

    def __missing__(self, name: str) -> Any:
        shared = self._domain.get_event_attributes(name, COLOUR)
        own = self[name] = type(shared)(self._domain.get_registered_string(name), COLOUR, None, 0)
        return own


class _Attributes(threading.local):
    """Every thread has attributes of its own: a payload must not change between setting and use."""

    def __init__(self, domain: Any) -> None:
        self.of = _Named(domain)
