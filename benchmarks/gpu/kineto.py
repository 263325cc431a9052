"""Traces of the PyTorch profiler (Kineto's JSON): what the GPU did, and how to make one small enough to keep."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

MOST_BYTES = 290_000
"""Of a kept trace."""
WORK = ("kernel", "gpu_memcpy", "gpu_memset")
KEPT = (*WORK, "cuda_runtime", "cuda_driver", "user_annotation", "gpu_user_annotation", "ac2g", "cpu_op")
"""Categories of Kineto's events, what may be left out last first."""
_NAMELESS = ("schemaVersion", "baseTimeNanoseconds", "displayTimeUnit", "cuda_runtime_version", "cuda_driver_version")


@dataclass(frozen=True, slots=True)
class Activity:
    """`busy_s`: seconds in which the GPU worked on anything; `span_s`: from the first step's begin on."""

    steps: int
    busy_s: float
    span_s: float

    @property
    def idle(self) -> float:
        return max(0.0, 1 - self.busy_s / self.span_s)


def activity(events: Iterable[dict[str, Any]], steps: int) -> Activity | None:
    """From a trace's events; times there are µs."""
    work, begins, ends = [], [], []
    for event in events:
        if event.get("ph") != "X":
            continue
        begin, end = float(event["ts"]), float(event["ts"]) + float(event["dur"])
        if event.get("cat") in WORK:
            work.append((begin, end))
        elif event.get("cat") == "user_annotation":
            begins.append(begin)
            ends.append(end)
    if not work or not begins:
        return None
    span = max(*ends, *(end for _, end in work)) - min(begins)
    return Activity(steps, union(work) / 1e6, span / 1e6)


def union(spans: Iterable[tuple[float, float]]) -> float:
    """Length of what the spans cover together."""
    covered, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        covered += max(0.0, end - max(begin, until))
        until = max(until, end)
    return covered


def trim(whole: dict[str, Any], most: int = MOST_BYTES) -> dict[str, Any]:
    """The trace in fewer bytes: host operators go first, then what the driver was asked, then the later steps."""
    head = {key: whole[key] for key in _NAMELESS if key in whole}
    head["deviceProperties"] = [
        {
            key: device[key]
            for key in ("id", "name", "totalGlobalMem", "computeMajor", "computeMinor", "numSms")
            if key in device
        }
        for device in whole.get("deviceProperties", [])
    ]
    events = [plain(event) for event in whole["traceEvents"] if event.get("cat") in KEPT]
    events.sort(key=lambda event: event["ts"])
    for dropped in ((), ("cpu_op",), ("cpu_op", "ac2g"), ("cpu_op", "ac2g", "cuda_driver")):
        kept = [event for event in events if event["cat"] not in dropped]
        if size(head, kept) <= most:
            break
    else:
        share = most / size(head, kept)
        kept = kept[: int(len(kept) * share * 0.95)]
    return {**head, "traceEvents": kept}


def plain(event: dict[str, Any]) -> dict[str, Any]:
    """One event with the arguments that readers join by."""
    wanted = ("correlation", "External id", "device", "stream", "context", "bytes", "grid", "block", "graph id")
    arguments = {key: value for key, value in event.get("args", {}).items() if key in wanted}
    fields: dict[str, Any] = {
        key: event[key] for key in ("ph", "cat", "name", "pid", "tid", "ts", "dur", "id", "bp") if key in event
    }
    fields["name"] = str(fields["name"])[:120]
    return {**fields, "args": arguments} if arguments else fields


def size(head: dict[str, Any], events: list[dict[str, Any]]) -> int:
    return len(json.dumps({**head, "traceEvents": events}, separators=(",", ":")))
