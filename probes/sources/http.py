"""A scrape of ``/metrics``: one target, one attempt a cycle, every fault a state in words."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from probes.exposition import ExpositionError, Limits, Page
from probes.series import SeriesStore
from probes.sources.base import SourceStatus, State
from probes.sources.fetch import Fetcher, FetchError, Response
from probes.sources.info import InfoLabels, info_labels
from probes.sources.ingest import TargetFrame
from probes.target import Target

ACCEPT = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
_STATES: dict[str, State] = {"truncated": "truncated", "timeout": "timeout"}
TIMEOUT_S = 5.0
"""Deadline of a whole scrape (policy: half of Prometheus' default of 10 s; a person waits)."""


class HttpSource:
    """Scrapes one target into its frame."""

    def __init__(
        self,
        target: Target,
        store: SeriesStore,
        *,
        timeout_s: float = TIMEOUT_S,
        limits: Limits | None = None,
        info: InfoLabels | None = None,
    ) -> None:
        self._limits = limits or Limits()
        self._target = target
        self.timeout_s = target.timeout_s or timeout_s
        self._frame = TargetFrame(store, target, info or info_labels(), self._limits)
        self._fetcher = Fetcher(target.url, target.access, timeout_s=self.timeout_s, max_bytes=self._limits.bytes)
        self._status = SourceStatus(
            target.shown,
            "stale",
            "not asked yet",
            kind="http",
            job=target.job,
            instance=target.instance,
        )

    @property
    def target(self) -> str:
        return self._target.shown

    @property
    def status(self) -> SourceStatus:
        return self._status

    async def collect(self, now_ms: int) -> SourceStatus:
        """One scrape at ``now_ms``; what comes is written as that column."""
        start = time.monotonic()
        try:
            response = await self._fetcher.get(ACCEPT)
            _check(response)
            page = self._frame.parser.parse(
                response.body,
                openmetrics=response.content_type.startswith("application/openmetrics-text"),
                until=start + self.timeout_s,
            )
        except FetchError as error:
            return self._failed(now_ms, start, error.state, error.message)
        except ExpositionError as error:
            self._frame.forget_refused()
            state: State = _STATES.get(error.kind, "not-exposition")
            return self._failed(now_ms, start, state, str(error))
        return self._answered(now_ms, start, response, page)

    def collect_alone(self, now_ms: int) -> SourceStatus:
        """``collect`` without an event loop, by blocking calls; the source is then asked no other way."""
        from probes.sources.unlooped import finished

        self._fetcher.leave_loop()
        return finished(self.collect(now_ms))

    async def close(self) -> None:
        await self._fetcher.close()

    def expire(self, now_ms: int) -> None:
        self._frame.frame.expire(now_ms)

    def _answered(self, now_ms: int, start: float, response: Response, page: Page) -> SourceStatus:
        duration = time.monotonic() - start
        detail = self._frame.write(now_ms, page, duration)
        count = len(page.rows)
        state: State = "fresh"
        error = None
        if not count:
            state, error = "empty", "the page has no samples" if response.body.strip() else "the page is empty"
        elif np.isnan(page.values).all():
            state, error = "empty", f"all {count} samples are NaN: no data"
        elif not self._frame.kept:
            state, error = "empty", f"none of its {count} samples is of now: {detail or 'no data'}"
        else:
            error = self._frame.trouble or None
        self._status = replace(
            self._status,
            state=state,
            error=error,
            time_ms=now_ms,
            last_ok_ms=now_ms if state == "fresh" else self._status.last_ok_ms,
            duration_s=duration,
            samples=count,
            bytes=response.wire_bytes,
            detail=detail,
        )
        return self._status

    def _failed(self, now_ms: int, start: float, state: State, error: str) -> SourceStatus:
        duration = time.monotonic() - start
        self._frame.fail(now_ms, duration)
        self._status = self._status.failed(now_ms, duration, state, error)
        return self._status


def _check(response: Response) -> None:
    if response.status in (401, 403):
        raise FetchError("no-permission", f"HTTP {response.status} {response.reason}".strip())
    if response.status == 204:
        return
    if response.status != 200:
        raise FetchError("http-error", f"HTTP {response.status} {response.reason}".strip())
