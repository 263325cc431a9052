"""`kvstore bench fetch`: how fast blocks get from a shard's pool into our hands, beside what could be.

One thread, one shard in another process, arms interleaved. *memcpy*: plain copies, in C, of the very same slots (the
faster of a call a run and one gather). *mapped*: `Client.get` at known locations, once without the sums and once with.
*redis*: `GET`/`MGET` of the same bytes over TCP. Where NIXL is installed, the same fetches over the network follow
(`far.py`). *all-gather*: the same bytes by a collective of two ranks
(`collective.py`; where torch is installed). Every round takes other blocks of a pool that no cache holds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvstore.bench import collective, far, machine
from kvstore.bench.collective import Gloo
from kvstore.bench.peers import Ints, Memcpy, describe_redis, redis_server
from kvstore.bench.rounds import Arm, Times, interleave
from kvstore.client import Client
from kvstore.cluster import LocalCluster
from kvstore.keys import Keys, block_keys
from kvstore.layout import Layout
from kvstore.locations import Locations, buffer
from kvstore.transport.mapped import MappedPeer
from kvstore.transport.nixl.library import flavour

if TYPE_CHECKING:
    import redis

LAYOUT = Layout("bench", heads=1, head_dim=256, block_tokens=16, window_tokens=512)
"""16 KiB a block; a window is a run of 32."""

AIM_PLAIN, AIM_SUMMED, AIM_SINGLE_S = 1.5, 3.0, 50e-6
_MEBIBYTE_BLOCKS = 64
_MANY = 1000
_BURST = 20
_SETS = 64


@dataclass(frozen=True, slots=True)
class Case:
    """Sets of rows to fetch, all of the same size, one a round."""

    name: str
    rows: list[Ints]


def cases(blocks: int, rounds: int, seed: int) -> list[Case]:
    """One block; 1 MiB in one run; a thousand blocks as windows of 32, and scattered."""
    rng = np.random.default_rng(seed)
    window = LAYOUT.window_blocks
    windows = -(-_MANY // window)

    def runs() -> Ints:
        first = rng.choice(blocks // window, windows, replace=False) * window
        return (first[:, None] + np.arange(window)).ravel()[:_MANY]

    return [
        Case("16 KiB", [rng.integers(0, blocks, 1) for _ in range(rounds)]),
        Case("1 MiB", [_run(rng, blocks) for _ in range(rounds)]),
        Case("1000 × 16 KiB, runs of 32", [runs() for _ in range(rounds)]),
        Case("1000 × 16 KiB, scattered", [rng.permutation(blocks)[:_MANY] for _ in range(rounds)]),
    ]


def _run(rng: np.random.Generator, blocks: int) -> Ints:
    first = int(rng.integers(0, blocks // _MEBIBYTE_BLOCKS)) * _MEBIBYTE_BLOCKS
    return np.arange(first, first + _MEBIBYTE_BLOCKS)


async def fill(client: Client, blocks: int, redis_client: redis.Redis | None, seed: int = 0) -> Keys:
    """Random blocks into the store, in order, and into Redis; their keys."""
    rng = np.random.default_rng(seed)
    keys = block_keys([rng.bytes(24) for _ in range(blocks)], 0, 0)
    batch = 1024
    for at in range(0, blocks, batch):
        part = keys[at : at + batch]
        data = rng.integers(0, 256, (len(part), LAYOUT.block_bytes), np.uint8)
        await client.put(part, data)
        if redis_client is not None:
            redis_client.mset({key.tobytes(): row.tobytes() for key, row in zip(part, data, strict=True)})
    return keys


class Arms:
    """The arms of one case, each with its own rotation through the case's sets."""

    def __init__(
        self, client: Client, keys: Keys, where: Locations, redis_client: redis.Redis | None, gloo: Gloo | None
    ) -> None:
        self._client, self._keys, self._where, self._redis, self._gloo = client, keys, where, redis_client, gloo
        peer = client.shards.peer(0)
        assert isinstance(peer, MappedPeer)
        self._pool = peer.arena.slots

    def of(self, case: Case) -> dict[str, Arm]:
        count = len(case.rows[0])
        out = buffer(count, LAYOUT.slot_bytes)
        memcpy = Memcpy(self._pool, out)
        slots = [self._where.slot[rows] for rows in case.rows]
        plans = [memcpy.plan(each) for each in slots]
        located = [self._where.rows(rows) for rows in case.rows]
        names = [[row.tobytes() for row in self._keys[rows]] for rows in case.rows]

        async def runs(number: int) -> None:
            memcpy.runs(plans[number % len(plans)])

        async def gather(number: int) -> None:
            memcpy.gather(slots[(number + 1) % len(slots)])

        def mapped(verify: bool, shift: int) -> Arm:
            async def fetch(number: int) -> None:
                blocks = await self._client.get(located[(number + shift) % len(located)], out, verify=verify)
                assert blocks.state.max() == 0

            return fetch

        arms: dict[str, Arm] = {"memcpy": runs, "memcpy, gather": gather}
        arms["mapped"], arms["mapped, verified"] = mapped(False, 2), mapped(True, 3)
        if self._redis is not None:
            arms["redis"] = _redis_arm(self._redis, names)
        if self._gloo is not None:
            arms["all-gather"] = _gloo_arm(self._gloo)
        return arms


def _redis_arm(client: redis.Redis, names: list[list[bytes]]) -> Arm:
    async def fetch(number: int) -> None:
        wanted = names[(number + 4) % len(names)]
        values: Any = [client.get(wanted[0])] if len(wanted) == 1 else client.mget(wanted)
        assert None not in values

    return fetch


def _gloo_arm(gloo: Gloo) -> Arm:
    async def fetch(_number: int) -> None:
        gloo.fetch()

    return fetch


async def measure(blocks: int, rounds: int, seed: int = 0) -> dict[str, Any]:
    """Medians, p99 and ratios to memcpy of every case and arm."""
    found: dict[str, Any] = {"block_bytes": LAYOUT.block_bytes, "pool_blocks": blocks, "cases": {}}
    async with LocalCluster(1, LAYOUT, blocks) as cluster, await Client.connect(cluster.targets, LAYOUT) as client:
        with redis_server() as redis_client, collective.gloo() as gloo:
            found["redis"] = None if redis_client is None else describe_redis(redis_client)
            found["all-gather"] = None if gloo is None else collective.describe()
            keys = await fill(client, blocks, redis_client)
            arms = Arms(client, keys, await client.lookup(keys), redis_client, gloo)
            with machine.one_core():
                for case in cases(blocks, _SETS, seed):
                    if gloo is not None:
                        gloo.begin(len(case.rows[0]) * LAYOUT.block_bytes)
                    times = await interleave(arms.of(case), rounds, burst=_BURST if len(case.rows[0]) == 1 else 1)
                    found["cases"][case.name] = _figures(case, times)
                    if gloo is not None:
                        gloo.end()
    return found


async def measure_far(blocks: int, rounds: int, seed: int = 0) -> dict[str, Any]:
    """The same cases over the network, by lane; empty where NIXL is not installed."""
    if flavour() is None:
        return {}

    async def filled(client: Client) -> Keys:
        return await fill(client, blocks, None)

    sets = [(case.name, case.rows) for case in cases(blocks, _SETS, seed)]
    return {lane: await far.measure(lane, LAYOUT, blocks, rounds, sets, filled, _BURST) for lane in far.LANES}


def _figures(case: Case, times: dict[str, Times]) -> dict[str, Any]:
    memcpy = min(times["memcpy"].median, times["memcpy, gather"].median)
    size = len(case.rows[0]) * LAYOUT.block_bytes
    return {
        name: {
            "p50_s": taken.median,
            "p99_s": taken.quantile(0.99),
            "gb_per_s": size / taken.median / 1e9,
            "ratio_to_memcpy": taken.median / memcpy,
        }
        for name, taken in times.items()
    }


def verdicts(found: dict[str, Any]) -> dict[str, bool]:
    """Whether each aim was met: ratios for many blocks, the median of a single known one."""
    cases_found = found["cases"]
    met = {}
    for name, case in cases_found.items():
        if name != "16 KiB":
            met[f"{name}: ≤ {AIM_PLAIN} × memcpy"] = case["mapped"]["ratio_to_memcpy"] <= AIM_PLAIN
            met[f"{name}, verified: ≤ {AIM_SUMMED} × memcpy"] = (
                case["mapped, verified"]["ratio_to_memcpy"] <= AIM_SUMMED
            )
    single = cases_found["16 KiB"]
    for arm in ("mapped", "mapped, verified"):
        met[f"16 KiB at a known location, {arm}: p50 < 50 µs"] = single[arm]["p50_s"] < AIM_SINGLE_S
    return met


def run(argv: list[str]) -> int:
    """Exit code 0 when it could measure, whatever the figures; 2 for usage."""
    parser = argparse.ArgumentParser(prog="kvstore bench fetch", description=__doc__)
    parser.add_argument("--blocks", type=int, default=8192, help="of 16 KiB, in the pool (default: 128 MiB)")
    parser.add_argument("--rounds", type=int, default=100, help="timings of each arm")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    if options.blocks < 2048 or options.rounds < 1:
        parser.error("need --blocks ≥ 2048 (twice a batch) and --rounds ≥ 1")
    facts = machine.facts()
    found = asyncio.run(measure(options.blocks, options.rounds))
    found |= {"far": asyncio.run(measure_far(options.blocks, options.rounds))}
    found |= {"machine": facts, "aims": verdicts(found) | far.verdicts(found["far"])}
    print(json.dumps(found) if options.json else "\n".join(_table(found)))
    return 0


def _table(found: dict[str, Any]) -> list[str]:
    lines = [
        machine.line(found["machine"]),
        f"pool of {found['pool_blocks']} blocks of {found['block_bytes']} bytes; peers: "
        + (found["redis"] or "no Redis (redis-server or redis-py is not installed)")
        + "; "
        + (found["all-gather"] or "no collective (torch is not installed)"),
        f"{'fetch':<28}{'by':<18}{'p50':>11}{'p99':>11}{'GB/s':>8}{'× memcpy':>10}",
    ]
    for name, arms in found["cases"].items():
        for arm, figures in arms.items():
            lines.append(
                f"{name:<28}{arm:<18}{figures['p50_s'] * 1e6:>8.1f} µs{figures['p99_s'] * 1e6:>8.1f} µs"
                f"{figures['gb_per_s']:>8.2f}{figures['ratio_to_memcpy']:>10.2f}"
            )
    lines += far.table(found["far"]) or ["no nixl rows (NIXL is not installed)"]
    return [*lines, *(f"aim {'met' if met else 'MISSED'}: {aim}" for aim, met in found["aims"].items())]
