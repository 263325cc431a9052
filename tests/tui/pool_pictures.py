"""Snapshots of the Pool screen made from pages of the store, through the same questions that kvtop asks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from probes.rules import RuleSet
from probes.series import SeriesStore
from probes.sources.info import info_labels
from probes.sources.ingest import TargetFrame
from probes.target import Target
from probes.view import View
from tests.fixtures.kvstore.page import Shard, fragmented, healthy, page
from tests.tui import pictures
from tui.cursor import Cursor, Mode
from tui.observer import Observer
from tui.pools import PoolObserver
from tui.snapshot import Snapshot

NOW = pictures.NOW
STEP_MS = 5_000
STEPS = 24
VLLM = Path(__file__).parents[1] / "fixtures" / "vllm" / "small-pool.txt"


def view_of(shards: Iterable[Shard] = (), engines: Iterable[str] = (), silent: str = "") -> View:
    """Two minutes of pages; the page of the shard called ``silent`` ends 40 s before the end."""
    store = SeriesStore()
    for number, shard in enumerate(shards):
        frame = _frame(store, f"127.0.0.1:{9600 + number}", "kvstore")
        for step in range(STEPS + 1):
            at_ms = NOW - (STEPS - step) * STEP_MS
            if shard.name == silent and at_ms > NOW - 40_000:
                frame.fail(at_ms, 1.0)
            else:
                frame.write(at_ms, frame.parser.parse(page(shard, 300.0 + step * STEP_MS / 1000).encode()), 0.002)
    for instance in engines:
        frame = _frame(store, instance, "vllm")
        for step in range(STEPS + 1):
            frame.write(NOW - (STEPS - step) * STEP_MS, frame.parser.parse(VLLM.read_bytes()), 0.002)
    return View(store, RuleSet.load())


def _frame(store: SeriesStore, instance: str, job: str) -> TargetFrame:
    target = Target("http", f"http://{instance}/metrics", job=job, instance=instance)
    return TargetFrame(store, target, info_labels())


def shot_of(view: View) -> Snapshot:
    """The whole picture at the end of the pages."""
    start = NOW - STEPS * STEP_MS
    observer, pools = Observer(view, STEP_MS, 60_000, STEPS * STEP_MS), PoolObserver(view, STEPS * STEP_MS)
    pools.observe(NOW - 60_000, 60_000)
    rows, total = observer.observe(NOW, start, {})
    instances = sorted({row.labels["instance"] for row in rows})
    return replace(
        pictures.nothing(),
        time_ms=NOW,
        now_ms=NOW,
        interval_ms=STEP_MS,
        window_ms=60_000,
        span_ms=STEPS * STEP_MS,
        cursor=Cursor(Mode.LIVE, NOW, start, NOW),
        rows=rows,
        fleet=total,
        trails=observer.trails(),
        sources=tuple(pictures.source(instance) for instance in instances),
        diagnosis=pictures.healthy().diagnosis,
        pools=pools.observe(NOW, 60_000),
    )


def cluster(count: int = 4, silent: str = "") -> Snapshot:
    """A store whose shard 1 has its free blocks in short runs only."""
    shards = [(fragmented if number == 1 else healthy)(str(number)) for number in range(count)]
    return shot_of(view_of(shards, silent=silent))


def engine() -> Snapshot:
    """A vLLM: no block map."""
    return shot_of(view_of(engines=["pod-1:8000"]))
