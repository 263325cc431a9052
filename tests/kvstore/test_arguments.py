"""What callers pass to a client: whatever does not mean one thing is a `BadRequest`, and costs no staging."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import numpy as np
import pytest

from kvstore.arguments import as_blocks
from kvstore.client import Client, SyncClient
from kvstore.cluster import LocalCluster
from kvstore.errors import BadRequest
from kvstore.layout import Layout
from tests.kvstore.process_rig import LAYOUT, blocks_for, some_keys

K = some_keys(16, seed=1)
B = blocks_for(K)
D = np.ones((4, 24), np.uint8)
NONE = K[:0]
BLOCKS = 32


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(1, LAYOUT, 256) as running:
        yield running


Attempt = Callable[[Client], Awaitable[Any]]
strings = np.full(16, "16")
READ_ONLY = np.zeros((16, LAYOUT.slot_bytes), np.uint8)
READ_ONLY.flags.writeable = False
WRONG: dict[str, Attempt] = {
    "keys a list": lambda c: c.put(K.tolist(), B),
    "keys None": lambda c: c.lookup(None),
    "keys objects": lambda c: c.get(K.astype(object)),
    "keys of a remove": lambda c: c.remove([1, 2]),
    "blocks a list": lambda c: c.put(K, B.tolist()),
    "blocks None": lambda c: c.put(K, None),
    "blocks objects": lambda c: c.put(K, B.astype(object)),
    "blocks of another type": lambda c: c.put(K, B.view(np.float32)),
    "blocks too few": lambda c: c.put(K, B[:3]),
    "valid strings": lambda c: c.put(K, B, valid=strings),
    "valid a text": lambda c: c.put(K, B, valid="16"),
    "valid fractions": lambda c: c.put(K, B, valid=np.full(16, 1.7)),
    "valid too few": lambda c: c.put(K, B, valid=[16] * 3),
    "valid ragged": lambda c: c.put(K, B, valid=[[1], [1, 2]]),
    "valid none": lambda c: c.put(K, B, valid=0),
    "valid too many": lambda c: c.put(K, B, valid=np.full(16, 17)),
    "chains floats": lambda c: c.put(K, B, chains=np.ones((16, 24))),
    "chains strings": lambda c: c.put(K, B, chains=np.full((16, 24), "a")),
    "session a text": lambda c: c.put(K, B, session="abc"),
    "session a fraction": lambda c: c.put(K, B, session=1.5),
    "session negative": lambda c: c.put(K, B, session=-1),
    "durability": lambda c: c.put(K, B, durability=7),
    "lease a text": lambda c: c.lookup(K, lease_ms="5"),
    "lease negative": lambda c: c.lookup(K, lease_ms=-5),
    "deadline a text": lambda c: c.put(K, B, deadline_ms="5"),
    "clock nan": lambda c: c.get(K, min_clock=float("nan"), deadline_ms=50),
    "clocks nan": lambda c: c.get(K, min_clock=np.full(16, np.nan), deadline_ms=50),
    "clocks too few": lambda c: c.get(K, min_clock=np.zeros(3, np.uint64), deadline_ms=50),
    "clock beyond": lambda c: c.get(K, min_clock=1 << 63, deadline_ms=50),
    "valid nan": lambda c: c.get(K, min_valid=np.full(16, np.nan), deadline_ms=50),
    "out a list": lambda c: c.get(K, [1]),
    "out read-only": lambda c: c.get(K, READ_ONLY),
    "append to a text": lambda c: c.append("x", K[:1], B[:1], valid=4, digests=D),
    "append of a fraction": lambda c: c.append(1, K[:1], B[:1], valid=4.0, digests=D),
    "append of none": lambda c: c.append(1, K[:1], B[:1], valid=None, digests=D),
    "append's digests": lambda c: c.append(1, K[:1], B[:1], valid=3, digests=D),
    "append's digests floats": lambda c: c.append(1, K[:1], B[:1], valid=4, digests=D * 1.0),
    "append's clock": lambda c: c.append(1, K[:1], B[:1], valid=4, digests=D, expected=1 << 63),
    "append's clock nan": lambda c: c.append(1, K[:1], B[:1], valid=4, digests=D, expected=np.array([np.nan])),
    "append's full keys": lambda c: c.append(1, K[:1], B[:1], valid=16, digests=D.repeat(4, 0), full_keys=K[:2]),
    "match": lambda c: c.match_tail(1, K[:1], D * 1.0),
    "stage": lambda c: c.stage("3"),
    "session class": lambda c: c.open_session(None),
    "session class surrogate": lambda c: c.open_session("\ud800"),
    "session ttl": lambda c: c.open_session("x", ttl_ms="5"),
    "session number": lambda c: c.open_session("x", number="5"),
    "renew": lambda c: c.renew(None, 5),
}


async def test_a_wrong_argument_is_a_bad_request_and_leaves_nothing_behind(cluster: LocalCluster) -> None:
    async with await Client.connect(cluster.targets, LAYOUT, staging_blocks=BLOCKS) as client:
        for name, attempt in WRONG.items():
            for _ in range(3):  # which once used up the staging arena
                with pytest.raises(BadRequest):
                    await attempt(client)
            assert (client.staging.free, client.staging.quarantined) == (BLOCKS, 0), name
        assert not (await client.lookup(K)).found.any()
        await client.put(K, B)


async def test_a_failure_before_a_put_is_sent_costs_no_staging(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await Client.connect(cluster.targets, LAYOUT, staging_blocks=BLOCKS) as client:

        def unfit(*_: object) -> bytes:
            raise RuntimeError("a fault of our own")

        with monkeypatch.context() as patched:
            patched.setattr("kvstore.writes.sums", unfit)
            with pytest.raises(RuntimeError):
                await client.put(K, B)
            patched.setattr("kvstore.wire.pack_request", unfit)
            with pytest.raises(RuntimeError):
                await client.put(K, B)
        for _ in range(4):
            await client.put(K, B, deadline_ms=20_000)
        await client.writes.close()
        assert client.staging.free == BLOCKS


async def test_a_deadline_that_is_none_is_refused_on_the_quick_way_too(cluster: LocalCluster) -> None:
    with SyncClient(cluster.targets, LAYOUT) as plain:
        plain.put(K, B)
        located, out = plain.lookup(K), plain.buffer(16)
        async with await Client.connect(cluster.targets, LAYOUT) as client:
            for deadline in (0, -1, float("nan"), "5"):
                with pytest.raises(BadRequest, match="deadline"):
                    plain.get(located, out, deadline_ms=deadline)
                with pytest.raises(BadRequest, match="deadline"):
                    await client.get(located, out, deadline_ms=deadline)
        with pytest.raises(BadRequest):
            plain.get(None)


async def test_nothing_may_be_put_appended_or_asked_for(cluster: LocalCluster) -> None:
    async with await Client.connect(cluster.targets, LAYOUT) as client:
        for empty in (B[:0], np.zeros((0, *LAYOUT.block_shape), np.float16)):
            assert len((await client.put(NONE, empty)).slot) == 0
            assert len((await client.append(1, NONE, empty, valid=4, digests=D)).slot) == 0
        assert len(await client.lookup(NONE)) == len(await client.get(NONE)) == len(await client.remove(NONE)) == 0


async def test_numbers_come_in_several_forms(cluster: LocalCluster) -> None:
    async with await Client.connect(cluster.targets, LAYOUT) as client:
        for valid in (5, np.int32(5), [5] * 16, tuple([5] * 16), np.full(16, 5, np.uint8), np.full(16, 5, np.uint64)):
            await client.remove(K)
            await client.put(K, B, valid=valid)
            put = await client.put(K, B)
            got = await client.get(K, min_valid=valid, min_clock=put.clock.max())
            assert (got.valid == 5).all()


async def test_a_staged_run_is_put_or_given_back_once(cluster: LocalCluster) -> None:
    async with await Client.connect(cluster.targets, LAYOUT, staging_blocks=BLOCKS) as client:
        run = await client.stage(16)
        client.unstage(run)
        for attempt in (lambda: client.unstage(run), lambda: client.put(K, run)):
            with pytest.raises(BadRequest, match="staged run"):
                await attempt()
        run = await client.stage(16)
        run.data[:] = B
        await client.put(K, run)
        with pytest.raises(BadRequest, match="staged run"):
            client.unstage(run)
        assert client.staging.free == BLOCKS
        async with await Client.connect(cluster.targets, LAYOUT) as other:
            with pytest.raises(BadRequest, match="staged run"):
                await other.put(K, await client.stage(16))


@pytest.mark.parametrize(
    "options",
    [
        {"targets": None},
        {"targets": [1]},
        {"layout": None},
        {"staging_blocks": -1},
        {"staging_blocks": 0},
        {"staging_blocks": 1.5},
        {"staging_blocks": 10**12},
        {"staging_blocks": 10**30},
        {"deadline_ms": "5"},
        {"deadline_ms": None},
    ],
)
async def test_a_client_is_not_made_of_what_makes_none(cluster: LocalCluster, options: dict[str, Any]) -> None:
    asked = {"targets": cluster.targets, "layout": LAYOUT} | options
    with pytest.raises(BadRequest):
        await Client.connect(**asked)
    with pytest.raises(BadRequest):
        SyncClient(**asked)


def test_blocks_are_elements_or_raw_bits_of_the_layout() -> None:
    half = Layout("m", dtype="float16")
    brain = Layout("m", dtype="bfloat16")
    shape = (2, *half.block_shape)
    for dtype in (np.float16, np.uint16, np.int16):
        assert as_blocks(np.zeros(shape, dtype), half).shape == (2, half.block_bytes)
    for layout in (half, brain):
        assert as_blocks(np.zeros((2, layout.block_bytes), np.uint8), layout).shape == (2, layout.block_bytes)
    assert as_blocks(np.zeros(shape, np.uint16), brain).shape == (2, brain.block_bytes)
    assert as_blocks(np.zeros(shape, "V2"), brain).shape == (2, brain.block_bytes)
    for dtype, layout in ((np.float16, brain), (np.float32, half), (np.bool_, half), (np.complex64, half)):
        size = layout.block_bytes // np.dtype(dtype).itemsize
        with pytest.raises(BadRequest, match="elements"):
            as_blocks(np.zeros((2, size), dtype), layout)
