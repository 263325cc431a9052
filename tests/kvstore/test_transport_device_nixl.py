"""Over the network onto a device: NIXL brings blocks to the host, and they go on from there."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from kvstore.client import Client
from kvstore.cluster import LocalCluster
from tests.kvstore.nixl_rig import NEEDS_NIXL
from tests.kvstore.process_rig import LAYOUT, blocks_for, some_keys

pytestmark = NEEDS_NIXL


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(2, LAYOUT, 256, nixl=True) as running:
        yield running


@pytest.mark.parametrize("verify", [True, False])
async def test_blocks_go_on_to_the_device(cluster: LocalCluster, verify: bool) -> None:
    keys = some_keys(30, seed=1)
    async with await Client.connect(
        cluster.targets, LAYOUT, transport="nixl", device="shm", deadline_ms=20_000
    ) as client:
        await client.put(keys[:20], blocks_for(keys[:20]))
        room = client.device_rows(40)
        room.upload(np.full((40, LAYOUT.block_bytes), 7, np.uint8))
        places = np.random.default_rng(3).permutation(40)[:30]
        found = await client.get_on_device(keys, room, places=places, verify=verify)
        assert (found.found == (np.arange(30) < 20)).all()
        now = room.download()
        assert (now[places[:20]] == blocks_for(keys[:20])).all()
        assert (np.delete(now, places[:20], axis=0) == 7).all()
        located = await client.lookup(keys[:20], lease_ms=5_000)
        assert (await client.get_on_device(located, room, verify=verify)).found.all()
        assert (room.download()[:20] == blocks_for(keys[:20])).all()
        assert not client.by_bandwidth(), "over the network nothing is measured at connect"
