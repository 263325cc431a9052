"""The segments of a log directory: one active, the sealed ones by epoch, spares that wait. Owned by the flusher thread;
new segments are made (64 MiB of zeros each) by the helper thread."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from kvstore.errors import LogFailed, LogFull
from kvstore.log.config import LogConfig
from kvstore.log.helper import Helper
from kvstore.log.segment import NAME_PATTERN, Segment, create

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
RETRY_S = 1.0
"""How long the background waits before it tries again to make a segment; a put that needs one tries at once."""


class Shelf:
    """Which file is what."""

    def __init__(self, directory: Path, config: LogConfig, helper: Helper, wake: Callable[[], None]) -> None:
        self.directory = directory
        self.config = config
        self.active: Segment | None = None
        self.sealed: dict[int, Segment] = {}
        self.spares: list[Segment] = []
        self._helper = helper
        self._wake = wake
        self._making: Future[Segment] | None = None
        self._not_before = 0.0
        self._next_number = 1

    def adopt(self, segments: list[Segment], live: set[int], newest: int) -> None:
        """What recovery found: epochs in `live` (and `newest`) are sealed, all others may be used again."""
        for segment in segments:
            self._next_number = max(self._next_number, segment.number + 1)
            if segment.epoch and (segment.epoch in live or segment.epoch == newest):
                self.sealed[segment.epoch] = segment
            elif segment.size == self.config.segment_bytes:
                self.spares.append(segment)
            else:
                segment.delete()

    @property
    def total(self) -> int:
        """Segment files, the one being made among them."""
        return len(self.sealed) + len(self.spares) + (self.active is not None) + (self._making is not None)

    @property
    def making(self) -> bool:
        return self._making is not None

    def prefetch(self) -> None:
        """Have a spare made in the background, if there is none and the budget allows one."""
        self.collect_made()
        if self.spares or self._making is not None or time.monotonic() < self._not_before:
            return
        if self.total < self.config.budget_segments:
            self._start()

    def collect_made(self) -> None:
        """Take over what the helper has finished. A failure is left to who needs a spare, and tries again."""
        if self._making is None or not self._making.done():
            return
        made, self._making = self._making, None
        if made.exception() is None:
            self.spares.append(made.result())
        else:
            self._not_before = time.monotonic() + RETRY_S

    def reserve(self, count: int, extra: int = 0) -> None:
        """See to it that `count` spares are there, waiting for them to be made if need be.

        `extra` segments beyond the limit are for the log's own rewrites and for drops. Raises `LogFull` when the limit
        is reached or the file system has no room, `LogFailed` for anything else.
        """
        self.collect_made()
        while len(self.spares) < count:
            if self._making is None:
                if self.total >= self.config.limit + extra:
                    raise LogFull(
                        f"the log in {self.directory} is at its limit of {self.config.limit} segments, none free: "
                        "durable puts are refused until blocks are evicted (or give it a larger budget)"
                    )
                self._start()
            made, self._making = self._making, None
            assert made is not None
            try:
                self.spares.append(made.result())
            except OSError as error:
                raise write_failure(self.directory, error) from None

    def retire(self, epochs: list[int]) -> None:
        """Sealed segments that nothing needs any more become spares."""
        for epoch in epochs:
            segment = self.sealed.pop(epoch)
            if segment.size == self.config.segment_bytes:
                self.spares.append(segment)
            else:
                segment.delete()

    def by_state(self) -> dict[str, int]:
        """Counts for the page, by state."""
        return {"active": int(self.active is not None), "sealed": len(self.sealed), "spare": len(self.spares)}

    def close(self) -> None:
        if self._making is not None and self._making.exception() is None:
            self.spares.append(self._making.result())
        for segment in [*self.sealed.values(), *self.spares, *([self.active] if self.active else [])]:
            segment.close()

    def _start(self) -> None:
        number, self._next_number = self._next_number, self._next_number + 1
        self._making = self._helper.submit(create, self.directory, number, self.config.segment_bytes)
        self._making.add_done_callback(lambda _: self._wake())


def open_segments(directory: Path) -> list[Segment]:
    """All segment files; half-made ones are deleted."""
    for path in directory.glob("*.making"):
        path.unlink()
    return [Segment(path, int(path.name.rsplit("-", 1)[1])) for path in sorted(directory.glob(NAME_PATTERN))]


def write_failure(directory: Path, error: OSError) -> LogFull | LogFailed:
    """No room is a refusal; any other failure to write ends the log."""
    if error.errno in NO_SPACE:
        return LogFull(f"no room for the log in {directory}: {error.strerror}: durable puts are refused until there is")
    return LogFailed(f"cannot write the log in {directory}: {error.strerror}: the shard must stop")
