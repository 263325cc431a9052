"""NVTX: one range a call in the domain ``kvstore``, read by Nsight Systems.

The payload of a range is the number of blocks of its call. Where the call is also an OpenTelemetry span, a mark
``kv.span`` follows at once on the same thread with the span id as its payload: the range that began last before it is
that span's. A span that starts a trace, or continues one from another process, adds the marks ``kv.trace_hi`` and
``kv.trace_lo``, so that a report alone yields the W3C trace id. Payloads are signed 64-bit integers (`context.signed`);
names are few and fixed, since `nvtx` keeps each message for ever.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from probes.instrument.context import signed

DOMAIN = "kvstore"
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
        self._module = module
        self._domain = module.get_domain(DOMAIN)
        self.silent = type(self._domain).__name__ == "DummyDomain"
        self.begun = 0
        """Ranges begun so far."""
        if self.silent and attached():
            _log.warning(
                "NVTX: %s is set, but this release of the nvtx package records nothing under it "
                "(its domain is a DummyDomain): the report will hold no ranges of the store. Install nvtx==0.2.11.",
                INJECTION,
            )

    def push(self, name: str, blocks: int) -> None:
        """Open a range on this thread; ranges of a thread close in reverse order."""
        self.begun += 1
        self._module.push_range(name, "blue", DOMAIN, None, blocks)

    def pop(self) -> None:
        """Close the range that this thread opened last."""
        self._module.pop_range(DOMAIN)

    def start(self, name: str, blocks: int) -> Any:
        """Open a range that any thread may close, in any order."""
        self.begun += 1
        return self._module.start_range(name, "blue", DOMAIN, None, blocks)

    def end(self, handle: Any) -> None:
        """Close what `start` opened."""
        self._module.end_range(handle)

    def identify(self, trace_id: int, span_id: int, entry: bool) -> None:
        """Mark whose range it is that this thread began last; `entry`: also the trace."""
        mark = self._module.mark
        mark("kv.span", "blue", DOMAIN, None, signed(span_id))
        if entry:
            mark("kv.trace_hi", "blue", DOMAIN, None, signed(trace_id >> 64))
            mark("kv.trace_lo", "blue", DOMAIN, None, signed(trace_id & _LOW))
