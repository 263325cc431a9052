"""A frame: all series of one source on one time axis, so that a scrape is one column.

The newest columns lie in an open block, time-major, so that a column is one contiguous write; full blocks are
sealed and packed (``columns.Chunk``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from probes.columns import (
    ABSENT,
    STALE,
    Chunk,
    Floats,
    Rows,
    Times,
    blank,
    is_absent,
    is_sample,
    is_stale,
    markers,
    together,
)
from probes.labels import Labels

_BLOCK_COLUMNS = 64
_DEFAULT_OPEN_BYTES = 4 * 1024 * 1024
_NEVER = -1


class Budget(Protocol):
    """What a frame asks of its store."""

    max_bytes: int
    version: int

    def trim(self) -> None: ...


class Frame:
    """All series of one source on one time axis (int64 ms, strictly increasing)."""

    def __init__(self, source: str, store: Budget | None = None) -> None:
        self.source = source
        self._store = store
        self._labels: list[Labels | None] = []
        self._rows: dict[Labels, int] = {}
        self._by_name: dict[str, list[int]] = {}
        self._free: list[int] = []
        self._chunks: list[Chunk] = []
        self._starts: list[int] = [0]
        self._axis: Times = np.empty(_BLOCK_COLUMNS, dtype=np.int64)
        self._columns = 0
        self._tail: Floats = blank((8, 0))
        self._used = 0
        self._dropped = 0
        self._last = np.empty(0, dtype=np.int64)

    # --- what is here ---------------------------------------------------------------------------------------

    @property
    def times(self) -> Times:
        """The time axis [T], ms. A view: do not write to it."""
        return self._axis[: self._columns]

    @property
    def labels(self) -> list[Labels]:
        """The label sets of the live rows, in row order."""
        return [found for found in self._labels if found is not None]

    @property
    def values(self) -> Floats:
        """All samples [S, T] (a copy, C order), rows in the order of ``labels``; for tests and export."""
        rows = np.array([i for i, found in enumerate(self._labels) if found is not None], dtype=np.intp)
        return np.ascontiguousarray(self.window(0, self._columns, rows).T)

    @property
    def samples(self) -> int:
        """Stored entries that are not ABSENT."""
        tail = self._tail[: self._used]
        return sum(c.samples for c in self._chunks) + int((~is_absent(tail)).sum())

    @property
    def nbytes(self) -> int:
        """Bytes of sample storage."""
        open_bytes = int(self._tail.nbytes) + int(self._axis.nbytes) + int(self._last.nbytes)
        return open_bytes + sum(int(c.nbytes) for c in self._chunks)

    def rows_named(self, name: str) -> Sequence[int]:
        """Rows of the series with this metric name."""
        return self._by_name.get(name, ())

    def names(self) -> Iterator[str]:
        return iter(self._by_name)

    def label_at(self, row: int) -> Labels:
        found = self._labels[row]
        if found is None:
            raise KeyError(f"row {row} of {self.source} holds no series")
        return found

    def latest(self, labels: Labels, at_ms: int | None = None) -> tuple[int, float] | None:
        """Time (ms) and value of a series' newest sample (at or before ``at_ms``) in the window, or None."""
        row = self._rows.get(labels)
        if row is None:
            return None
        column = int(self._last[row]) - self._dropped
        rows = np.array([row], dtype=np.intp)
        if at_ms is not None and column >= 0 and int(self._axis[column]) > at_ms:
            end = int(np.searchsorted(self.times, at_ms, side="right"))
            held = np.flatnonzero(is_sample(self.window(0, end, rows)[:, 0]))
            column = int(held[-1]) if held.size else _NEVER
        if column < 0:
            return None
        return int(self._axis[column]), float(self.window(column, column + 1, rows)[0, 0])

    # --- reading --------------------------------------------------------------------------------------------

    def column(self, at: int, rows: Rows) -> Floats:
        """One column of ``rows``: [len(rows)]."""
        sealed = self._starts[-1]
        if at >= sealed:
            picked: Floats = self._tail[at - sealed].take(rows)
        else:
            picked = self.window(at, at + 1, rows)[0]
        return picked

    def window(self, low: int, high: int, rows: Rows) -> Floats:
        """Columns ``low`` up to ``high`` of ``rows``, time-major: [high - low, len(rows)]."""
        out: Floats = np.empty((max(0, high - low), rows.size), dtype=np.float64)
        sealed = self._starts[-1]
        where = together(rows)
        at = low
        number = bisect_right(self._starts, low) - 1
        while at < min(high, sealed):
            start, stop = self._starts[number], self._starts[number + 1]
            until = min(high, stop)
            self._chunks[number].take(at - start, until - start, where, out[at - low : until - low])
            at, number = until, number + 1
        if at < high:
            tail = self._tail[at - sealed : high - sealed]
            out[at - low :] = tail[:, where] if isinstance(where, slice) else np.take(tail, where, axis=1)
        return out

    # --- writing --------------------------------------------------------------------------------------------

    def row(self, labels: Labels) -> int:
        """The row of a series, made when it is new."""
        known = self._rows.get(labels)
        return int(self.rows((labels,))[0]) if known is None else known

    def rows(self, labels: Sequence[Labels]) -> Rows:
        """The rows of series, made for those that are new: a page's at once."""
        new = [one for one in dict.fromkeys(labels) if one not in self._rows]
        if new:
            self._admit(new)
        return np.array([self._rows[one] for one in labels], dtype=np.intp)

    def _admit(self, new: Sequence[Labels]) -> None:
        """Make a row for each of these series."""
        reused = [self._free.pop() for _ in range(min(len(self._free), len(new)))]
        first = len(self._labels)
        count = first + len(new) - len(reused)
        if count > self._tail.shape[1]:
            self._widen(max(16, count + count // 4))
        self._labels += [None] * (count - first)
        for row, labels in zip((*reused, *range(first, count)), new, strict=True):
            self._labels[row] = labels
            self._last[row] = _NEVER
            self._rows[labels] = row
            self._by_name.setdefault(labels.name, []).append(row)
        self._changed()

    def append(self, time_ms: int, rows: Sequence[int] | Rows, values: Sequence[float] | Floats) -> bool:
        """Write one column: ``values[i]`` for ``rows[i]``.

        A row that had a sample in the column before and is not named (or is given ABSENT) gets a staleness
        marker. The same time again adds to the last column. An older time is dropped, as Prometheus drops
        samples out of order: the answer is then False.
        """
        index = np.asarray(rows, dtype=np.intp)
        given = np.ascontiguousarray(values, dtype=np.float64)
        newest = int(self._axis[self._columns - 1]) if self._columns else None
        if newest is not None and time_ms < newest:
            return False
        absent = is_absent(given)
        if absent.any():
            index, given = index[~absent], given[~absent]
        stale = is_stale(given)
        fresh = index[~stale] if stale.any() else index
        if newest is None or time_ms > newest:
            self._open_column(time_ms, fresh)
        else:
            self._last[fresh] = self._dropped + self._columns - 1
        self._tail[self._used - 1][index] = given
        return True

    def expire(self, time_ms: int) -> bool:
        """Mark every live row stale from ``time_ms`` on (the target is gone)."""
        if self._columns and time_ms <= int(self._axis[self._columns - 1]):
            time_ms = int(self._axis[self._columns - 1]) + 1
        return self.append(time_ms, np.empty(0, dtype=np.intp), np.empty(0, dtype=np.float64))

    def withdraw(self, rows: Rows, since_ms: int) -> None:
        """Take back the samples of ``rows`` since a moment, as far as the open block reaches: they measure nothing."""
        start = self._starts[-1]
        first = max(int(np.searchsorted(self.times, since_ms)), start)
        held = self._tail[first - start : self._used][:, rows]
        self._tail[first - start : self._used, rows] = np.where(is_sample(held), STALE, held)
        for row in rows.tolist():
            if self._last[row] - self._dropped >= first:
                left = np.flatnonzero(is_sample(self.window(0, first, np.array([row], dtype=np.intp))[:, 0]))
                self._last[row] = self._dropped + int(left[-1]) if left.size else _NEVER

    def load(self, times: Times, labels: Sequence[Labels], matrix: Floats) -> None:
        """Bulk load: ``times`` [T] ms strictly increasing and after what is there, ``matrix`` [S, T], ABSENT in gaps.

        Raises ValueError for shapes that do not fit or times out of order.
        """
        axis = np.ascontiguousarray(times, dtype=np.int64)
        if matrix.shape != (len(labels), axis.size):
            raise ValueError(f"{self.source}: matrix {matrix.shape} for {len(labels)} series x {axis.size} times")
        if axis.size == 0:
            return
        if (np.diff(axis) <= 0).any() or (self._columns and axis[0] <= self._axis[self._columns - 1]):
            raise ValueError(f"{self.source}: times to load must increase and come after the newest column")
        rows = self.rows(labels)
        self._seal()
        for start in range(0, axis.size, _BLOCK_COLUMNS):
            part = axis[start : start + _BLOCK_COLUMNS]
            block = blank((part.size, len(self._labels)))
            block[:, rows] = matrix[:, start : start + part.size].T
            base = self._dropped + self._columns
            present = is_sample(block)
            newest = part.size - 1 - present[::-1].argmax(axis=0)
            seen = np.flatnonzero(present.any(axis=0))
            self._last[seen] = base + newest[seen]
            self._extend_axis(part)
            self._add_chunk(Chunk(part, block))
        if self._store is not None:
            self._store.trim()

    # --- blocks ---------------------------------------------------------------------------------------------

    def drop_oldest(self) -> bool:
        """Drop the oldest sealed block, and the series that have no sample left; False when there is none."""
        if not self._chunks:
            return False
        gone = self._chunks.pop(0).times.size
        self._starts = [start - gone for start in self._starts[1:]]
        self._axis[: self._columns - gone] = self._axis[gone : self._columns]
        self._columns -= gone
        self._dropped += gone
        self._forget(np.flatnonzero(self._last < self._dropped))
        return True

    @property
    def oldest_sealed_ms(self) -> int | None:
        """End of the oldest sealed block, ms."""
        return int(self._chunks[0].times[-1]) if self._chunks else None

    def _forget(self, rows: Rows) -> None:
        gone = False
        for row in rows.tolist():
            # A row made after the newest column has no sample yet, and is not old.
            if row >= len(self._labels) or self._last[row] == _NEVER:
                continue
            labels = self._labels[row]
            if labels is None:
                continue
            self._labels[row] = None
            del self._rows[labels]
            named = self._by_name[labels.name]
            named.remove(row)
            if not named:
                del self._by_name[labels.name]
            self._free.append(row)
            gone = True
        if gone:
            self._changed()

    def _open_column(self, time_ms: int, fresh: Rows) -> None:
        number = self._dropped + self._columns
        live = self._last == number - 1
        # Before room is made: a row that comes back after a long absence must not be forgotten now.
        self._last[fresh] = number
        if self._used == self._tail.shape[0]:
            self._make_room()
        self._tail[self._used] = markers(live) if number else ABSENT
        self._extend_axis(np.array([time_ms], dtype=np.int64))
        self._used += 1

    def _make_room(self) -> None:
        """Grow the open block up to its limit, else seal it."""
        height, width = self._tail.shape
        share = self._store.max_bytes // 8 if self._store is not None else _DEFAULT_OPEN_BYTES
        limit = max(4, min(_BLOCK_COLUMNS, share // (8 * max(1, width))))
        if height < limit:
            grown = blank((min(limit, max(8, height * 2)), width))
            grown[:height] = self._tail
            self._tail = grown
        else:
            self._seal()
        if self._store is not None:
            self._store.trim()

    def _seal(self) -> None:
        if not self._used:
            return
        start = self._starts[-1]
        chunk = Chunk(self._axis[start : start + self._used], self._tail[: self._used, : len(self._labels)])
        self._add_chunk(chunk)
        self._used = 0

    def _add_chunk(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)
        self._starts.append(self._starts[-1] + chunk.times.size)

    def _extend_axis(self, times: Times) -> None:
        need = self._columns + times.size
        if need > self._axis.size:
            grown = np.empty(max(need, 2 * self._axis.size), dtype=np.int64)
            grown[: self._columns] = self._axis[: self._columns]
            self._axis = grown
        self._axis[self._columns : need] = times
        self._columns = need

    def _widen(self, width: int) -> None:
        height, old = self._tail.shape
        grown = blank((height, width))
        grown[:, :old] = self._tail
        self._tail = grown
        last = np.full(width, _NEVER, dtype=np.int64)
        last[: self._last.size] = self._last
        self._last = last

    def _changed(self) -> None:
        if self._store is not None:
            self._store.version += 1
