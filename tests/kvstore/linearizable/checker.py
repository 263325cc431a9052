"""Is a history linearizable per key, and are the reads of a step monotone over the layers?

The order of a key's versions is known (their clocks), so linearizability needs no search (cf. Gibbons and Korach 1997):
an operation that begins after another one has ended must not see or write an older version than that one did, nobody
may see a version before its write began, and versions are what their writers wrote. A key begins without a version
and, once its tail is full, has none again: `END` counts as the newest version of all, a miss as the one or the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tests.kvstore.linearizable.history import UNANSWERED, Events, Kind

_LAST = (1 << 62) + 1
"""The version of a key without a version, after its end."""
_TOLD = 10

Ints = npt.NDArray[np.int64]


@dataclass
class Report:
    """What was checked, and what was wrong."""

    operations: Counter[str] = field(default_factory=Counter)
    violations: Counter[str] = field(default_factory=Counter)
    told: list[str] = field(default_factory=list)
    """The first few violations in words."""
    keys: int = 0
    concurrent_reads: int = 0
    """Reads during which a write of the same key was under way: without them the check would say little."""
    steps: int = 0

    @property
    def total(self) -> int:
        return sum(self.operations.values())

    @property
    def write_share(self) -> float:
        """New versions among all recorded operations."""
        return self.operations["write"] / self.total if self.total else 0.0

    @property
    def good(self) -> bool:
        return not self.violations

    def wrong(self, what: str, rows: Events) -> None:
        """Count `rows` as violations of one kind."""
        if not len(rows):
            return
        self.violations[what] += len(rows)
        if len(self.told) < _TOLD:
            first = rows[0]
            when = f"{first['begin']} … {first['end']} ns"
            self.told.append(
                f"{what}: key {first['key']}, process {first['process']}, step {first['step']}, "
                f"layer {first['layer']}, version {first['clock']} ({first['valid']} tokens), {when}"
            )


def check(events: Events) -> Report:
    """Check a whole history."""
    report = Report()
    for kind in Kind:
        count = int(np.count_nonzero(events["kind"] == kind))
        if count:
            report.operations[kind.name.lower()] = count
    for rows in _by_key(events):
        report.keys += 1
        _check_key(rows, report)
    _check_steps(events, report)
    return report


def _by_key(events: Events) -> Iterator[Events]:
    ordered = events[np.argsort(events["key"], kind="stable")]
    cuts = np.flatnonzero(np.diff(ordered["key"])) + 1
    yield from np.split(ordered, cuts)


def _check_key(rows: Events, report: Report) -> None:
    rows = rows.copy()
    kinds = rows["kind"]
    _learn_clocks(rows)
    writes = rows[(kinds == Kind.WRITE) & (rows["clock"] > 0)]
    writes = writes[np.argsort(writes["clock"], kind="stable")]
    report.wrong("two writes of one version", writes[1:][np.diff(writes["clock"]) == 0])
    seen = rows[(kinds == Kind.READ) | (kinds == Kind.SNAPSHOT)]
    _check_versions(seen, writes, report)
    snapshots = rows[kinds == Kind.SNAPSHOT]
    report.wrong("a snapshot that changed", snapshots[snapshots["clock"] != snapshots["leased"]])
    _check_order(rows[kinds != Kind.SNAPSHOT], report)


def _learn_clocks(rows: Events) -> None:
    """A write without an answer has the version of those who saw its value; unseen it never was."""
    unknown = np.flatnonzero((rows["kind"] == Kind.WRITE) & (rows["clock"] == 0))
    for row in unknown.tolist():
        saw = (rows["kind"] == Kind.READ) & (rows["value"] == rows["value"][row])
        if saw.any():
            rows["clock"][row] = rows["clock"][saw][0]


def _check_versions(seen: Events, writes: Events, report: Report) -> None:
    """Every version that was seen was written, with that value, and not later."""
    if not len(seen):
        return
    if not len(writes):
        report.wrong("a version that nobody wrote", seen)
        return
    place = np.minimum(np.searchsorted(writes["clock"], seen["clock"]), len(writes) - 1)
    wrote = writes[place]
    known = wrote["clock"] == seen["clock"]
    report.wrong("a version that nobody wrote", seen[~known])
    told = known & (seen["value"] != 0)
    report.wrong("other bytes than were written", seen[told & (seen["value"] != wrote["value"])])
    report.wrong("a version from the future", seen[known & (seen["end"] < wrote["begin"])])
    reads = known & (seen["kind"] == Kind.READ)
    report.concurrent_reads += int(np.count_nonzero(reads & _overlaps(seen, writes)))


def _overlaps(seen: Events, writes: Events) -> npt.NDArray[np.bool_]:
    """Whether any write of the key was under way during each read; writes of one key hardly overlap each other."""
    begins, ends = np.sort(writes["begin"]), np.sort(writes["end"])
    begun = np.searchsorted(begins, seen["end"], side="right")
    over = np.searchsorted(ends, seen["begin"], side="left")
    return np.asarray(begun > over, np.bool_)


def _check_order(rows: Events, report: Report) -> None:
    """Nobody sees or writes an older version than somebody who had ended before he began."""
    rows = rows[(rows["kind"] != Kind.WRITE) | (rows["clock"] > 0)]
    version = np.where(rows["kind"] == Kind.END, _LAST, np.where(rows["kind"] == Kind.MISS, 0, rows["clock"]))
    # A miss after something was there can only be one after the end.
    after = (rows["kind"] == Kind.MISS) & (_floor(rows, version) > 0)
    version = np.where(after, _LAST, version)
    ends = rows[rows["kind"] == Kind.END]
    ended_ns = int(ends["begin"].min()) if len(ends) else UNANSWERED
    report.wrong("a miss of a version that was there", rows[after & (rows["end"] < ended_ns)])
    floor = _floor(rows, version)
    reads = (rows["kind"] == Kind.READ) | (rows["kind"] == Kind.MISS)
    report.wrong("an older version than before", rows[reads & (version < floor)])
    writes = rows["kind"] == Kind.WRITE
    report.wrong("a write that is not the newest", rows[writes & (version <= floor)])


def _floor(rows: Events, version: Ints) -> Ints:
    """The newest version that an operation had seen or written which ended before each one began; 0 for none."""
    order = np.argsort(rows["end"], kind="stable")
    newest = np.maximum.accumulate(version[order])
    before = np.searchsorted(rows["end"][order], rows["begin"], side="left")
    return np.where(before > 0, newest[np.maximum(before - 1, 0)], 0)


def _check_steps(events: Events, report: Report) -> None:
    """A step that saw so many tokens in one layer never gets fewer in the next."""
    rows = events[(events["kind"] == Kind.READ) & (events["step"] >= 0)]
    if not len(rows):
        return
    rows = rows[np.lexsort((rows["layer"], rows["step"], rows["process"]))]
    same = (np.diff(rows["step"]) == 0) & (np.diff(rows["process"].astype(np.int64)) == 0)
    older = same & (np.diff(rows["valid"].astype(np.int64)) < 0)
    report.steps = 1 + int(np.count_nonzero(~same))
    report.wrong("an older version in a later layer", rows[1:][older])
