"""The calls of CUDA: which, in which order, with which device current, and what becomes of each that fails.

Only the runtime's library is not real (`cudart_stub.c`): its copies wait for a synchronisation, its addresses cannot be
touched from the host, and it says when memory is freed that others still have open.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvstore.client import Client
from kvstore.cluster import LocalCluster
from kvstore.errors import BadRequest, DeviceFailed, ShardUnavailable, StagingRejected, StoreError
from kvstore.transport.device import runtime
from kvstore.transport.device.cuda import CudaDevice, ordinal_of
from kvstore.transport.device.memory import Move, device_for, device_named
from kvstore.transport.device.rows import DeviceRows
from tests.kvstore.device_rig import Stub, compiled, forget_devices, stubbed
from tests.kvstore.process_rig import LAYOUT, Helper, blocks_for, some_keys


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("cudart"))


@pytest.fixture
def stub(library: Path, tmp_path: Path) -> Iterator[Stub]:
    with stubbed(library, tmp_path / "stub") as made:
        yield made


# --- one process ------------------------------------------------------------------------------------------------------


def cuda(name: str = "cuda:0") -> CudaDevice:
    found = device_named(name)
    assert isinstance(found, CudaDevice)
    return found


def test_bytes_go_there_and_back_in_pieces_as_large_as_they_are(stub: Stub) -> None:
    rows = DeviceRows.allocate(cuda(), 6, 512)
    blocks = np.random.default_rng(1).integers(0, 256, (6, 512), np.uint8)
    rows.upload(blocks)
    assert (rows.download() == blocks).all()
    assert stub.counts()["cudaMemcpyAsync"] == 2
    wide = np.zeros((6, 640), np.uint8)
    at = int(wide.ctypes.data)
    cuda().move([Move(at + 128, 640, rows.address, 512, 512, 6)])
    assert (wide[:, 128:] == blocks).all()
    assert not wide[:, :128].any()
    assert stub.counts()["cudaMemcpy2DAsync"] == 1
    assert stub.calls()[-1] == "cudaStreamSynchronize"


def test_the_callers_current_device_stays_what_it_was(stub: Stub) -> None:
    first = cuda("cuda:0")
    raw = ctypes.CDLL(runtime.runtime().path)
    raw.cudaSetDevice(1)
    rows = DeviceRows.allocate(first, 2, 512)
    rows.upload(np.zeros((2, 512), np.uint8))
    first.quiesce()
    now = ctypes.c_int(-1)
    raw.cudaGetDevice(ctypes.byref(now))
    raw.cudaSetDevice(0)
    assert now.value == 1
    assert stub.devices_of("cudaMalloc") == {0}
    assert stub.devices_of("cudaStreamSynchronize") == {0}


def test_what_the_caller_has_begun_is_waited_for_on_its_own_stream(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torch that is the default stream; with it, the one that is current for this thread and device."""
    waited: list[int] = []
    device = cuda("cuda:1")
    real = device._library.call

    def noted(name: str, *arguments: Any) -> None:
        if name == "cudaStreamSynchronize":
            waited.append(arguments[0])
            return
        real(name, *arguments)

    monkeypatch.setattr(device._library, "call", noted)
    monkeypatch.setitem(sys.modules, "torch", None)
    device.settle()

    class Torch:
        """As much of torch as says which stream is current."""

        class cuda:  # noqa: N801
            @staticmethod
            def is_initialized() -> bool:
                return True

            @staticmethod
            def current_stream(ordinal: int) -> Any:
                return type("Stream", (), {"cuda_stream": 7000 + ordinal})

    monkeypatch.setitem(sys.modules, "torch", Torch)
    device.settle()
    assert waited == [0, 7001]


def test_memory_is_freed_with_the_last_that_looks_at_it(stub: Stub) -> None:
    rows = DeviceRows.allocate(cuda(), 2, 512)
    half = DeviceRows.of(rows, cuda(), 512)
    del rows
    assert not stub.counts()["cudaFree"]
    del half
    assert stub.counts()["cudaFree"] == 1
    locked = cuda().host(4096)
    view = locked[:100]
    del locked
    assert not stub.counts()["cudaFreeHost"]
    del view
    assert stub.counts()["cudaFreeHost"] == 1


def test_allocations_are_whole_granules(stub: Stub) -> None:
    memory = cuda().allocate(3 << 20)
    assert memory.size == 4 << 20
    memory.close()
    memory.close()
    assert stub.counts()["cudaFree"] == 1


@pytest.mark.parametrize(
    ("call", "act"),
    [
        ("cudaMalloc", lambda: cuda().allocate(1)),
        ("cudaIpcGetMemHandle", lambda: cuda().allocate(1).export()),
        ("cudaMemcpyAsync", lambda: DeviceRows.allocate(cuda(), 1, 512).download()),
        ("cudaStreamSynchronize", lambda: DeviceRows.allocate(cuda(), 1, 512).download()),
        ("cudaDeviceSynchronize", lambda: cuda().quiesce()),
        ("cudaHostAlloc", lambda: cuda().host(4096)),
        ("cudaSetDevice", lambda: cuda("cuda:1").quiesce()),
        ("cudaStreamCreateWithFlags", lambda: cuda()),
    ],
)
def test_each_call_that_fails_is_an_error_that_names_it(stub: Stub, call: str, act: Any) -> None:
    stub.set("faults", f"{call} 700")
    with pytest.raises(StoreError, match=rf"{call}: an illegal memory access was encountered \(700\)"):
        act()


def test_a_copy_that_fails_leaves_nothing_under_way(stub: Stub) -> None:
    """The first copy was posted before the second was refused: it has ended before the caller hears of that."""
    rows = DeviceRows.allocate(cuda(), 2, 512)
    rows.upload(np.full((2, 512), 9, np.uint8))
    out = np.zeros((2, 512), np.uint8)
    base = int(out.ctypes.data)
    outside = rows.address + (1 << 40)
    with pytest.raises(DeviceFailed, match="invalid argument"):
        cuda().move([Move(base, 512, rows.address, 512, 512, 1), Move(base, 512, outside, 512, 512, 1)])
    assert (out[0] == 9).all()


def test_a_size_that_is_not_to_be_had_says_what_is(stub: Stub) -> None:
    with pytest.raises(BadRequest, match="cuda:0: 2048 MiB cannot be had, 512 MiB are free: cudaMalloc: out of memory"):
        cuda().allocate(2 << 30)


def test_devices_are_told_apart_by_where_they_sit(stub: Stub) -> None:
    assert [cuda(name).bus for name in ("cuda:0", "cuda:1")] == ["0000:1a:00.0", "0000:1b:00.0"]
    stub.set("hidden", 1)
    forget_devices()
    assert ordinal_of("0000:1b:00.0") == 0
    assert ordinal_of("0000:1a:00.0") is None
    assert device_for({"kind": "cuda", "bus": "0000:1b:00.0"}).name == "cuda:0"
    with pytest.raises(BadRequest, match="no cuda:1 here: CUDA sees 1"):
        device_named("cuda:1")


def test_what_takes_the_cuda_array_interface_sees_the_memory(stub: Stub) -> None:
    rows = DeviceRows.allocate(cuda(), 3, 512)
    told = rows.__cuda_array_interface__
    assert told["shape"] == (3, 512)
    assert told["data"] == (rows.address, False)

    class Tensor:
        """What torch says of a contiguous tensor."""

        def __init__(self, **changes: Any) -> None:
            told = {"shape": (3, 2, 128), "typestr": "<f2", "data": (rows.address, False), "strides": None}
            self.__cuda_array_interface__ = told | changes

    assert len(DeviceRows.of(Tensor(), cuda(), 512)) == 3
    assert DeviceRows.of(Tensor(strides=(512, 256, 2)), cuda(), 512).address == rows.address
    for odd in (
        Tensor(strides=(1024, 256, 2)),
        Tensor(data=(rows.address, True)),
        Tensor(shape=(3, 2, 100)),
        np.zeros((3, 512), np.uint8),
    ):
        with pytest.raises(BadRequest):
            DeviceRows.of(odd, cuda(), 512)


def test_no_gpu_and_no_library_are_told_in_one_line(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    stub.set("devices", 0)
    with pytest.raises(BadRequest, match=r"no CUDA here: .*libcudart.so.12: cudaGetDeviceCount: no CUDA-cap"):
        device_named("cuda:0")
    stub.set("faults", "cudaGetDeviceCount 35")
    forget_devices()
    with pytest.raises(BadRequest, match="driver version is insufficient"):
        device_named("cuda:0")
    monkeypatch.setenv(runtime.LIBRARY, "/nowhere/libcudart.so")
    forget_devices()
    with pytest.raises(BadRequest, match=r"no CUDA here: /nowhere/libcudart.so: cannot open"):
        device_named("cuda:0")
    monkeypatch.setenv(runtime.LIBRARY, "libc.so.6")
    forget_devices()
    with pytest.raises(BadRequest, match=r"libc.so.6 is no CUDA runtime"):
        device_named("cuda:0")


# --- between processes ------------------------------------------------------------------------------------------------


async def test_handles_are_opened_once_and_closed_before_the_memory_goes(stub: Stub) -> None:
    keys = some_keys(20, 1)
    with LocalCluster(2, LAYOUT, 64, device="cuda:0") as cluster:
        async with await Client.connect(cluster.file, LAYOUT, device="cuda:1") as client:
            room, freed = client.device_rows(20), stub.counts()["cudaFree"]
            for _ in range(5):
                await client.put(keys, blocks_for(keys))
                await client.get(keys)
                assert (await client.get_on_device(keys, room)).found.all()
            assert stub.counts()["cudaIpcOpenMemHandle"] == 4
            assert not stub.counts()["cudaIpcCloseMemHandle"]
            assert stub.counts()["cudaFree"] == freed
        calls = stub.calls()
        assert calls.count("cudaIpcCloseMemHandle") == 4
        assert max(at for at, call in enumerate(calls) if call == "cudaFree") > max(
            at for at, call in enumerate(calls) if call == "cudaIpcCloseMemHandle"
        )
    assert "FREED-WHILE-OPEN" not in stub.calls()
    for pid in cluster.pids:
        assert not stub.counts(pid)["cudaFree"], "a pool that others may read goes with its process"


async def test_memory_that_a_stopped_shard_may_read_is_not_freed(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvstore.transport.device import side

    monkeypatch.setattr(side, "PART_S", 0.1)
    with LocalCluster(1, LAYOUT, 64, device="cuda:0") as cluster:
        client = await Client.connect(cluster.file, LAYOUT, device="cuda:0")
        freed = stub.counts()["cudaFree"]
        cluster.kill(0, signal.SIGSTOP)
        await client.close()
        cluster.kill(0, signal.SIGCONT)
        assert stub.counts()["cudaFree"] == freed
        async with await Client.connect(cluster.file, LAYOUT, device="cuda:0") as other:
            freed = stub.counts()["cudaFree"]
            cluster.kill(0)
            await other.close()
        assert stub.counts()["cudaFree"] == freed + 1, "a dead shard reads nothing"


async def test_a_shard_that_ends_first_lets_go_before_it_says_so(stub: Stub) -> None:
    with LocalCluster(1, LAYOUT, 64, device="cuda:0") as cluster:
        async with await Client.connect(cluster.file, LAYOUT, device="cuda:0"):
            freed = stub.counts(os.getpid())["cudaFree"]
            cluster.kill(0, signal.SIGTERM)
        calls = stub.calls()
        assert "FREED-WHILE-OPEN" not in calls
        assert stub.counts(cluster.pids[0])["cudaIpcCloseMemHandle"] == 1
        assert stub.counts(os.getpid())["cudaFree"] == freed + 1


@pytest.mark.parametrize(("apart", "opened_on"), [(False, 1), (True, 0)])
async def test_where_gpus_do_not_reach_each_other_the_driver_copies_through_the_host(
    stub: Stub, apart: bool, opened_on: int
) -> None:
    """The client is on cuda:1, the pool on cuda:0: it is opened in the context from which it can be read."""
    if apart:
        stub.set("apart", 1)
    keys = some_keys(8, 2)
    with LocalCluster(1, LAYOUT, 64, device="cuda:0") as cluster:
        async with await Client.connect(cluster.file, LAYOUT, device="cuda:1") as client:
            assert stub.devices_of("cudaIpcOpenMemHandle", os.getpid()) == {opened_on}
            await client.put(keys, blocks_for(keys))
            room = client.device_rows(8)
            assert (await client.get_on_device(keys, room)).found.all()
            assert (room.download() == blocks_for(keys)).all()


@pytest.fixture(scope="module")
def served(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, LocalCluster]]:
    """One shard of 64 blocks for all that leave it as it was, and the folder of its stub."""
    folder = tmp_path_factory.mktemp("served")
    with stubbed(library, folder), LocalCluster(1, LAYOUT, 64, device="cuda:0") as cluster:
        yield folder, cluster


@pytest.fixture
def shard(served: tuple[Path, LocalCluster], library: Path) -> Iterator[tuple[Stub, LocalCluster]]:
    with stubbed(library, served[0]) as made:
        yield made, served[1]
        made.unset("faults")


Served = tuple[Stub, LocalCluster]


async def test_a_handle_that_does_not_open_is_unavailable_in_one_line(shard: Served) -> None:
    stub, cluster = shard
    stub.set("faults", "cudaIpcOpenMemHandle 400")
    with pytest.raises(ShardUnavailable, match=r"pool on cuda:0 cannot be read from here: .*use nixl") as told:
        await Client.connect(cluster.file, LAYOUT)
    assert "\n" not in str(told.value)
    with pytest.raises((ShardUnavailable, StagingRejected), match="invalid resource handle"):
        await Client.connect(cluster.file, LAYOUT, device="cuda:0")
    stub.unset("faults")
    async with await Client.connect(cluster.file, LAYOUT) as client:
        assert not (await client.get(some_keys(1, 1))).found.any()


async def test_a_client_without_cuda_is_told_what_it_lacks(shard: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(runtime.LIBRARY, "/nowhere/libcudart.so")
    forget_devices()
    with pytest.raises(ShardUnavailable, match="pool on cuda:0 cannot be read from here: no CUDA here"):
        await Client.connect(shard[1].file, LAYOUT)


async def test_a_put_that_the_device_refuses_takes_nothing(shard: Served) -> None:
    stub, cluster = shard
    keys = some_keys(64, 3)
    async with await Client.connect(cluster.file, LAYOUT) as client:
        stub.set("faults", "cudaStreamSynchronize 2")
        with pytest.raises(DeviceFailed, match=r"cudaStreamSynchronize: out of memory \(2\)"):
            await client.put(keys, blocks_for(keys))
        assert not (await client.lookup(keys)).found.any()
        stub.unset("faults")
        published = await client.put(keys, blocks_for(keys))
        assert not published.existed.any(), "the pool has room for 64: none of them stayed reserved"
        assert ((await client.get(keys)).data == blocks_for(keys)).all()


async def test_a_read_that_the_device_refuses_is_an_error_not_a_block(shard: Served) -> None:
    stub, cluster = shard
    keys = some_keys(4, 4)
    async with await Client.connect(cluster.file, LAYOUT, device="cuda:0") as client:
        await client.put(keys, blocks_for(keys))
        stub.set("faults", "cudaMemcpyAsync 1\ncudaMemcpy2DAsync 1")
        with pytest.raises(DeviceFailed, match="invalid argument"):
            await client.get(keys)
        with pytest.raises(DeviceFailed, match="invalid argument"):
            await client.get_on_device(keys, client.device_rows(4), verify=False)
        stub.unset("faults")
        assert (await client.get(keys)).found.all()


async def test_without_sums_no_byte_of_a_block_passes_through_the_host(shard: Served) -> None:
    stub, cluster = shard
    keys = some_keys(32, 5)
    async with await Client.connect(cluster.file, LAYOUT, device="cuda:0") as client:
        await client.put(keys, blocks_for(keys), one_run=True)
        room = client.device_rows(32)
        before = stub.counts()
        await client.get_on_device(keys, room, verify=False)
        made = stub.counts() - before
        assert made["cudaMemcpyAsync"] + made["cudaMemcpy2DAsync"] == 1, "one run, one copy"
        assert (room.download() == blocks_for(keys)).all()


_GUEST = """
import asyncio, sys
from kvstore.client import Client
from tests.kvstore.process_rig import LAYOUT
async def main():
    client = await Client.connect(sys.argv[1], LAYOUT, device="cuda:0")
    say("in")
    await asyncio.sleep(60)
asyncio.run(main())
"""


async def test_what_a_killed_client_lent_is_closed_by_the_shard(shard: Served) -> None:
    stub, cluster = shard
    before = stub.counts(cluster.pids[0])
    with Helper(_GUEST, cluster.targets) as guest:
        assert guest.heard() == "in"
        assert (stub.counts(cluster.pids[0]) - before)["cudaIpcOpenMemHandle"] == 1
    async with await Client.connect(cluster.file, LAYOUT) as client:
        for _ in range(400):
            if (stub.counts(cluster.pids[0]) - before)["cudaIpcCloseMemHandle"]:
                break
            await client.lookup(some_keys(1, 6), counted=True)
        assert (stub.counts(cluster.pids[0]) - before)["cudaIpcCloseMemHandle"] == 1
