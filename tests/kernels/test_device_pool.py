"""The pool on a device: sequences grow, shrink and end without the host reading anything back."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kernels.kernel_rig import DEVICE, noise, torch

from kvstore.device import DevicePool  # isort: skip
from kvstore.device.crossing import Crossing  # isort: skip
from kvstore.device.torch_device import TorchDevice  # isort: skip
from kvstore.errors import BadRequest, PoolExhausted  # isort: skip
from kvstore.kernels.moves import gather  # isort: skip
from kvstore.layout import Layout  # isort: skip
from kvstore.table import BlockTable  # isort: skip

LAYOUT = Layout("m", layers=2, head_groups=2, heads=2, head_dim=8, block_tokens=4, window_tokens=8, dtype="float32")
KINDS = pytest.mark.parametrize(
    ("bitmap", "table"), [("packed", "batched"), ("packed", "upload"), ("naive", "batched"), ("naive", "upload")]
)


def pool(blocks: int = 40, **changes: Any) -> DevicePool:
    return DevicePool(LAYOUT, blocks, rows=4, columns=8, device=DEVICE, **changes)


def reads(of: DevicePool) -> int:
    return sum(of.crossing.meters.device_reads.values())


def held(of: DevicePool) -> list[list[int]]:
    """The blocks that each row of the table names."""
    return [[block for block in row if block >= 0] for row in of.table.tolist()]


@KINDS
def test_tokens_can_be_read_where_they_were_put(bitmap: Any, table: Any) -> None:
    ours = pool(bitmap=bitmap, table=table)
    rows = [ours.open() for _ in range(3)]
    said: dict[int, list[Any]] = {row: [] for row in rows}
    for turn, more in enumerate(([5, 0, 9], [1, 1, 1], [3, 1, 2], [1, 14, 1])):
        step = ours.extend(rows, more)
        keys = noise(sum(more), 2, 8, seed=turn).to(DEVICE)
        ours.append(1, keys, keys * 2, step, group=1)
        for row, part in zip(rows, keys.split(more), strict=True):
            said[row].append(part)
    assert ours.lengths.tolist() == [10, 16, 13, 0]
    for row in rows:
        expected = torch.cat(said[row])
        blocks = ours.table[row, : -(-len(expected) // 4)].long()
        for kind, factor in ((0, 1), (1, 2)):
            seen = ours.cache(1, 1)[blocks, kind].transpose(1, 2).flatten(0, 1)[: len(expected)]
            assert torch.equal(seen, expected * factor)
    assert not ours.cache(1, 0).any(), "another head group was written to"


@KINDS
def test_every_block_is_one_rows_and_none_is_lost(bitmap: Any, table: Any) -> None:
    ours = pool(12, bitmap=bitmap, table=table)
    first, second = ours.open(), ours.open()
    ours.extend([first, second], [17, 9])
    ours.truncate(first, 6)
    ours.extend([second, first], [8, 3])
    together = [block for row in held(ours) for block in row]
    assert [len(row) for row in held(ours)] == [3, 5, 0, 0]
    assert len(set(together)) == 8
    assert ours.free == ours.free_blocks() == 4
    ours.close(first, second)
    assert ours.free == ours.free_blocks() == 12
    assert held(ours) == [[], [], [], []]
    assert not ours.lengths.any()
    assert ours.faults() == {}


def test_the_packed_bitmap_is_never_read_and_a_step_is_one_upload() -> None:
    ours = pool()
    rows = [ours.open() for _ in range(4)]
    for more in ([9, 1, 4, 5], [1, 1, 1, 1], [3, 3, 3, 3]):
        ours.extend(rows, more)
    ours.csr(rows)
    ours.truncate(rows[0], 2)
    ours.close(*rows)
    meters = ours.crossing.meters
    assert reads(ours) == 0
    assert not any(meters.sync_seconds.values())
    assert meters.device_uploads == {"block_table.update": 5}
    assert ours.free_blocks() == 40
    assert reads(ours) == 1


def test_the_naive_bitmap_is_read_for_every_slot() -> None:
    ours = pool(bitmap="naive")
    rows = [ours.open(), ours.open()]
    ours.extend(rows, [9, 4])
    assert ours.crossing.meters.device_reads["bitmap.allocate"] == (1 + 3) + (1 + 1)
    assert ours.crossing.meters.sync_seconds["bitmap.allocate"] > 0


def test_small_uploads_are_one_for_each_row_that_grows() -> None:
    ours, batched = pool(table="upload"), pool()
    for which in (ours, batched):
        rows = [which.open() for _ in range(4)]
        which.extend(rows, [9, 1, 4, 0])
        which.extend(rows, [1, 1, 1, 1])
    assert ours.crossing.meters.device_uploads["block_table.update"] == 2 + 3 + 2
    assert held(ours) == held(batched)


def test_the_page_table_names_the_same_blocks() -> None:
    ours = pool()
    rows = [ours.open() for _ in range(3)]
    ours.extend(rows, [9, 0, 4])
    found = ours.csr([rows[2], rows[0], rows[1]])
    assert found.indptr.tolist() == [0, 1, 4, 4]
    assert found.indices.tolist() == held(ours)[2] + held(ours)[0]
    assert found.last_page_len.tolist() == [4, 1, 0]
    assert ours.blocks_of(rows[0]).tolist() == held(ours)[0]
    assert ours.crossing.meters.device_reads["block_table.read"] == 1


def test_a_window_is_one_run() -> None:
    ours = pool()
    row = ours.open()
    ours.extend([row], [8 * 4])
    blocks = ours.blocks_of(row).tolist()
    assert blocks == list(range(blocks[0], blocks[0] + 8))


def test_a_block_of_the_pool_is_a_block_of_the_store() -> None:
    ours = pool()
    row = ours.open()
    keys = noise(4, 2, 8).to(DEVICE)
    ours.append(0, keys, -keys, ours.extend([row], [4]))
    staging = torch.zeros(4, 1, *LAYOUT.block_shape, device=DEVICE)
    gather(ours.kv, ours.table[row, :1], staging)
    expected = torch.stack([keys, -keys]).transpose(1, 2).contiguous()
    assert staging[0, 0].cpu().numpy().tobytes() == expected.cpu().numpy().tobytes()
    assert staging[0, 0].numel() * 4 == LAYOUT.block_bytes


@KINDS
def test_what_does_not_fit_changes_nothing(bitmap: Any, table: Any) -> None:
    ours = pool(6, bitmap=bitmap, table=table)
    row, other = ours.open(), ours.open()
    ours.extend([row, other], [8, 1])
    before = ours.table.clone(), ours.lengths.clone(), ours.free
    with pytest.raises(PoolExhausted, match="5 blocks asked, 3 are free"):
        ours.extend([row, other], [8, 12])
    with pytest.raises(PoolExhausted, match="9 blocks asked, a row"):
        ours.extend([row], [28])
    with pytest.raises(PoolExhausted, match="a row of the block table has 8"):
        ours.extend([row], [2**63 - 1])
    wrong: list[tuple[Any, Any]] = [([row, row], [1, 1]), ([row], [-1]), ([3], [1]), ([row], [1, 2])]
    for rows, more in [*wrong, ([row], [1.9]), ([0.5], [1]), ([None], [1])]:
        with pytest.raises(BadRequest):
            ours.extend(rows, more)
    with pytest.raises(BadRequest, match="tokens must be a whole number"):
        ours.truncate(row, 1.5)  # type: ignore[arg-type]
    for layer, group in ((2, 0), (-1, 0), (0, 2)):
        with pytest.raises(BadRequest, match="no head group"):
            ours.cache(layer, group)
    with pytest.raises(BadRequest, match="twice"):
        ours.close(row, row)
    with pytest.raises(BadRequest, match="cannot be kept"):
        ours.truncate(row, 9)
    assert torch.equal(ours.table, before[0])
    assert torch.equal(ours.lengths, before[1])
    assert ours.free == before[2] == ours.free_blocks()


def test_rows_are_given_again() -> None:
    ours = pool()
    rows = [ours.open() for _ in range(4)]
    with pytest.raises(PoolExhausted, match="all 4 rows"):
        ours.open()
    ours.close(rows[1])
    assert ours.open() == rows[1]
    with pytest.raises(BadRequest, match="packed or naive"):
        pool(bitmap="best")


@KINDS
def test_rows_that_were_dropped_are_given_again(bitmap: Any, table: Any) -> None:
    """As a finalizer drops them: nothing is launched by it, the next call does that."""
    ours = pool(12, bitmap=bitmap, table=table)
    rows = [ours.open() for _ in range(4)]
    ours.extend(rows, [9, 1, 4, 5])
    before = ours.table.clone()
    ours.drop(rows[0], rows[2])
    assert torch.equal(ours.table, before)
    assert ours.free == ours.free_blocks() == 12 - 3
    assert ours.open() == rows[0]
    ours.drop(rows[1], rows[3])
    ours.extend([rows[0]], [8 * 4])
    assert ours.free == 12 - 8
    assert ours.faults() == {}


@KINDS
def test_a_pool_made_in_inference_mode_may_be_used_outside_of_it(bitmap: Any, table: Any) -> None:
    with torch.inference_mode():
        ours = pool(bitmap=bitmap, table=table)
        row = ours.open()
        ours.extend([row], [5])
    keys = noise(4, 2, 8).to(DEVICE)
    ours.append(0, keys, keys, ours.extend([row], [4]))
    ours.truncate(row, 2)
    ours.close(row)
    assert ours.free == ours.free_blocks() == 40


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"blocks": 1.5}, "blocks must be a whole number"),
        ({"blocks": 0}, "blocks must lie in 1"),
        ({"rows": True}, "rows must be a whole number"),
        ({"rows": 2**16, "columns": 2**16}, "a table of"),
        ({"blocks": 2**31 - 1, "layout": Layout("m", layers=128, heads=128)}, "MiB for 2147483647 blocks"),
        ({"device": "nope"}, "torch has no device 'nope'"),
        ({"device": "cuda:99"}, "torch has no device 'cuda:99'"),
    ],
)
def test_what_no_device_has_is_refused_in_one_line(changes: dict[str, Any], why: str) -> None:
    given: dict[str, Any] = {"layout": LAYOUT, "blocks": 4, "rows": 1, "columns": 1, "device": DEVICE, **changes}
    with pytest.raises(BadRequest, match=why) as refused:
        DevicePool(**given)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3", "float8_e5m2", "uint8"])
def test_every_dtype_of_the_store_has_a_pool(dtype: str) -> None:
    layout = Layout("m", heads=1, head_dim=8, block_tokens=4, window_tokens=8, dtype=dtype)
    ours = DevicePool(layout, 2, rows=1, columns=2, device=DEVICE)
    assert ours.kv[0, 0].numel() * ours.kv.element_size() == layout.block_bytes


def test_a_table_of_the_host_is_kept_on_the_device() -> None:
    there = TorchDevice(Crossing(DEVICE))
    ours, host = BlockTable(3, 5, 4, device=there), BlockTable(3, 5, 4)
    for which in (ours, host):
        row = which.open()
        which.append(row, [7, 2, 9], 11)
        which.replace_last(row, 4)
        which.commit()
    assert ours.device_table.tolist() == host.device_table.tolist()
    assert [part.tolist() for part in ours.csr([0])] == [part.tolist() for part in host.csr([0])]
