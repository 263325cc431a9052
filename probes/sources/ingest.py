"""From a parsed page to a column of the store: target labels, derived gauges, and the scrape's own series."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

import numpy as np

from probes.columns import Floats, Rows, blank
from probes.exposition import Family, Limits, Page, PageParser
from probes.exposition.page import NO_TIME
from probes.labels import Labels
from probes.series import Metadata, SeriesStore
from probes.sources.blanks import Blanks
from probes.sources.blocks import CHANGED
from probes.sources.info import InfoLabels
from probes.sources.resets import FELL, MIXED, Resets, counts
from probes.target import Target

OLDEST_MS = 300_000
"""A sample with an own timestamp older than this is left out: Prometheus' look-back, after which it would not show."""


class TargetFrame:
    """The frame of one live target. The parser's ids stand for label sets for ever; rows of the frame may be reused."""

    def __init__(self, store: SeriesStore, target: Target, info: InfoLabels, limits: Limits | None = None) -> None:
        self._store = store
        self._target = target
        self._info = info
        self._limits = limits
        labels = Labels.of(target.labels)
        self.frame = store.frame(f"{target.shown} {labels}" if labels else target.shown)
        own = {"job": target.job, "instance": target.instance}
        self._fixed = {**target.labels, **own}
        self._up = Labels.of(own | dict(target.labels), name="up")
        self._duration = self._up.replace(__name__="scrape_duration_seconds")
        self._scraped = self._up.replace(__name__="scrape_samples_scraped")
        self._changed = self._up.replace(__name__=CHANGED)
        self._fell = self._up.replace(__name__=FELL)
        self._mixed = self._up.replace(__name__=MIXED)
        self._resets = Resets()
        self.kept = 0
        """Samples of the latest page that were taken for what the target says now."""
        self._declared: Mapping[str, Family] = {}
        self._reset()

    def _reset(self) -> None:
        self.parser = PageParser(self._identify, self._limits, self._dress)
        self._ids: dict[Labels, int] = {}
        self._labels: list[Labels] = []
        self._previous: Floats = blank(0)
        self._had = np.empty(0, dtype=np.bool_)
        self._cached: tuple[Rows, int] | None = None
        self._rows: Rows = np.empty(0, dtype=np.intp)
        self._keep = np.empty(0, dtype=np.intp)
        self._derived: list[tuple[int, Labels, float]] = []
        self._blanks = Blanks(())
        self._counters = np.empty(0, dtype=np.intp)
        self._counted = np.empty(0, dtype=np.bool_)
        self._scrapes = 0
        self._resets.forget()

    def _dress(self, found: dict[str, str]) -> Labels:
        """The labels of a series with the target's on them; what clashes becomes ``exported_…``."""
        for key, value in self._fixed.items():
            if key in found:
                exported = f"exported_{key}"
                while exported in found:
                    exported = f"exported_{exported}"
                found[exported] = found.pop(key)
            found[key] = value
        return Labels.of(found)

    def _identify(self, labels: Labels) -> int:
        """A number for a series."""
        known = self._ids.get(labels)
        if known is None:
            known = self._ids[labels] = len(self._labels)
            self._labels.append(labels)
        return known

    @property
    def trouble(self) -> str:
        """What is to be said of the process behind the page, beyond its samples; mostly nothing."""
        return self._resets.words

    def write(self, time_ms: int, page: Page, duration_s: float) -> str:
        """Write a page as the column at ``time_ms``; the answer is a remark on what was left out, or empty."""
        remarks = [f"{page.duplicates} duplicate samples left out"] if page.duplicates else []
        rows, values = self._layout(page), page.values[self._keep]
        fell = self._count_fallen(time_ms, page)
        changed = self._count_changed(page)
        left_out = self._blanks.among(np.arange(len(values)), values)
        if page.times is not None:
            age = time_ms - page.times[self._keep]
            old = (page.times[self._keep] != NO_TIME) & (age > OLDEST_MS)
            if old.any():
                remarks.append(f"{int(old.sum())} samples left out: their own timestamps are more than 5 minutes old")
                left_out |= old
        self.kept = len(values) - int(np.count_nonzero(left_out))
        if self._resets.since_ms is not None:
            left_out |= self._counted
        if left_out.any():
            rows, values = rows[~left_out], values[~left_out]
        given = np.concatenate([values, self._constants(page), [1.0, duration_s, float(len(page.rows))]])
        extra = [self._row(labels) for _, labels, _ in self._derived]
        own = [self._row(labels) for labels in (self._up, self._duration, self._scraped)]
        if changed is not None:
            own.append(self._row(self._changed))
            given = np.append(given, float(changed))
        if fell:
            own.append(self._row(self._fell))
            given = np.append(given, float(fell))
        if self._resets.since_ms is not None:
            own.append(self._row(self._mixed))
            given = np.append(given, 1.0)
        if not self.frame.append(time_ms, np.concatenate([rows, np.array(extra + own, dtype=np.intp)]), given):
            remarks.append("this host's clock went back: the scrape was not kept")
        if page.families is not self._declared:
            self._declared = page.families
            declare(self._store, page.families.values())
        if len(self._labels) > 2 * len(page.rows) + 1000:
            self._reset()
        return "; ".join(remarks)

    def forget_refused(self) -> None:
        """After a page that was refused: keep what it named only while that is not too much."""
        if len(self._labels) > 3 * (self._limits or Limits()).series:
            self._reset()

    def fail(self, time_ms: int, duration_s: float) -> None:
        """Write a failed scrape: ``up`` 0, and every series of the target stale from here on."""
        rows = [self._row(labels) for labels in (self._up, self._duration, self._scraped)]
        self.frame.append(time_ms, np.array(rows, dtype=np.intp), np.array([0.0, duration_s, 0.0]))

    def _row(self, labels: Labels) -> int:
        return self.frame.row(labels)

    def _layout(self, page: Page) -> Rows:
        """The frame's rows of a page; looked up anew whenever a series came or went anywhere in the store."""
        if self._cached is not None and self._cached[0] is page.rows and self._cached[1] == self._store.version:
            return self._rows
        synthetic = {self._up, self._duration, self._scraped, self._changed, self._fell, self._mixed}
        named = [self._labels[at] for at in page.rows.tolist()]
        kept = [i for i, one in enumerate(named) if one not in synthetic]
        labels = [named[i] for i in kept]
        own = [self._up, self._duration, self._scraped, self._changed]
        self._keep = np.array(kept, dtype=np.intp)
        known = {name: counts(name, page.families) for name in {one.name for one in labels}}
        self._counted = np.array([known[one.name] for one in labels], dtype=np.bool_)
        self._counters = self._keep[self._counted]
        self._rows = self.frame.rows(labels)
        self._blanks = Blanks(labels)
        self._derived = self._derivable(named, set(labels))
        self.frame.rows([derived for _, derived, _ in self._derived] + own)
        self._cached = (page.rows, self._store.version)
        return self._rows

    def _derivable(self, named: Sequence[Labels], present: Set[Labels]) -> list[tuple[int, Labels, float]]:
        """The gauges in the labels of a page's info series: place of the series, labels and value, each once."""
        found: dict[Labels, tuple[int, Labels, float]] = {}
        for i, one in enumerate(named):
            if one.name in self._info.metrics:
                for derived, constant in self._info.derive(one, self._target.labels):
                    if derived not in present:
                        found.setdefault(derived, (i, derived, constant))
        return list(found.values())

    def _constants(self, page: Page) -> Floats:
        """Values of the derived gauges; absent where the info sample is 0 or NaN."""
        out = blank(len(self._derived))
        for i, (at, _, constant) in enumerate(self._derived):
            if page.values[at] > 0:
                out[i] = constant
        return out

    def _count_fallen(self, time_ms: int, page: Page) -> int:
        """How many counters are lower than on the page before; where they are those of several processes, what was
        written of them goes, too: a change from one to the other would look like progress."""
        self._make_room()
        at = page.rows[self._counters]
        before, now = np.full(len(self._had), np.nan), np.full(len(self._had), np.nan)
        before[at] = np.where(self._had[at], self._previous[at], np.nan)
        now[at] = page.values[self._counters]
        was_mixed = self._resets.since_ms is not None
        fell = self._resets.take(time_ms, before, now)
        if self._resets.since_ms is not None and not was_mixed:
            counted = [n for n in self.frame.names() if counts(n, page.families)]
            rows = [row for name in counted for row in self.frame.rows_named(name)]
            self.frame.withdraw(np.array(rows, dtype=np.intp), self._resets.since_ms)
        return fell

    def _make_room(self) -> None:
        size = len(self._labels)
        if size > len(self._had):
            grown = blank(size + size // 4)
            grown[: len(self._previous)] = self._previous
            had = np.zeros(len(grown), dtype=np.bool_)
            had[: len(self._had)] = self._had
            self._previous, self._had = grown, had

    def _count_changed(self, page: Page) -> int | None:
        """How many samples differ from the page before (a new series differs); None for the first page."""
        before = self._previous[page.rows]
        same = (before == page.values) | (np.isnan(before) & np.isnan(page.values))
        changed = int(np.count_nonzero(~(same & self._had[page.rows])))
        self._had[:] = False
        self._had[page.rows] = True
        self._previous[page.rows] = page.values
        self._scrapes += 1
        return changed if self._scrapes > 1 else None


def declare(store: SeriesStore, families: Iterable[Family]) -> None:
    """Tell the store what a page or file says of its families."""
    for family in families:
        kind = "unknown" if family.type == "untyped" else family.type
        store.set_metadata(family.name, Metadata(kind, family.help, family.unit))
