"""Gets at known places take a quick way: the general one's answers, and whatever is not in order is left to that."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest

from kvstore.client import Client
from kvstore.cluster import LocalCluster
from kvstore.errors import BadRequest, ChecksumMismatch, LeaseExpired
from kvstore.keys import block_keys
from kvstore.layout import Layout
from kvstore.locations import State
from kvstore.transport.mapped import MappedPeer

LAYOUT = Layout("quick", head_dim=16)
KEYS = block_keys([bytes([i]) * 24 for i in range(40)], 0, 0)
DATA = np.random.default_rng(0).integers(0, 256, (40, LAYOUT.block_bytes), np.uint8)


FRESH = block_keys([bytes([100 + i]) * 24 for i in range(9)], 0, 0)


@pytest.fixture(scope="module")
def targets() -> Iterator[str]:
    with LocalCluster(1, LAYOUT, 48) as cluster:
        yield cluster.targets


@pytest.fixture
async def client(targets: str) -> AsyncIterator[Client]:
    async with await Client.connect(targets, LAYOUT) as client:
        await client.remove(np.concatenate([KEYS, FRESH]))
        await client.put(KEYS, DATA)
        yield client
        await client.remove(KEYS)


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1), slice(0, 40, 3), slice(7, 8)])
async def test_same_answer_in_any_order(client: Client, verify: bool, order: slice) -> None:
    located = await client.lookup(KEYS[order], lease_ms=5_000)
    out = client.buffer(len(located))
    quick = client.get_quick(located, out, verify=verify)
    assert quick is not None
    general = await client.get(KEYS[order], verify=verify)
    assert np.array_equal(quick.data, DATA[order])
    assert np.array_equal(quick.slots, general.slots)
    assert (quick.state == State.OK).all()
    assert client.clock.now >= int(quick.clock.max()) > 0


@pytest.mark.parametrize("verify", [False, True])
async def test_one_recycled_row_is_a_miss_and_the_others_are_answers(client: Client, verify: bool) -> None:
    located = await client.lookup(KEYS)
    await client.remove(KEYS[5:6])
    out = client.buffer(40)
    await client.put(FRESH, DATA[:9])  # needs the removed block's slot
    assert client.get_quick(located, out, verify=verify) is None
    blocks = await client.get(located, out, verify=verify, deadline_ms=200)
    assert blocks.found.tolist() == [i != 5 for i in range(40)]
    assert np.array_equal(blocks.data[blocks.found], DATA[np.arange(40) != 5])


async def test_absent_rows_leases_that_ended_and_room_that_does_not_fit(client: Client) -> None:
    absent = block_keys([b"?" * 24], 0, 0)
    located = await client.lookup(np.concatenate([KEYS[:3], absent]))
    assert client.get_quick(located, client.buffer(4)) is None
    assert (await client.get(located, client.buffer(4))).found.tolist() == [True] * 3 + [False]
    leased = await client.lookup(KEYS, lease_ms=5_000)
    leased.until_ms[:] = 1
    with pytest.raises(LeaseExpired):
        await client.get(leased, client.buffer(40))
    with pytest.raises(BadRequest):
        await client.get(leased, client.buffer(39))


@pytest.mark.parametrize("times", [1, 100])
async def test_a_damaged_copy_is_read_again_and_damage_is_an_error(
    client: Client, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    located = await client.lookup(KEYS)
    real, left = MappedPeer.read, times

    def damaged(self: MappedPeer, slots: Any, rows: Any, out: Any) -> int:
        nonlocal left
        found = real(self, slots, rows, out)
        if left:
            left -= 1
            out[len(out) // 2, 200] ^= 1
        return found

    monkeypatch.setattr(MappedPeer, "read", damaged)
    if times == 1:
        assert np.array_equal((await client.get(located, client.buffer(40))).data, DATA)
        return
    with pytest.raises(ChecksumMismatch):
        await client.get(located, client.buffer(40))
