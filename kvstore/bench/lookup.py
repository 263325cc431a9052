"""`kvstore bench lookup`: where are a thousand keys? By the mapped index, and by one call, with a lease and without.

One thread, one shard in another process; arms interleaved. *socket* is how a client on the shard's host asks (frames on
a Unix socket), *gRPC* how one on another host does (here over loopback). A *ping* is an empty call and its answer: what
no lookup by such a call can be faster than.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any

import numpy as np

from kvstore.bench import machine
from kvstore.bench.rounds import Arm, Times, interleave
from kvstore.client import DEADLINE_MS, Client
from kvstore.cluster import LocalCluster
from kvstore.deadline import Deadline
from kvstore.keys import Keys
from kvstore.layout import Layout
from kvstore.messages import Ping

LAYOUT = Layout("bench", head_dim=1, block_tokens=16, dtype="uint8")
"""Blocks of 32 bytes: a lookup never sees them."""

BATCH = 1000
LEASE_MS = 1_000
AIMS_S = {"mapped index": 0.2e-3, "socket": 1e-3, "socket, leased": 1e-3, "gRPC": 1e-3}
_SETS = 64
_BURST = 5


async def measure(blocks: int, rounds: int, seed: int = 0) -> dict[str, Any]:
    """p50 and p99 of each way, all keys present, and half of them."""
    from kvstore.calls.rpc import RpcCalls

    rng = np.random.default_rng(seed)
    keys = rng.integers(1, 2**63, (2 * blocks, 4)).astype(np.uint64)
    keys[:, 3] = np.arange(2 * blocks, dtype=np.uint64) % np.uint64(2**20) << np.uint64(32)
    present = keys[:blocks]
    found: dict[str, Any] = {"keys": BATCH, "pool_blocks": blocks, "cases": {}}
    async with (
        LocalCluster(1, LAYOUT, blocks) as cluster,
        await Client.connect(cluster.targets, LAYOUT) as client,
        await Client.connect(cluster.targets, LAYOUT) as far,
    ):
        link = far.shards.links[0]
        await link.use(RpcCalls(link.address))
        for at in range(0, blocks, 4096):
            part = present[at : at + 4096]
            await client.put(part, np.zeros((len(part), LAYOUT.block_bytes), np.uint8))
        with machine.one_core():
            for case, pool in (("all present", present), ("half present", keys)):
                sets = [pool[rng.choice(len(pool), BATCH, replace=False)] for _ in range(_SETS)]
                times = await interleave(_arms(client, far, sets), rounds, burst=_BURST)
                found["cases"][case] = {name: _figures(taken) for name, taken in times.items()}
    return found


def _arms(client: Client, far: Client, sets: list[Keys]) -> dict[str, Arm]:
    """`far` asks by gRPC."""

    def looks_up(asker: Client, shift: int, **how: Any) -> Arm:
        async def lookup(number: int) -> None:
            await asker.lookup(sets[(number + shift) % _SETS], **how)

        return lookup

    def pings(asker: Client) -> Arm:
        async def ping(_number: int) -> None:
            await asker.shards.links[0].call(Ping(), Deadline(DEADLINE_MS))

        return ping

    return {
        "mapped index": looks_up(client, 0),
        "socket": looks_up(client, 1, counted=True),
        "socket, leased": looks_up(client, 2, lease_ms=LEASE_MS),
        "socket ping": pings(client),
        "gRPC": looks_up(far, 3, counted=True),
        "gRPC, leased": looks_up(far, 4, lease_ms=LEASE_MS),
        "gRPC ping": pings(far),
    }


def _figures(taken: Times) -> dict[str, float]:
    return {"p50_s": taken.median, "p99_s": taken.quantile(0.99)}


def verdicts(found: dict[str, Any]) -> dict[str, bool]:
    """Whether each way met its aim, by its median."""
    return {
        f"{BATCH} keys, {case}, by {name}: ≤ {aim * 1e3:g} ms": found["cases"][case][name]["p50_s"] <= aim
        for case in found["cases"]
        for name, aim in AIMS_S.items()
    }


def run(argv: list[str]) -> int:
    """Exit code 0 when it could measure, whatever the figures; 2 for usage."""
    parser = argparse.ArgumentParser(prog="kvstore bench lookup", description=__doc__)
    parser.add_argument("--blocks", type=int, default=65_536, help="blocks in the index (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=100, help=f"of {_BURST} lookups of each kind")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    if options.blocks < BATCH or options.rounds < 1:
        parser.error(f"need --blocks ≥ {BATCH} and --rounds ≥ 1")
    facts = machine.facts()
    found = asyncio.run(measure(options.blocks, options.rounds))
    found |= {"machine": facts, "aims": verdicts(found)}
    print(json.dumps(found) if options.json else "\n".join(_table(found)))
    return 0


def _table(found: dict[str, Any]) -> list[str]:
    lines = [machine.line(found["machine"]), f"{found['keys']} keys of an index of {found['pool_blocks']}"]
    for case, ways in found["cases"].items():
        for name, figures in ways.items():
            lines.append(
                f"{case:<14}{name:<14}{figures['p50_s'] * 1e3:>8.3f} ms p50{figures['p99_s'] * 1e3:>9.3f} ms p99"
            )
    return [*lines, *(f"aim {'met' if met else 'MISSED'}: {aim}" for aim, met in found["aims"].items())]
