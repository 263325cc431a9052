"""``kvtop record``: cycles as one OpenMetrics file, in constant memory.

While it records, the file holds scrape after scrape: kvtop reads it, also after ``kill -9`` (at most the last cycle is
lost). OpenMetrics wants the samples of a family together, so on closing, or by ``repair``, it is put in that order.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import numpy as np

from probes.columns import is_sample
from probes.exposition import ExpositionError
from probes.labels import Labels
from probes.openmetrics import FamilyNames, series_text, type_line
from probes.regular import kind, open_regular
from probes.reorder import Mended, reorder
from probes.series import Frame, SeriesStore

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
HEADER = b"# kvscope recording: scrape after scrape, not yet in OpenMetrics order (kvtop record --repair FILE)\n"


class RecordingError(Exception):
    """A recording that cannot be written or mended: one line that says what, where and what to do."""


class UnwritableError(RecordingError):
    """What was collected cannot be kept: a full disk, or a file that was taken away."""


class Recorder:
    """Writes what is new in a store to a file, column by column; use it as a context manager or ``close`` it."""

    def __init__(self, path: Path, store: SeriesStore, *, overwrite: bool = False) -> None:
        """Open the file; ``RecordingError`` when it is there already (without ``overwrite``) or cannot be made."""
        self.path = path
        self.samples = 0
        self._store = store
        self._names = FamilyNames(store.metadata)
        self._written_ms: dict[str, int] = {}
        self._heads: dict[Labels, bytes] = {}
        self._declared: set[str] = set()
        self._file: int | None = _make(path, overwrite)
        self._put(HEADER)

    def record(self) -> int:
        """Append every column that came since the last call and hand it to the operating system; counts samples."""
        parts: list[bytes] = []
        before = self.samples
        for frame in self._store.frames:
            since = self._written_ms.get(frame.source)
            times = frame.times
            start = 0 if since is None else int(np.searchsorted(times, since, side="right"))
            for column in range(start, len(times)):
                parts.extend(self._column(frame, column))
            if len(times):
                self._written_ms[frame.source] = int(times[-1])
        if parts:
            self._put(b"".join(parts))
        return self.samples - before

    def close(self) -> None:
        """Put the file in OpenMetrics order, ended by ``# EOF``; nobody else can have it before that is done."""
        if self._file is None:
            return
        held, self._file = self._file, None
        try:
            self._refuse_lost(held)
            _mend(self.path)
        finally:
            os.close(held)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is None:
            self.close()
            return
        with contextlib.suppress(RecordingError):  # what went wrong first is what is to be told
            self.close()

    def _refuse_lost(self, held: int) -> None:
        """The path must still lead to the file that was written."""
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(held), self.path.stat()):
                return
        raise UnwritableError(f"{self.path}: was deleted or replaced while it was being recorded: its samples are lost")

    def _column(self, frame: Frame, column: int) -> Iterator[bytes]:
        labels, rows = _rows(frame)
        values = frame.window(column, column + 1, rows)[0]
        there = np.flatnonzero(is_sample(values))
        stamp = stamp_text(int(frame.times[column]))
        if len(self._heads) > 2 * len(labels) + 10_000:
            self._heads.clear()
        for at in there.tolist():
            one = labels[at]
            head = self._heads.get(one)
            if head is None:
                head = self._heads[one] = f"{series_text(one)} ".encode()
                yield from self._declare(one.name)
            yield head + value_text(float(values[at])) + stamp
        self.samples += len(there)

    def _declare(self, name: str) -> Iterator[bytes]:
        family = self._names.family(name)
        if family.name not in self._declared:
            self._declared.add(family.name)
            yield type_line(family)

    def _put(self, data: bytes) -> None:
        assert self._file is not None
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._file, view) :]
        except OSError as error:
            words = (error.strerror or str(error)).lower()
            raise UnwritableError(f"{self.path}: cannot be written: {words}; what came before is there") from None


def repair(path: Path) -> Mended:
    """Put a recording in OpenMetrics order and end it, so that promtool takes it.

    A last line that was cut is left out. The file is replaced only when the new one is whole. Raises
    ``RecordingError``, also for a file that is no recording or that a recorder is still writing; the file is then as
    it was.
    """
    try:
        with open_regular(path) as file:
            _lock(file.fileno(), path)
            return _mend(path)
    except OSError as error:
        raise RecordingError(f"{path}: cannot be mended: {(error.strerror or str(error)).lower()}") from None


def refuse_taken(path: Path) -> None:
    """Raise ``RecordingError`` for an output that is there already: still being written, or done."""
    if not path.exists():
        return
    with contextlib.suppress(OSError), open_regular(path) as file:
        _lock(file.fileno(), path)
    raise RecordingError(f"{path}: is there already; name another file or add --force")


def _make(path: Path, overwrite: bool) -> int:
    """Create the output, or empty it, once no other recorder has it."""
    if path.suffix == ".gz":
        raise RecordingError(f"{path}: a recording is written uncompressed: name it {path.stem}")
    try:
        made = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC | (0 if overwrite else os.O_EXCL), 0o666
        )
    except FileExistsError:
        refuse_taken(path)
        raise
    except OSError as error:
        raise RecordingError(f"{path}: cannot be written: {(error.strerror or str(error)).lower()}") from None
    try:
        if found := kind(os.fstat(made).st_mode):
            raise RecordingError(f"{path}: cannot be written: is {found}, not a file")
        _lock(made, path)
        os.ftruncate(made, 0)
    except BaseException:
        os.close(made)
        raise
    return made


def _lock(file: int, path: Path) -> None:
    """Hold the file until it is closed; ``RecordingError`` when a recorder holds it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RecordingError(f"{path}: is still being recorded (by another kvtop)") from None
    except OSError:  # a file system without locks
        return


def _mend(path: Path) -> Mended:
    try:
        return reorder(path)
    except ExpositionError as error:
        raise RecordingError(f"{path}: cannot be mended: {error}") from None
    except OSError as error:
        kind = UnwritableError if error.errno in _FULL else RecordingError
        raise kind(f"{path}: cannot be mended: {(error.strerror or str(error)).lower()}") from None


def value_text(value: float) -> bytes:
    """A value as OpenMetrics writes it; the shortest text that reads back to the same float."""
    if math.isnan(value):
        return b"NaN"
    if math.isinf(value):
        return b"+Inf" if value > 0 else b"-Inf"
    return repr(value).encode()


def stamp_text(time_ms: int) -> bytes:
    """The end of a line: the time in seconds, with milliseconds where there are some."""
    seconds, rest = divmod(time_ms, 1000)
    return f" {seconds}.{rest:03d}\n".encode() if rest else f" {seconds}\n".encode()


def _rows(frame: Frame) -> tuple[list[Labels], np.ndarray[tuple[int], np.dtype[np.intp]]]:
    """The live rows of a frame with their label sets."""
    labels: list[Labels] = []
    rows: list[int] = []
    for name in frame.names():
        for row in frame.rows_named(name):
            labels.append(frame.label_at(row))
            rows.append(row)
    return labels, np.array(rows, dtype=np.intp)
