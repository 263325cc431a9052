"""The `nixl` rows of `kvstore bench fetch`: gets over the network beside a plain NIXL loop on the same lane.

*plain nixl* reads the very same slots of the very same pool into registered memory, with an agent of its own: one
transfer of the same descriptors, polled without a pause, nothing checked. *nixl* is `Client.get` at leased locations
into `Client.buffer`, without the sums and with them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from kvstore.bench import machine
from kvstore.bench.peers import Ints
from kvstore.bench.rounds import Arm, Times, interleave
from kvstore.client import Client
from kvstore.cluster import LocalCluster
from kvstore.keys import Keys
from kvstore.layout import Layout
from kvstore.locations import Locations
from kvstore.transport.nixl.agent import Agent, agent_name, own_name, spans
from kvstore.transport.nixl.hello import metadata_of
from kvstore.transport.nixl.peer import NixlPeer

LANES = {"tcp": "tcp", "shm": "shm,cma,tcp"}
"""`UCX_TLS` by the lane that reads then take."""
AIM = 1.3
LEASE_MS = 60_000


class Plain:
    """A NIXL agent with its own registered memory and the shard as its peer."""

    def __init__(self, peer: NixlPeer, blocks: int, most: int, slot_bytes: int) -> None:
        pool = peer.facts["nixl"]
        self._agent = Agent(agent_name("plain"), serves=False)
        self._name, self._base, self._slot_bytes = own_name(str(pool["agent"])), int(pool["base"]), slot_bytes
        self._agent.add(metadata_of(pool), str(pool["agent"]), self._name)
        self.room = np.zeros((most, slot_bytes), np.uint8)
        self._into = int(self.room.ctypes.data)
        self._agent.register(self._into, self.room.nbytes)
        self._local = self._agent.prepare(None, spans(self._into, np.arange(most), 1, slot_bytes))
        self._remote = self._agent.prepare(self._name, spans(self._base, np.arange(blocks), 1, slot_bytes))

    def plan(self, slots: Ints) -> Callable[[], Any]:
        """A read of `slots`, as descriptors of runs, or of single slots by index where hardly any lie together."""
        starts = np.concatenate(([0], np.flatnonzero(np.diff(slots) != 1) + 1))
        if len(slots) < 2 * len(starts):
            local, remote = np.arange(len(slots), dtype=np.int32), slots.astype(np.int32)
            return lambda: self._agent.read_prepared(
                self._name, self._local, local, self._remote, remote, self._slot_bytes
            )
        lengths = np.diff(np.append(starts, len(slots)))
        into = spans(self._into, starts, lengths, self._slot_bytes)
        source = spans(self._base, slots[starts], lengths, self._slot_bytes)
        return lambda: self._agent.read(self._name, into, source)

    def fetch(self, post: Callable[[], Any]) -> None:
        transfer = post()
        while not self._agent.over(transfer):
            pass

    def close(self) -> None:
        self._agent.drop(self._local)
        self._agent.drop(self._remote)
        self._agent.close()


@contextmanager
def only(name: str) -> Iterator[None]:
    """UCX's choice for agents and processes that are made meanwhile."""
    before = os.environ.get("UCX_TLS")
    os.environ["UCX_TLS"] = LANES[name]
    try:
        yield
    finally:
        if before is None:
            del os.environ["UCX_TLS"]
        else:
            os.environ["UCX_TLS"] = before


async def measure(
    name: str,
    layout: Layout,
    blocks: int,
    rounds: int,
    cases: list[tuple[str, list[Ints]]],
    fill: Callable[[Client], Any],
    burst: int,
) -> dict[str, Any]:
    """Times of every case on lane `name`, and the lanes that UCX says it took."""
    found: dict[str, Any] = {"cases": {}}
    with only(name):
        async with (
            LocalCluster(1, layout, blocks, nixl=True) as cluster,
            await Client.connect(cluster.targets, layout, transport="nixl", deadline_ms=60_000) as client,
        ):
            keys: Keys = await fill(client)
            peer: Any = client.shards.peer(0)
            most = max(len(rows[0]) for _, rows in cases)
            plain = Plain(peer, blocks, most, layout.slot_bytes)
            try:
                for case, rows in cases:
                    where = await client.lookup(keys, lease_ms=LEASE_MS)
                    arms = _arms(client, plain, where, rows)
                    with machine.one_core():
                        times = await interleave(arms, rounds, burst=burst if len(rows[0]) == 1 else 1)
                    found["cases"][case] = _figures(len(rows[0]) * layout.block_bytes, times)
                    await client.release(where)
                found["lanes"] = [f"{lane.lane}/{lane.device}" for lane in client._transport.lanes()]
            finally:
                plain.close()
    return found


def _arms(client: Client, plain: Plain, where: Locations, rows: list[Ints]) -> dict[str, Arm]:
    located = [where.rows(one) for one in rows]
    plans = [plain.plan(where.slot[one]) for one in rows]
    out = client.buffer(len(rows[0]))

    async def loop(number: int) -> None:
        plain.fetch(plans[number % len(plans)])

    def ours(verify: bool, shift: int) -> Arm:
        async def fetch(number: int) -> None:
            blocks = await client.get(located[(number + shift) % len(located)], out, verify=verify)
            assert blocks.state.max() == 0

        return fetch

    return {"plain nixl": loop, "nixl": ours(False, 1), "nixl, verified": ours(True, 2)}


def _figures(size: int, times: dict[str, Times]) -> dict[str, Any]:
    base = times["plain nixl"].median
    return {
        name: {
            "p50_s": taken.median,
            "p99_s": taken.quantile(0.99),
            "gb_per_s": size / taken.median / 1e9,
            "ratio_to_plain": taken.median / base,
        }
        for name, taken in times.items()
    }


def verdicts(found: dict[str, Any]) -> dict[str, bool]:
    """Whether a get of many blocks took at most `AIM` times the plain loop, by lane and case."""
    return {
        f"nixl over {lane}, {case}: ≤ {AIM} × plain nixl": arms["nixl"]["ratio_to_plain"] <= AIM
        for lane, measured in found.items()
        for case, arms in measured["cases"].items()
    }


def table(found: dict[str, Any]) -> list[str]:
    lines = []
    for lane, measured in found.items():
        lines.append(f"over {lane} (UCX reads over {', '.join(measured['lanes'])}):")
        for case, arms in measured["cases"].items():
            for arm, figures in arms.items():
                lines.append(
                    f"{case:<28}{arm:<18}{figures['p50_s'] * 1e6:>8.1f} µs{figures['p99_s'] * 1e6:>8.1f} µs"
                    f"{figures['gb_per_s']:>8.2f}{figures['ratio_to_plain']:>10.2f} × plain"
                )
    return lines
