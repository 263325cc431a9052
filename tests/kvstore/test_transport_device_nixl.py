"""Over the network onto a device: NIXL brings blocks to the host, and they go on from there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvstore.client import Client
from kvstore.cluster import LocalCluster
from kvstore.transport.device.landing import Landing
from kvstore.transport.device.memory import device_named
from tests.kvstore.device_rig import compiled, stubbed
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


async def test_a_gpu_that_nixl_cannot_reach_is_reached_by_way_of_the_host(
    cluster: LocalCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """NIXL itself refuses: there is no GPU here, only a runtime that says there is."""
    keys = some_keys(12, seed=2)
    with stubbed(compiled(tmp_path), tmp_path / "stub"):
        async with await Client.connect(
            cluster.targets, LAYOUT, transport="nixl", device="cuda:0", deadline_ms=20_000
        ) as client:
            await client.put(keys, blocks_for(keys))
            for _ in range(2):
                room = client.device_rows(12)
                assert (await client.get_on_device(keys, room)).found.all()
                assert (room.download() == blocks_for(keys)).all()
        told = [record.message for record in caplog.records if "by way of the host" in record.message]
        assert len(told) == 1, told
        assert "cuda:0" in told[0]


@pytest.mark.parametrize("verify", [True, False])
async def test_what_lands_on_the_device_goes_on_to_host_and_places(
    cluster: LocalCluster, verify: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way of a GPU, with registered host memory in the place of the card's, and less of it than a get needs."""
    keys = some_keys(30, seed=3)
    async with await Client.connect(
        cluster.targets, LAYOUT, transport="nixl", device="shm", deadline_ms=20_000
    ) as client:
        await client.put(keys[:25], blocks_for(keys[:25]))
        landing = client.side.landing

        def ready(self: Landing, mine: Any, slot_bytes: int) -> bool:
            if self._room is None:
                self._room = client.buffer(6)
            return self._room is not None

        monkeypatch.setattr(Landing, "ready", ready)
        room = client.device_rows(64)
        room.upload(np.full((64, LAYOUT.block_bytes), 7, np.uint8))
        places = np.random.default_rng(4).permutation(64)[:30]
        found = await client.get_on_device(keys, room, places=places, verify=verify)
        assert (found.found == (np.arange(30) < 25)).all()
        assert (found.headers["key"][:25] == keys[:25]).all()
        now = room.download()
        assert (now[places[:25]] == blocks_for(keys[:25])).all()
        assert (np.delete(now, places[:25], axis=0) == 7).all()
        assert landing._room is not None


def test_a_device_without_a_gpu_has_nowhere_to_land() -> None:
    assert not Landing(device_named("shm")).ready(None, 4096)  # type: ignore[arg-type]
