"""Sealed arenas: nobody can shrink one, and nobody but its owner can write into a pool."""

from __future__ import annotations

import os

import numpy as np
import pytest

from kvstore.arena import Arena, Memory
from kvstore.errors import StagingRejected
from kvstore.layout import Layout

LAYOUT = Layout("test", head_dim=8, block_tokens=4, window_tokens=32, dtype="uint8")


def make(*, pool: bool) -> Arena:
    return Arena.create("kv-test", 5, LAYOUT.slot_bytes, LAYOUT.block_bytes, pool=pool)


@pytest.mark.parametrize("size", [0, 100, 1 << 20])
@pytest.mark.parametrize("pool", [True, False])
def test_a_sealed_arena_cannot_be_resized(size: int, pool: bool) -> None:
    arena = make(pool=pool)
    with pytest.raises(PermissionError):
        os.ftruncate(arena.memory.fd, size)


def test_an_unsealed_arena_is_refused() -> None:
    fd = os.memfd_create("kv-open", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 4096)
    with pytest.raises(StagingRejected, match="not sealed"):
        Memory.adopt(fd)
    os.close(fd)


def test_a_plain_file_is_refused(tmp_path: os.PathLike[str]) -> None:
    fd = os.open(os.path.join(tmp_path, "file"), os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 4096)
    with pytest.raises(StagingRejected):
        Memory.adopt(fd)
    os.close(fd)


def test_readers_of_a_pool_cannot_map_it_writable() -> None:
    pool = make(pool=True)
    with pytest.raises(PermissionError):
        Memory.adopt(pool.memory.fd, writable=True)
    reader = Arena(Memory.adopt(pool.memory.fd), LAYOUT.slot_bytes, LAYOUT.block_bytes)
    pool.data[3] = 7
    pool.headers["clock"][3] = 11
    assert (reader.data[3] == 7).all()
    assert reader.headers["clock"][3] == 11
    with pytest.raises(ValueError, match="read-only"):
        reader.data[0] = np.uint8(1)


def test_headers_and_data_do_not_overlap() -> None:
    arena = make(pool=False)
    arena.data[:] = 255
    assert (arena.headers["generation"] == 0).all()
    arena.headers["key"][2] = [1, 2, 3, 4]
    assert (arena.data == 255).all()
    assert arena.slots[2, :32].view(np.uint64).tolist() == [1, 2, 3, 4]


def test_an_arena_that_holds_no_slot_is_refused() -> None:
    memory = Memory.create("kv-small", 64, readers_cannot_write=False)
    with pytest.raises(StagingRejected, match="holds no slot"):
        Arena(memory, LAYOUT.slot_bytes, LAYOUT.block_bytes)


def test_an_arena_that_nobody_has_closes_its_descriptor() -> None:
    arena = make(pool=False)
    fd, data = arena.memory.fd, arena.data
    os.fstat(fd)
    del arena
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    assert (data == 0).all(), "the mapping lives as long as somebody looks at it"
