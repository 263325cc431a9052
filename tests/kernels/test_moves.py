"""Blocks leave and enter the pool whole."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kernels.kernel_rig import DEVICE, DTYPES, FP8, copies, copy, ints, noise, raw, same_as, torch

from kvstore.errors import BadRequest  # isort: skip
from kvstore.kernels.moves import gather, gather_reference, scatter, scatter_reference  # isort: skip

BOTH = pytest.mark.parametrize(
    ("op", "reference"), [(gather, gather_reference), (scatter, scatter_reference)], ids=["gather", "scatter"]
)


def scene(
    *blocks: int, dtype: Any = torch.float32, shape: tuple[int, ...] = (2, 2, 4, 8), planes: int = 3
) -> tuple[Any, ...]:
    """A call over a pool of nine blocks."""
    wide = torch.float32 if dtype in FP8 else dtype
    pool = noise(planes, 9, *shape, dtype=wide, seed=1).to(dtype)
    return pool, ints(*blocks), noise(planes, len(blocks), *shape, dtype=wide, seed=2).to(dtype)


@BOTH
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "blocks", [(), (8,), (0, 1, 2), (7, 2, 5, 0)], ids=["empty", "the last block", "a run", "scattered"]
)
def test_blocks_are_moved_in_every_plane(op: Any, reference: Any, blocks: tuple[int, ...], dtype: Any) -> None:
    same_as(op, reference, *scene(*blocks, dtype=dtype))


@BOTH
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((1,), torch.uint8),
        ((3, 5), torch.float16),
        ((7,), torch.uint8),
        ((2, 8, 16, 128), torch.float16),
        ((2, 1, 16, 80), torch.bfloat16),
    ],
    ids=str,
)
def test_blocks_of_odd_sizes_and_of_several_chunks(op: Any, reference: Any, shape: tuple[int, ...], dtype: Any) -> None:
    pool = torch.arange(2 * 4 * torch.Size(shape).numel()).reshape(2, 4, *shape).to(dtype)
    same_as(op, reference, pool, ints(2, 0), torch.zeros(2, 2, *shape, dtype=dtype))


@BOTH
def test_blocks_that_are_not_there_are_left_alone(op: Any, reference: Any) -> None:
    pool, blocks, staging = scene(3, -1, 9, 2**31 - 1, 6)
    before = {"pool": pool.clone(), "staging": staging.clone()}
    ours = same_as(op, reference, pool, blocks, staging)
    untouched = (ours[2][:, 1:4], before["staging"][:, 1:4]), (ours[0][:, [0, 1, 8]], before["pool"][:, [0, 1, 8]])
    assert all(torch.equal(now.cpu(), then) for now, then in untouched)


@BOTH
def test_staging_may_lie_between_headers(op: Any, reference: Any) -> None:
    pool, blocks, _ = scene(4, 1)
    slots = noise(3, 2, 32 + 128, seed=5)
    staging = slots[:, :, 32:].unflatten(2, (2, 2, 4, 8))
    ours = same_as(op, reference, pool, blocks, staging)
    headers = torch.as_strided(ours[2], (3, 2, 32), slots.stride(), 0)
    assert torch.equal(headers.cpu(), slots[:, :, :32])


@BOTH
def test_some_layers_only(op: Any, reference: Any) -> None:
    pool, blocks, staging = scene(4, 1, planes=6)
    same_as(op, reference, pool[1:5:2], blocks, staging[:2])


def test_out_and_back_is_the_same_bytes() -> None:
    pool, blocks, staging = copies(scene(7, 3, 4, dtype=torch.float8_e5m2))
    there = torch.zeros_like(raw(pool)).view(pool.dtype)
    gather(pool, blocks, staging)
    scatter(there, blocks, staging)
    for block in range(9):
        same = torch.equal(raw(there[:, block]), raw(pool[:, block]))
        assert same == (block in (7, 3, 4))


@BOTH
def test_a_wrong_block_is_caught(op: Any, reference: Any) -> None:
    with pytest.raises(AssertionError, match="differs"):
        same_as(lambda pool, blocks, staging: op(pool, blocks + 1, staging), reference, *scene(3, 6))


@BOTH
def test_what_cannot_be_is_refused(op: Any, reference: Any) -> None:
    pool, blocks, staging = copies(scene(3, 6))
    for wrong, message in (
        ((pool, blocks.long(), staging), "int32"),
        ((pool, blocks, staging[:, :1]), "do not go with"),
        ((pool, blocks, staging.half()), "holds no blocks"),
        ((pool.transpose(4, 5), blocks, staging.transpose(4, 5).contiguous()), "one piece of memory"),
    ):
        with pytest.raises(BadRequest, match=message):
            op(*wrong)


@BOTH
def test_the_operators_are_what_torch_expects(op: Any, reference: Any) -> None:
    torch.library.opcheck(op, tuple(copies(scene(3, 6, -1))))
    pool, blocks, staging = scene(3, 6, planes=6)
    torch.library.opcheck(op, (copy(pool)[::2], copy(blocks), copy(staging)[::2]))


def test_they_run_on_the_device_under_test() -> None:
    assert copies(scene(1))[0].device.type == DEVICE
