"""RDMA ports of this host, or of a recorded sysfs tree: one reading a cycle, every fault a state in words."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from dataclasses import replace

from probes.exposition import Limits
from probes.rdma.page import Reader, Reading, folded
from probes.rdma.tree import SYSFS, SysfsTree
from probes.series import SeriesStore
from probes.sources.base import SourceStatus, State
from probes.sources.info import InfoLabels, info_labels
from probes.sources.ingest import TargetFrame
from probes.target import Target

TIMEOUT_S = 5.0
"""Deadline of a reading (policy). A counter's file asks the adapter's firmware, and a broken adapter may not answer."""


class RdmaSource:
    """Reads a sysfs tree into its frame.

    The files are read in a thread of their own: a driver that hangs holds up that thread only, and it is not asked
    again until it has answered.
    """

    def __init__(
        self, target: Target, store: SeriesStore, *, timeout_s: float = TIMEOUT_S, info: InfoLabels | None = None
    ) -> None:
        self._target = target
        self.timeout_s = target.timeout_s or timeout_s
        self._tree = SysfsTree.at(target.path or SYSFS)
        self._reader = Reader(self._tree)
        named = replace(target, instance=target.instance or self._tree.hostname())
        self._frame = TargetFrame(store, named, info or info_labels(), Limits())
        self._asked: Future[Reading] | None = None
        self._since = 0.0
        self._ports: frozenset[str] = frozenset()
        self._status = SourceStatus(
            target.shown, "stale", "not asked yet", kind="rdma", job=named.job, instance=named.instance
        )

    @property
    def target(self) -> str:
        return self._target.shown

    @property
    def status(self) -> SourceStatus:
        return self._status

    async def collect(self, now_ms: int) -> SourceStatus:
        """One reading at ``now_ms``; what it brings is written as that column."""
        import asyncio

        asked, start = self._ask(), time.monotonic()
        try:
            reading = await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(asked)), self.timeout_s)
        except TimeoutError:
            return self._silent(now_ms, start)
        return self._answered(now_ms, start, reading)

    def collect_alone(self, now_ms: int) -> SourceStatus:
        """``collect`` without an event loop."""
        asked, start = self._ask(), time.monotonic()
        try:
            reading = asked.result(self.timeout_s)
        except TimeoutError:
            return self._silent(now_ms, start)
        return self._answered(now_ms, start, reading)

    async def close(self) -> None:
        """Nothing is held open; a reading that hangs goes on in its daemon thread."""

    def expire(self, now_ms: int) -> None:
        self._frame.frame.expire(now_ms)

    def _ask(self) -> Future[Reading]:
        """The reading under way, or a new one. What came after its deadline is old by now: it is asked anew."""
        if self._asked is None or self._asked.done():
            answer: Future[Reading] = Future()

            def read() -> None:
                try:
                    answer.set_result(self._reader.read())
                except BaseException as failure:
                    answer.set_exception(failure)

            self._asked, self._since = answer, time.monotonic()
            threading.Thread(target=read, name="rdma", daemon=True).start()
        return self._asked

    def _silent(self, now_ms: int, start: float) -> SourceStatus:
        waited = time.monotonic() - self._since
        return self._failed(now_ms, start, "timeout", f"the driver has not answered for {waited:.1f} s")

    def _answered(self, now_ms: int, start: float, reading: Reading) -> SourceStatus:
        self._asked = None
        fault = self._fault(reading)
        if fault is not None:
            return self._failed(now_ms, start, *fault)
        duration = time.monotonic() - start
        page = self._frame.parser.parse(reading.page)
        remarks = [self._frame.write(now_ms, page, duration), self._gone(reading), self._denied(reading)]
        self._status = replace(
            self._status,
            state="fresh",
            error=None,
            time_ms=now_ms,
            last_ok_ms=now_ms,
            duration_s=duration,
            samples=len(page.rows),
            bytes=len(reading.page),
            detail="; ".join(filter(None, remarks)),
        )
        return self._status

    def _fault(self, reading: Reading) -> tuple[State, str] | None:
        """Why a reading without a port has none; None for one that has."""
        folder = self._tree.devices_folder
        if reading.ports:
            return None
        if reading.forbidden:
            return "no-permission", f"{folded(reading.forbidden, self._tree.root)} may not be read by this user"
        if self._ports:
            return "gone", f"no RDMA port is left: {', '.join(sorted(self._ports))} went away"
        if reading.has_devices:
            return "unsupported", f"the devices in {folder} show no port"
        return "unsupported", f"no RDMA device: {folder} {'is empty' if folder.is_dir() else 'is not there'}"

    def _gone(self, reading: Reading) -> str:
        """Ports that were there once and are not now."""
        self._ports |= frozenset(reading.ports)
        lost = sorted(self._ports - frozenset(reading.ports))
        return f"{', '.join(lost)} went away" if lost else ""

    def _denied(self, reading: Reading) -> str:
        if not reading.forbidden:
            return ""
        return f"no permission for {folded(reading.forbidden, self._tree.root)}"

    def _failed(self, now_ms: int, start: float, state: State, error: str) -> SourceStatus:
        duration = time.monotonic() - start
        self._frame.fail(now_ms, duration)
        self._status = self._status.failed(now_ms, duration, state, error)
        return self._status
