"""The lab's decode loops: what the stand-in for a device waits for, what crosses to it, the process and its page."""

from __future__ import annotations

import importlib.util
import sys
import time
from threading import Event
from typing import Any
from urllib.request import urlopen

import pytest

from kvstore.errors import StoreError
from kvstore.meters import Meters
from playbooks.lab.live import scenes_decode  # noqa: F401 - it registers its scenarios
from playbooks.lab.live.host import why_not
from playbooks.lab.live.loops import Loop, LoopPlan, Loops
from playbooks.lab.live.plan import SCENARIOS, Draw

TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not TORCH, reason="needs torch (the extra `cuda`)")
SITE = "block_table.update"


def test_without_torch_the_loops_are_skipped_and_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    scenario = SCENARIOS["block-table-upload"]
    if TORCH:
        assert not why_not(scenario)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else found(name))
    assert why_not(scenario) == "torch is not installed (pip install '.[cuda]' in kvscope's checkout)"


@pytest.mark.parametrize(("name", "faulty"), [("block-table-upload", "upload"), ("bitmap-sync-decode", "naive")])
def test_one_loop_has_the_fault_and_none_at_level_0(name: str, faulty: str) -> None:
    for seed in range(3):
        plans = [SCENARIOS[name].build(Draw(seed, level)) for level in range(4)]
        assert all(isinstance(plan, LoopPlan) for plan in plans)
        for level, plan in enumerate(plans):
            struck = [str(loop.number) for loop in plan.loops if faulty in (loop.table, loop.bitmap)]  # type: ignore[union-attr]
            assert struck == ([plan.truth.member["shard"]] if level else [])


def test_a_loop_that_does_not_come_up_is_an_error_of_the_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(StoreError, match="decode loop 0 ended early: exit code 1"), Loops((Loop(0, 0, 4),)):
        pass


@needs_torch
def test_small_uploads_and_reads_wait_for_the_queue_and_a_batched_upload_does_not() -> None:
    import torch

    from playbooks.lab.live.decode.device import HostQueue

    queue, done = HostQueue(), list[str]()
    crossing = queue.crossing(Meters())

    def behind(gate: Event, what: str) -> None:
        assert gate.wait(10)
        time.sleep(0.05)  # who does not wait is back long before
        done.append(what)

    for what, cross in (
        ("small", lambda: crossing.send_alone(SITE, [1, 2]).tolist()),
        ("read", lambda: crossing.read("block_table.read", torch.tensor([1, 2])).tolist()),
    ):
        gate = Event()
        queue.run(lambda gate=gate, what=what: behind(gate, what))  # type: ignore[misc]
        (there,) = crossing.send(SITE, [1, 2])
        assert (there.tolist(), what in done) == ([1, 2], False)
        gate.set()
        assert cross() == [1, 2]
        assert what in done
    assert crossing.meters.device_uploads == {SITE: 3}
    assert crossing.meters.device_reads["block_table.read"] == 1


@pytest.fixture
def loop() -> Any:
    """Of a name and a fault: a loop of twelve sequences."""
    from playbooks.lab.live.decode.device import HostQueue
    from playbooks.lab.live.decode.loop import DecodeLoop

    return lambda **fault: DecodeLoop(Loop(0, seed=3, rows=12, **fault), HostQueue(), Meters())


@needs_torch
def test_the_faults_change_what_crosses_and_not_what_is_computed(loop: Any) -> None:
    import torch

    states, counts = [], []
    for fault in ({}, {"table": "upload"}, {"bitmap": "naive"}):
        torch.manual_seed(7)
        one = loop(**fault)
        one.admit()
        for _ in range(9):
            one.step()
        one._before()
        states.append(one._hidden)
        meters, pool = one.meters, one.pool
        counts.append((meters.device_uploads[SITE], meters.device_reads["bitmap.allocate"]))
        assert meters.operations["append"].results["ok"] == 9
        assert (pool.free_blocks(), pool.faults()) == (pool.free, {})
    assert all(torch.allclose(state, states[0], atol=1e-5) for state in states)
    (usual, none), (uploads, nothing), (batched, reads) = counts
    assert usual == batched == 10  # one for the batch that came, one for each step
    assert uploads >= usual + 12 + 12  # and one for every row that got blocks: twelve at first, each once in 8 steps
    assert none == nothing == 0 < reads


@needs_torch
def test_the_page_tells_what_is_held_and_asks_the_device_once_a_batch(loop: Any) -> None:
    from kvstore.page import Snapshot
    from kvstore.pool import State
    from playbooks.lab.live.decode.page import LoopSource

    one = loop()
    one.admit()
    one.step()
    figures = Snapshot.of(LoopSource(2, one)).pool
    used = int((figures.states == State.USED).sum())
    prompts = sum(one.pool.tokens(row) - 1 for row in range(12))
    assert int(figures.valid[figures.valid >= 0].sum()) == prompts
    assert used + int(figures.free_runs.sum()) == one.pool.blocks
    assert one.meters.device_reads["block_table.read"] == 1
    one.finish()
    assert not Snapshot.of(LoopSource(2, one)).pool.states.any()
    assert one.pool.free == one.pool.blocks


@needs_torch
def test_a_process_decodes_serves_its_page_and_reports() -> None:
    with Loops((Loop(3, 0, rows=4, pause_s=0.01, table="upload"),)) as loops:
        page = ""
        end = time.monotonic() + 20
        while f'kv_device_uploads_total{{shard="3",site="{SITE}"}}' not in page and time.monotonic() < end:
            time.sleep(0.05)
            page = urlopen(loops.metrics_urls[0], timeout=5).read().decode()
        (report,) = loops.reports()
    assert f'kv_device_uploads_total{{shard="3",site="{SITE}"}}' in page
    assert 'kv_operations_total{op="append",result="ok",shard="3"}' in page
    assert report.steps > 0
    assert report.tokens == report.steps * 4
    assert report.device == loops.devices[0]
