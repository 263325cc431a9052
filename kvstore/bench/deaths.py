"""`kvstore bench deaths`: how long after a SIGKILL of a shard do its clients know?

Two shards in processes of their own; one is killed while clients of this process read and write it without a pause.
*get*, *leased get* and *put* end in `ShardUnavailable`; after it nothing of the dead shard's memory may be answered.
*miss* is what a cache on the store makes of it (`kvstore.integrations.transformers`): nothing matches, all is computed.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import logging
import os
import signal
import statistics
import time
from collections.abc import Awaitable, Callable

import numpy as np

from kvstore.bench import far, machine
from kvstore.client import Client, SyncClient
from kvstore.cluster import LocalCluster
from kvstore.errors import ShardUnavailable
from kvstore.keys import Keys
from kvstore.layout import Layout

LAYOUT = Layout("bench", head_dim=32, block_tokens=16)
AIM_S = 0.1
"""From SIGKILL to the typed error, and to the miss, on one host."""

BLOCKS = 256
LEASE_MS = 60_000
DEADLINE_MS = 10_000
VICTIM = 1
_WAIT_S = 30.0

Times = dict[str, list[float]]


async def measure(transport: str, runs: int) -> Times:
    """Seconds from the kill to each call's typed error, a list a call; `transport` as of `Client.connect`."""
    found: Times = {}
    async with (
        LocalCluster(2, LAYOUT, BLOCKS, nixl=transport == "nixl") as cluster,
        await Client.connect(cluster.targets, LAYOUT, transport=transport, deadline_ms=DEADLINE_MS) as client,
    ):
        keys = _owned(client)
        for _ in range(runs):
            for name, seconds in (await _killed(cluster, client, keys)).items():
                found.setdefault(name, []).append(seconds)
            await asyncio.to_thread(cluster.restart, VICTIM)
    return found


async def _killed(cluster: LocalCluster, client: Client, keys: Keys) -> dict[str, float]:
    data = np.ones((len(keys), LAYOUT.block_bytes), np.uint8)
    await client.put(keys, data, deadline_ms=30_000)
    where = await client.lookup(keys, lease_ms=LEASE_MS)
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "get": lambda: client.get(keys),
        "leased get": lambda: client.get(where),
        "put": lambda: client.put(keys, data),
    }
    waiting = {name: asyncio.create_task(_until_it_fails(call)) for name, call in calls.items()}
    await asyncio.sleep(0.2)
    os.kill(cluster.pids[VICTIM], signal.SIGKILL)
    killed = time.perf_counter()
    ended = {name: await task - killed for name, task in waiting.items()}
    for name in ("get", "leased get"):
        try:
            await calls[name]()
        except ShardUnavailable:
            continue
        raise AssertionError(f"a {name} of a dead shard was answered after an error")
    return ended


async def _until_it_fails(call: Callable[[], Awaitable[object]]) -> float:
    while True:
        try:
            await call()
        except ShardUnavailable:
            return time.perf_counter()
        await asyncio.sleep(0)


def _owned(client: Client) -> Keys:
    """Eight keys of the victim."""
    rng = np.random.default_rng(1)
    keys = rng.integers(1, 2**63, (256, 4)).astype(np.uint64)
    keys[:, 3] &= np.uint64(0xFFFF_FFFF_0000_0000)
    found: Keys = keys[client.shards.home(keys) == VICTIM][:8]
    return found


def misses(runs: int) -> list[float]:
    """Seconds from the kill to the first opening of a cache that matches nothing. Needs transformers."""
    import torch

    from kvstore.bench.turns import Player, layout_for, model_of
    from kvstore.integrations.transformers import StoreCache

    logging.getLogger("kvstore.integrations.transformers").setLevel(logging.ERROR)  # each miss is a warning
    model = model_of("tiny")
    layout = layout_for(model)
    prompt = list(range(1, 257))
    took = []
    with (
        LocalCluster(2, layout, 2048, placement="head-group") as cluster,
        SyncClient(cluster.targets, layout) as client,
    ):
        for run in range(runs):
            Player(model, 1).stored(client, f"run-{run}", prompt)

            def matched() -> int:
                with StoreCache.open(client, model, torch.tensor([prompt])) as cache:
                    return int(cache.matched[0])

            assert matched() > 0
            os.kill(cluster.pids[VICTIM], signal.SIGKILL)
            killed = time.perf_counter()
            while matched():
                assert time.perf_counter() - killed < _WAIT_S, "a dead shard goes on answering"
            took.append(time.perf_counter() - killed)
            cluster.restart(VICTIM)
    return took


def table(found: dict[str, Times]) -> list[str]:
    lines = [f"{'reads go by':<14}{'what':<14}{'runs':>5}{'median':>10}{'min':>10}{'max':>10}"]
    for way, calls in found.items():
        for call, took in calls.items():
            figures = (statistics.median(took), min(took), max(took))
            lines.append(f"{way:<14}{call:<14}{len(took):>5}" + "".join(f"{s * 1e3:>7.1f} ms" for s in figures))
    return lines


def run(argv: list[str]) -> int:
    """Print the table; 0 when every median is within `AIM_S`, else 1."""
    parser = argparse.ArgumentParser(prog="kvstore bench deaths", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="for machines")
    options = parser.parse_args(argv)
    if options.runs < 1:
        parser.error(f"--runs must be at least 1, not {options.runs}")
    facts = machine.facts()
    found = {"mapped": asyncio.run(measure("mapped", options.runs))}
    skipped = []
    if any(importlib.util.find_spec(name) for name in ("nixl_cu12", "nixl_cu13")):
        for lane in far.LANES:
            with far.only(lane):
                found[f"nixl, {lane}"] = asyncio.run(measure("nixl", options.runs))
    else:
        skipped.append("nixl: not installed (pip install --no-deps nixl-cu12)")
    if importlib.util.find_spec("transformers") and importlib.util.find_spec("torch"):
        found["transformers"] = {"miss": misses(options.runs)}
    else:
        skipped.append("miss: transformers is not installed (pip install '.[transformers]' in kvscope's checkout)")
    verdicts = {
        f"{way}, {call}: median ≤ {AIM_S * 1e3:.0f} ms": statistics.median(took) <= AIM_S
        for way, calls in found.items()
        for call, took in calls.items()
    }
    if options.json:
        print(json.dumps({"machine": facts, "seconds": found, "skipped": skipped, "aims": verdicts}))
    else:
        print("\n".join([machine.line(facts), *table(found), *(f"skipped: {why}" for why in skipped)]))
        print(*(f"{'met   ' if met else 'MISSED'} {aim}" for aim, met in verdicts.items()), sep="\n")
    return 0 if all(verdicts.values()) else 1
