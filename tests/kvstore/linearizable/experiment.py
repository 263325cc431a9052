"""A store, its writers and readers, and the verdict on what they recorded."""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvstore.client import Client
from kvstore.cluster import LocalCluster
from tests.kvstore.linearizable.checker import Report, check
from tests.kvstore.linearizable.history import load
from tests.kvstore.linearizable.workload import DEADLINE_MS, TOKENS, Board, Plan, layout_of, read, write


@dataclass(frozen=True)
class Outcome:
    """The verdict, and what the run was made of."""

    report: Report
    lost: int
    """Appends that lost to another writer."""
    unanswered: int
    """Operations without an answer within their deadline: excluded, since they promise nothing."""
    seconds: float
    check_seconds: float
    processes: int


def run(
    operations: int,
    *,
    shards: int = 2,
    writers: int = 2,
    readers: int = 3,
    sessions: int = 4,
    shared: int = 2,
    layers: int = 16,
    write_share: float = 0.36,
    enforce_need: bool = True,
) -> Outcome:
    """About `operations` recorded operations, of which `write_share` are new versions, on a cluster of its own."""
    layout = layout_of(layers)
    versions = int(operations * write_share / writers)
    # Full blocks are held by their sessions to the end.
    blocks = 2 * operations * 2 // TOKENS // shards + 4096
    with (
        tempfile.TemporaryDirectory(prefix="kv-linearizable-") as directory,
        LocalCluster(shards, layout, blocks, placement="head-group") as cluster,
    ):
        numbers = asyncio.run(_open(str(cluster.targets), layers, sessions + shared))
        plan = Plan(
            str(cluster.targets),
            layers,
            tuple(numbers),
            shared,
            writers,
            readers,
            versions,
            1 / write_share - 1,
            enforce_need,
            Path(directory),
        )
        np.zeros(Board.size(len(numbers), plan.processes), np.int64).tofile(plan.directory / "board")
        began = time.monotonic()
        _run_all([(write, n) for n in range(writers)] + [(read, writers + n) for n in range(readers)], plan)
        seconds = time.monotonic() - began
        counts = sum(np.load(plan.directory / f"{n}.counts.npy") for n in range(plan.processes))
        began = time.monotonic()
        report = check(load([plan.directory / f"{n}.npy" for n in range(plan.processes)]))
        lost, unanswered = (int(count) for count in counts)
        return Outcome(report, lost, unanswered, seconds, time.monotonic() - began, plan.processes)


async def _open(targets: str, layers: int, count: int) -> list[int]:
    async with await Client.connect(targets, layout_of(layers), staging_blocks=16, deadline_ms=DEADLINE_MS) as client:
        return [(await client.open_session("hot", renew=False)).number for _ in range(count)]


def _run_all(work: list[tuple[Callable[[Plan, int], None], int]], plan: Plan) -> None:
    """Each in a process of its own; raises `RuntimeError` when one fails."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=target, args=(plan, number)) for target, number in work]
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join(3_600)
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()
    failed = [process.exitcode for process in processes if process.exitcode]
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(processes)} processes failed: exit codes {failed}")
