"""What happened and is not a fault by itself: restarts and outages of targets."""

from __future__ import annotations

import numpy as np

from playbooks.bench import Bench, Member
from playbooks.verdict import Event


def events(bench: Bench, targets: list[Member]) -> tuple[Event, ...]:
    """Restarts (the process start time moved; counters fell) and outages (scrapes failed) of each target, by time."""
    found: list[Event] = []
    for member in targets:
        found.extend(_restarts(bench, member))
        found.extend(_outages(bench, member))
    return tuple(sorted(found, key=lambda e: (e.time_ms, e.kind)))


def _series(bench: Bench, expr: str, member: Member) -> np.ndarray | None:
    table = bench.table(expr)
    rows = table.rows(member)
    return table.values[rows[0]] if rows else None


def _restarts(bench: Bench, member: Member) -> list[Event]:
    values = _series(bench, "kv:process_start_time_seconds", member)
    if values is None:
        return _resets(bench, member)
    found: list[Event] = []
    last = np.nan
    for time_ms, value in zip(bench.grid.times, values, strict=True):
        if np.isnan(value):
            continue
        if not np.isnan(last) and value > last + 1:
            says = f"restarted (process start {_clock(value)})"
            found.append(Event(int(time_ms), "restart", member.as_dict(), says))
        last = value
    return found


def _resets(bench: Bench, member: Member) -> list[Event]:
    """Counters that fell, of a process that does not say when it started."""
    values = _series(bench, "last_over_time(kvscope_counters_fell[$interval])", member)
    if values is None:
        return []
    return [
        Event(int(time_ms), "reset", member.as_dict(), f"counters began anew ({value:.0f} fell)")
        for time_ms, value in zip(bench.grid.times, values, strict=True)
        if value > 0
    ]


def _outages(bench: Bench, member: Member) -> list[Event]:
    values = _series(bench, "kv:up", member)
    if values is None:
        return []
    found: list[Event] = []
    down_since: int | None = None
    for time_ms, value in zip(bench.grid.times, values, strict=True):
        if value == 0 and down_since is None:
            down_since = int(time_ms)
        elif value == 1 and down_since is not None:
            seconds = (int(time_ms) - down_since) / 1000
            found.append(Event(down_since, "outage", member.as_dict(), f"did not answer for {seconds:.0f} s"))
            down_since = None
    if down_since is not None:
        found.append(Event(down_since, "outage", member.as_dict(), "does not answer any more"))
    return found


def _clock(seconds: float) -> str:
    return str(np.datetime64(int(seconds), "s")).replace("T", " ") + "Z"
