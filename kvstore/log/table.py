"""Which live block lies where in the log: columns, one row a record that is still needed.

A tail that was appended to has several rows, each naming the one before it. Owned by the flusher thread.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kvstore.log.record import Kind, Records

ROW = np.dtype(
    [
        ("key", "<u8", (4,)),
        ("chain", "V24"),
        ("clock", "<u8"),
        ("session", "<u8"),
        ("block_sum", "<u8"),
        ("epoch", "<u8"),
        ("payload_sum", "<u8"),
        ("offset", "<u4"),
        ("payload_bytes", "<u4"),
        ("valid", "<u4"),
        ("first", "<u4"),
        ("before", "<i4"),
        ("length", "<u4"),
    ]
)
_COPIED = ("key", "chain", "clock", "session", "block_sum", "payload_sum", "payload_bytes", "valid", "first", "length")
NOBODY = -1
_APPEND, _PUT, _REWRITE = int(Kind.APPEND), int(Kind.PUT), int(Kind.REWRITE)
Rows = npt.NDArray[Any]
"""`[n]` of dtype `ROW`."""


class LiveTable:
    """key → newest row; rows → (epoch, bytes in the segment, row before)."""

    def __init__(self) -> None:
        self.rows: Rows = np.zeros(1024, ROW)
        self.live_bytes: dict[int, int] = {}
        """Bytes of live records by segment epoch."""
        self.last_clock = 0
        self._newest: dict[bytes, int] = {}
        self._spans: list[tuple[int, int, int] | None] = []
        self._free: list[int] = []

    def __len__(self) -> int:
        """Live keys."""
        return len(self._newest)

    def newest(self, key: bytes) -> int:
        """The newest row of a key, or `NOBODY`."""
        return self._newest.get(key, NOBODY)

    def apply(self, headers: Records, epochs: npt.NDArray[np.uint64], offsets: npt.NDArray[np.int64]) -> None:
        """Records as they were written, in order; `epochs` and `offsets` `[n]` say where."""
        if not len(headers):
            return
        self.last_clock = max(self.last_clock, int(headers["clock"].max()))
        keys = headers["key"].tobytes()
        kinds = headers["kind"].tolist()
        stored = [row for row, kind in enumerate(kinds) if kind in (_APPEND, _PUT, _REWRITE)]
        rows = self._place(headers, epochs, offsets, stored)
        places = iter(rows)
        for position, kind in enumerate(kinds):
            key = keys[position * 32 : position * 32 + 32]
            old = self._newest.get(key, NOBODY)
            if kind == _APPEND:
                self._extend(key, next(places), old)
            elif kind in (_PUT, _REWRITE):
                self._newest[key] = next(places)
                self._release(old)
            elif old != NOBODY:
                del self._newest[key]
                self._release(old)

    def drop(self, key: bytes) -> None:
        """Forget a key whose payload turned out to be damaged."""
        self._release(self._newest.pop(key, NOBODY))

    def pieces(self, row: int) -> list[int]:
        """The rows that make up the block of newest row `row`, oldest first."""
        found = []
        while row != NOBODY:
            found.append(row)
            span = self._spans[row]
            row = span[2] if span else NOBODY
        return found[::-1]

    def heads(self) -> list[int]:
        """The newest row of every live key."""
        return list(self._newest.values())

    def heads_in(self, epoch: int) -> list[int]:
        """The newest rows of the keys of which any piece lies in the segment of `epoch`, in log order."""
        if not self.live_bytes.get(epoch):
            return []
        held = np.flatnonzero(self.rows["epoch"][: len(self._spans)] == epoch)
        held = held[np.argsort(self.rows["offset"][held], kind="stable")]
        keys = self.rows["key"][held].tobytes()
        return list(dict.fromkeys(self._newest[keys[at * 32 : at * 32 + 32]] for at in range(len(held))))

    def snapshot(self) -> Rows:
        """The live rows, `before` renumbered: what a checkpoint holds."""
        live = np.flatnonzero(self.rows["epoch"][: len(self._spans)])
        rows = self.rows[live]
        number = np.full(len(self._spans) + 1, NOBODY, np.int32)
        number[live] = np.arange(len(live), dtype=np.int32)
        rows["before"] = number[rows["before"]]
        return rows

    @classmethod
    def restore(cls, rows: Rows, last_clock: int) -> LiveTable:
        """The reverse of `snapshot`."""
        table = cls()
        table.last_clock = last_clock
        table.rows = np.zeros(max(1024, len(rows)), ROW)
        table.rows[: len(rows)] = rows
        epochs, lengths, before = (rows[name].tolist() for name in ("epoch", "length", "before"))
        table._spans = list(zip(epochs, lengths, before, strict=True))
        followed = set(before)
        keys = rows["key"].tobytes()
        for row in range(len(rows)):
            table.live_bytes[epochs[row]] = table.live_bytes.get(epochs[row], 0) + lengths[row]
            if row not in followed:
                table._newest[keys[row * 32 : row * 32 + 32]] = row
        return table

    def _place(
        self,
        headers: Records,
        epochs: npt.NDArray[np.uint64],
        offsets: npt.NDArray[np.int64],
        stored: list[int],
    ) -> list[int]:
        """Rows for the records at `stored`, filled in column by column."""
        if not stored:
            return []
        rows = self._reserve(len(stored))
        taken: Any = slice(None) if len(stored) == len(headers) else stored
        for name in _COPIED:
            self.rows[name][rows] = headers[name][taken]
        self.rows["epoch"][rows] = epochs[taken]
        self.rows["offset"][rows] = offsets[taken]
        self.rows["before"][rows] = NOBODY
        lengths = headers["length"][taken].tolist()
        for row, epoch, length in zip(rows, epochs[taken].tolist(), lengths, strict=True):
            self._spans[row] = (epoch, length, NOBODY)
            self.live_bytes[epoch] = self.live_bytes.get(epoch, 0) + length
        return rows

    def _extend(self, key: bytes, row: int, old: int) -> None:
        """An append keeps the rows before it, unless it begins at token 0; one that continues nothing is dropped."""
        first = int(self.rows["first"][row])
        if first == 0:
            self._newest[key] = row
            self._release(old)
            return
        if old == NOBODY or first > int(self.rows["valid"][old]):
            self._release(row)
            return
        span = self._spans[row]
        assert span is not None
        self._spans[row] = (span[0], span[1], old)
        self.rows["before"][row] = old
        self._newest[key] = row

    def _reserve(self, count: int) -> list[int]:
        reused = [self._free.pop() for _ in range(min(count, len(self._free)))]
        fresh = count - len(reused)
        first = len(self._spans)
        self._spans += [None] * fresh
        if first + fresh > len(self.rows):
            grown = np.zeros(max(2 * len(self.rows), first + fresh), ROW)
            grown[: len(self.rows)] = self.rows
            self.rows = grown
        return reused + list(range(first, first + fresh))

    def _release(self, row: int) -> None:
        for piece in self.pieces(row):
            span = self._spans[piece]
            assert span is not None
            self.live_bytes[span[0]] -= span[1]
            self._spans[piece] = None
            self.rows["epoch"][piece] = 0  # no segment has epoch 0: the row is free
            self._free.append(piece)


class Continuity:
    """Whether the appends of one group continue what the log, or the batches before them in the group, hold."""

    def __init__(self, table: LiveTable) -> None:
        self._table = table
        self._valid: dict[bytes, int] = {}

    def admits(self, headers: Records) -> bool:
        """False when one of the appends begins behind what its key holds; otherwise the batch counts from now on."""
        kinds = headers["kind"].tolist()
        raw = headers["key"].tobytes()
        valid_of: dict[bytes, int] = {}
        columns = zip(kinds, headers["first"].tolist(), headers["valid"].tolist(), strict=True)
        for position, (kind, first, valid) in enumerate(columns):
            key = raw[position * 32 : position * 32 + 32]
            if kind == _APPEND and first > self._held(key, valid_of):
                return False
            valid_of[key] = valid if kind in (_APPEND, _PUT, _REWRITE) else 0
        self._valid.update(valid_of)
        return True

    def _held(self, key: bytes, here: dict[bytes, int]) -> int:
        if key in here:
            return here[key]
        if key in self._valid:
            return self._valid[key]
        row = self._table.newest(key)
        return int(self._table.rows["valid"][row]) if row != NOBODY else 0
