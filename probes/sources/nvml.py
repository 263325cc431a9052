"""The GPUs of this host through NVML: one reading a cycle, every fault of the driver a state in words."""

from __future__ import annotations

import socket
import time
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, cast

from probes.exposition import Limits
from probes.nvml.helper import Helper, HelperEndedError
from probes.series import SeriesStore
from probes.sources.base import SourceStatus, State
from probes.sources.info import InfoLabels, info_labels
from probes.sources.ingest import TargetFrame
from probes.target import Target

TIMEOUT_S = 5.0
"""Deadline of a reading (policy)."""
START_S = 30.0
"""Deadline of the first reading of a process (policy): without persistence mode the driver wakes every GPU first, which
takes seconds for each."""


class NvmlSource:
    """Asks a process of its own for a page, and writes it into its frame.

    The process is started with the first reading. One that does not answer in time is killed; after that, and after one
    that found no driver, none is started for a while.
    """

    def __init__(
        self,
        target: Target,
        store: SeriesStore,
        *,
        timeout_s: float = TIMEOUT_S,
        start_s: float = START_S,
        info: InfoLabels | None = None,
        helper: Helper | None = None,
    ) -> None:
        self._target = target
        self._answer_s = target.timeout_s or timeout_s
        self._start_s = max(start_s, self._answer_s)
        self._helper = helper or Helper()
        named = replace(target, instance=target.instance or socket.gethostname())
        self._frame = TargetFrame(store, named, info or info_labels(), Limits())
        self._status = SourceStatus(
            target.shown, "stale", "not asked yet", kind="nvml", job=named.job, instance=named.instance
        )

    @property
    def target(self) -> str:
        return self._target.shown

    @property
    def status(self) -> SourceStatus:
        return self._status

    @property
    def timeout_s(self) -> float:
        """Deadline of the next reading, s."""
        return self._start_s if self._helper.fresh else self._answer_s

    async def collect(self, now_ms: int) -> SourceStatus:
        """One reading at ``now_ms``; what it brings is written as that column."""
        import asyncio

        start, limit = time.monotonic(), self.timeout_s
        asked = self._ask()
        if asked is None:
            return self._pausing(now_ms)
        try:
            answer = await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(asked)), limit)
        except TimeoutError:
            return self._hung(now_ms, start)
        except (HelperEndedError, OSError) as failure:
            return self._ended(now_ms, start, failure)
        return self._answered(now_ms, start, answer)

    def collect_alone(self, now_ms: int) -> SourceStatus:
        """``collect`` without an event loop; the process ends with it."""
        start, limit = time.monotonic(), self.timeout_s
        asked = self._ask()
        if asked is None:
            return self._pausing(now_ms)
        try:
            return self._answered(now_ms, start, asked.result(limit))
        except TimeoutError:
            return self._hung(now_ms, start)
        except (HelperEndedError, OSError) as failure:
            return self._ended(now_ms, start, failure)

    async def close(self) -> None:
        """End the process; one that hangs in the driver is left to the kernel."""
        self._helper.kill()

    def expire(self, now_ms: int) -> None:
        self._frame.frame.expire(now_ms)

    def _ask(self) -> Future[dict[str, Any]] | None:
        """The reading; None while no process is to be started."""
        if self._helper.fresh and (self._helper.stuck or self._helper.waits() > 0):
            return None
        return self._helper.ask()

    def _pausing(self, now_ms: int) -> SourceStatus:
        """No attempt was made: what was wrong is still so, for all that is known."""
        self._frame.fail(now_ms, 0.0)
        self._status = replace(self._status, time_ms=now_ms, duration_s=0.0, samples=0, bytes=0, detail="")
        return self._status

    def _hung(self, now_ms: int, start: float) -> SourceStatus:
        waited = time.monotonic() - start
        self._helper.kill()
        pause = self._helper.rest()
        after = "again when the kernel lets it go" if self._helper.stuck else f"again in {pause:.0f} s"
        words = f"the NVIDIA driver has not answered for {waited:.1f} s; the process that asked it was killed, {after}"
        return self._failed(now_ms, start, "timeout", words)

    def _ended(self, now_ms: int, start: float, failure: Exception) -> SourceStatus:
        self._helper.kill()
        pause = self._helper.rest()
        words = f"the process that asks the NVIDIA driver failed: {failure}; again in {pause:.0f} s"
        return self._failed(now_ms, start, "gone", words)

    def _answered(self, now_ms: int, start: float, answer: dict[str, Any]) -> SourceStatus:
        if answer["ends"]:
            self._helper.kill()
            self._helper.rest()
        if answer["error"]:
            return self._failed(now_ms, start, cast("State", answer["state"]), answer["error"])
        self._helper.well()
        page, duration = answer["page"].encode(), time.monotonic() - start
        parsed = self._frame.parser.parse(page)
        remarks = [self._frame.write(now_ms, parsed, duration), *answer["remarks"]]
        state: State = "fresh" if answer["gpus"] else "gone"
        self._status = replace(
            self._status,
            state=state,
            error=None if answer["gpus"] else "; ".join(answer["remarks"]),
            time_ms=now_ms,
            last_ok_ms=now_ms if answer["gpus"] else self._status.last_ok_ms,
            duration_s=duration,
            samples=len(parsed.rows),
            bytes=len(page),
            detail="; ".join(filter(None, remarks)) if answer["gpus"] else "",
        )
        return self._status

    def _failed(self, now_ms: int, start: float, state: State, error: str) -> SourceStatus:
        duration = time.monotonic() - start
        self._frame.fail(now_ms, duration)
        self._status = self._status.failed(now_ms, duration, state, error)
        return self._status
