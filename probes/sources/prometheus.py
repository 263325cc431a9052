"""A Prometheus server as a source: the raw samples behind the rules, back-filled and then followed."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlencode

import numpy as np

from probes.columns import Times, is_absent
from probes.labels import Labels
from probes.series import SeriesStore
from probes.sources.base import SourceStatus, State
from probes.sources.blocks import Block, blocks_of
from probes.sources.fetch import Fetcher, FetchError, Response
from probes.sources.info import InfoLabels, info_labels
from probes.target import Target

LOOKBACK_MS = 15 * 60_000
POLL_MS = 5_000
"""Least time between two polls: a server has nothing newer than its own scrape interval (policy)."""
STALE_MS = 5 * 60_000
_TARGET = ("job", "instance")
_OVERLAP_MS = 120_000
_NAMES_A_QUERY = 40
_MAX_BYTES = 256 << 20
_TIMEOUT_S = 20.0


@dataclass(slots=True)
class _Fetched:
    """Samples of one round of queries, as ``blocks_of`` takes them."""

    labels: dict[Labels, int] = field(default_factory=dict)
    series: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    bytes: int = 0


class PrometheusSource:
    """Follows the metrics named ``names`` (as the rules read them) on one server."""

    def __init__(
        self,
        target: Target,
        store: SeriesStore,
        names: Iterable[str],
        *,
        lookback_ms: int = LOOKBACK_MS,
        timeout_s: float = _TIMEOUT_S,
        info: InfoLabels | None = None,
    ) -> None:
        self._target = target
        self._store = store
        self._info = info or info_labels()
        stored = {_stored_name(name, self._info) for name in names} - {"up"}
        self._names = ["up", *sorted(stored)]  # up first: see _newest_whole
        self._lookback_ms = lookback_ms
        self._newest_ms: int | None = None
        self._polled_ms: int | None = None
        self._frames: set[str] = set()
        self._query_url = target.url.rstrip("/") + "/api/v1/query"
        self.timeout_s = target.timeout_s or timeout_s
        self.step_ms = 0
        self._fetcher = Fetcher(self._query_url, target.access, timeout_s=self.timeout_s, max_bytes=_MAX_BYTES)
        self._status = SourceStatus(target.shown, "stale", "not asked yet", kind="prometheus")

    @property
    def target(self) -> str:
        return self._target.shown

    @property
    def status(self) -> SourceStatus:
        return self._status

    async def collect(self, now_ms: int) -> SourceStatus:
        """Back-fill the look-back at first, later fetch what is newer; between polls the last status stands."""
        if self._polled_ms is not None and now_ms - self._polled_ms < POLL_MS:
            return self._status
        self._polled_ms = now_ms
        start = time.monotonic()
        try:
            found = await self._fetch(now_ms)
        except FetchError as error:
            self._status = replace(
                self._status,
                state=error.state,
                error=error.message,
                time_ms=now_ms,
                duration_s=time.monotonic() - start,
                samples=0,
                bytes=0,
            )
            return self._status
        labels = list(found.labels)
        stamps = np.rint(np.array(found.times) * 1000).astype(np.int64)
        series = np.array(found.series, dtype=np.int64)
        whole = stamps <= _newest_whole(labels, series, stamps)[series] if len(stamps) else np.ones(0, dtype=np.bool_)
        stamps, series = stamps[whole], series[whole]
        blocks = list(blocks_of(labels, series, stamps, np.array(found.values)[whole], self._info))
        fresh = sum(self._write(block) for block in blocks)
        self.step_ms = max((block.step_ms for block in blocks), default=0) or self.step_ms
        self._newest_ms = max(int(stamps.max()), self._newest_ms or 0) if len(stamps) else self._newest_ms
        self._status = self._told(now_ms, time.monotonic() - start, fresh, found.bytes)
        return self._status

    def collect_alone(self, now_ms: int) -> SourceStatus:
        """``collect`` without an event loop, by blocking calls; the source is then asked no other way."""
        from probes.sources.unlooped import finished

        self._fetcher.leave_loop()
        return finished(self.collect(now_ms))

    async def close(self) -> None:
        await self._fetcher.close()

    def expire(self, now_ms: int) -> None:
        for key in self._frames:
            self._store.frame(key).expire(now_ms)

    def _told(self, now_ms: int, duration_s: float, samples: int, size: int) -> SourceStatus:
        state: State = "fresh"
        error = None
        if self._newest_ms is None:
            state, error = (
                "empty",
                f"has no series that the rules read in the last {self._lookback_ms // 60_000} minutes",
            )
        elif now_ms - self._newest_ms > STALE_MS:
            state, error = "stale", f"the newest sample is {(now_ms - self._newest_ms) / 60_000:.0f} minutes old"
        return replace(
            self._status,
            state=state,
            error=error,
            time_ms=now_ms,
            last_ok_ms=self._newest_ms,
            duration_s=duration_s,
            samples=samples,
            bytes=size,
        )

    async def _fetch(self, now_ms: int) -> _Fetched:
        reach = self._lookback_ms
        if self._newest_ms is not None:
            reach = min(reach, max(now_ms - self._newest_ms, 0) + _OVERLAP_MS)
        found = _Fetched()
        for at in range(0, len(self._names), _NAMES_A_QUERY):
            names = "|".join(re.escape(name) for name in self._names[at : at + _NAMES_A_QUERY])
            query = '{__name__=~"' + names.replace("\\", "\\\\") + f'"}}[{max(1, reach // 1000)}s]'
            response = await self._fetcher.post_form(self._query_url, urlencode({"query": query}).encode())
            found.bytes += response.wire_bytes
            for labels, values in matrix_of(response):
                row = found.labels.setdefault(labels, len(found.labels))
                found.series.extend([row] * len(values))
                found.times.extend(stamp for stamp, _ in values)
                found.values.extend(float(text) for _, text in values)
        return found

    def _write(self, block: Block) -> int:
        """Add the columns of a block that are newer than its frame; the answer counts the samples."""
        key = f"{self.target} {block.job} {block.instance}"
        self._frames.add(key)
        frame = self._store.frame(key)
        if not len(frame.times):
            frame.load(block.times, block.labels, block.values)
            return int((~is_absent(block.values)).sum())
        new = block.times > int(frame.times[-1])
        rows = np.array([frame.row(labels) for labels in block.labels], dtype=np.intp)
        for at in np.flatnonzero(new):
            frame.append(int(block.times[at]), rows, block.values[:, at])
        return int((~is_absent(block.values[:, new])).sum())


def matrix_of(response: Response) -> Iterator[tuple[Labels, list[tuple[float, str]]]]:
    """The series of a range selector's answer; raises ``FetchError`` for whatever else the server says."""
    if response.status in (401, 403):
        raise FetchError("no-permission", f"HTTP {response.status} {response.reason}".strip())
    try:
        answer: Any = json.loads(response.body)
        status = answer["status"]
    except (ValueError, KeyError, TypeError):
        if response.status != 200:
            raise FetchError("http-error", f"HTTP {response.status} {response.reason}".strip()) from None
        raise FetchError("not-exposition", "the answer is not that of a Prometheus: is the URL right?") from None
    if status != "success":
        words = f"{answer.get('errorType', 'error')}: {answer.get('error', '')}"
        raise FetchError("http-error", f"the server refuses the query: {words[:200]}")
    try:
        for series in answer["data"]["result"]:
            yield Labels.of(series["metric"]), series.get("values", [])
    except (KeyError, TypeError, AttributeError):
        raise FetchError("not-exposition", "the answer is not that of a Prometheus: is the URL right?") from None


def _newest_whole(labels: list[Labels], series: Times, stamps: Times) -> Times:
    """Per series, the time of its target's newest scrape that all queries of a round could see.

    A scrape may come between two queries; its first names are then missing, and would look as if they had gone.
    ``up`` is asked first and a scrape is stored whole, so what is newer than a target's newest ``up`` waits for the
    next round.
    """
    newest = np.full(len(labels), np.iinfo(np.int64).min, dtype=np.int64)
    np.maximum.at(newest, series, stamps)
    of_target = {one.only(_TARGET): int(newest[at]) for at, one in enumerate(labels) if one.name == "up"}
    latest = np.iinfo(np.int64).max
    return np.array([of_target.get(one.only(_TARGET), latest) for one in labels], dtype=np.int64)


def _stored_name(name: str, info: InfoLabels) -> str:
    """The name under which a server has it: of a derived gauge, the info metric that it is derived from."""
    return next((metric for metric in info.metrics if name.startswith(f"{metric}:")), name)
