"""Blocks between the pool and contiguous staging, all planes in one launch: whole blocks, byte by byte as they are.

A block of one plane is one piece of memory on both sides, so that both kernels only copy; what the elements are does
not matter. Staging may be part of something larger (the slots of an arena, with their headers between the blocks).
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvstore.errors import BadRequest
from kvstore.kernels.checks import require_int32, require_one_device
from kvstore.kernels.language import jit, launches, on, tl
from kvstore.kernels.variant import Variant

_CHUNK_BYTES = 8192
"""What a program moves: four loads of 16 bytes a thread under way at once with four warps."""
_UNITS = {4: torch.int32, 2: torch.int16, 1: torch.uint8}


@jit
def move_blocks(
    pool, staging, blocks, total, units, chunks, pool_plane, pool_block, staging_plane, staging_block,
    TO_POOL: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Chunk `program_id(0) % chunks` of block `program_id(0) // chunks` of the list, in plane `program_id(1)`.

    Sizes and strides are in units. A block that does not exist is left alone, on both sides.
    """
    item = tl.program_id(0) // chunks
    plane = tl.program_id(1).to(tl.int64)
    at = (tl.program_id(0) % chunks) * CHUNK + tl.arange(0, CHUNK)
    block = tl.load(blocks + item).to(tl.int64)
    if (block >= 0) & (block < total):
        inside = at < units
        in_pool = pool + plane * pool_plane + block * pool_block + at
        in_staging = staging + plane * staging_plane + item.to(tl.int64) * staging_block + at
        if TO_POOL:
            tl.store(in_pool, tl.load(in_staging, mask=inside), mask=inside)
        else:
            tl.store(in_staging, tl.load(in_pool, mask=inside), mask=inside)


def gather_reference(pool: Tensor, blocks: Tensor, staging: Tensor) -> None:
    """As `gather`."""
    there = (blocks >= 0) & (blocks < pool.shape[1])
    _bytes(staging)[:, there] = _bytes(pool)[:, blocks[there].long()]


def scatter_reference(pool: Tensor, blocks: Tensor, staging: Tensor) -> None:
    """As `scatter`."""
    there = (blocks >= 0) & (blocks < pool.shape[1])
    _bytes(pool)[:, blocks[there].long()] = _bytes(staging)[:, there]


@torch.library.custom_op("kvscope::gather", mutates_args={"staging"})
def gather(pool: Tensor, blocks: Tensor, staging: Tensor) -> None:
    """`staging[:, i] = pool[:, blocks[i]]`.

    `pool` `[planes, blocks, …]`, `blocks` `[n]` int32, `staging` `[planes, n, …]` of the pool's type. Where a block's
    number is below 0 or beyond the pool, its place in `staging` stays as it was.
    """
    _require(pool, blocks, staging)
    if launches(pool):
        _launch(pool, blocks, staging, to_pool=False)
    else:
        gather_reference(pool, blocks, staging)


@gather.register_fake
def _(pool: Tensor, blocks: Tensor, staging: Tensor) -> None:
    return None


@torch.library.custom_op("kvscope::scatter", mutates_args={"pool"})
def scatter(pool: Tensor, blocks: Tensor, staging: Tensor) -> None:
    """`pool[:, blocks[i]] = staging[:, i]`; the blocks are distinct. Shapes and skipped blocks as in `gather`."""
    _require(pool, blocks, staging)
    if launches(pool):
        _launch(pool, blocks, staging, to_pool=True)
    else:
        scatter_reference(pool, blocks, staging)


@scatter.register_fake
def _(pool: Tensor, blocks: Tensor, staging: Tensor) -> None:
    return None


def _launch(pool: Tensor, blocks: Tensor, staging: Tensor, *, to_pool: bool) -> None:
    flat, stage = pool.flatten(2), staging.flatten(2)
    unit = _unit(flat, stage)
    flat, stage = flat.view(_UNITS[unit]), stage.view(_UNITS[unit])
    planes, total, units = flat.shape
    chunk = _CHUNK_BYTES // unit
    chunks = -(-units // chunk)
    if planes and len(blocks):
        with on(pool):
            move_blocks[(len(blocks) * chunks, planes)](
                flat, stage, blocks, total, units, chunks, *flat.stride()[:2], *stage.stride()[:2],
                TO_POOL=to_pool, CHUNK=chunk, num_warps=4,
            )  # fmt: skip


def _unit(*sides: Tensor) -> int:
    """The widest unit, in bytes, that every size, stride and offset is a multiple of."""
    sizes = [n * side.element_size() for side in sides for n in (side.shape[2], *side.stride()[:2])]
    sizes += [side.storage_offset() * side.element_size() for side in sides]
    return next(unit for unit in _UNITS if all(size % unit == 0 for size in sizes))


def _bytes(tensor: Tensor) -> Tensor:
    """`[planes, blocks, bytes]`, the same memory."""
    return tensor.flatten(2).view(torch.uint8)


def _require(pool: Tensor, blocks: Tensor, staging: Tensor) -> None:
    require_int32(blocks=blocks)
    require_one_device(pool=pool, blocks=blocks, staging=staging)
    if pool.dim() < 3 or blocks.dim() != 1 or staging.shape != (pool.shape[0], len(blocks), *pool.shape[2:]):
        raise BadRequest(
            f"{len(blocks)} blocks of a pool {tuple(pool.shape)} do not go with staging {tuple(staging.shape)}"
        )
    if staging.dtype != pool.dtype:
        raise BadRequest(f"staging of {staging.dtype} holds no blocks of {pool.dtype}")
    for name, side in (("pool", pool), ("staging", staging)):
        if side.shape[1] and side.shape[0] and not side[0, 0].is_contiguous():
            raise BadRequest(f"a block of {name} must be one piece of memory")


def variants() -> list[Variant]:
    """Both ways in words, and in bytes for blocks of odd sizes."""
    return [
        _variant("gather", False, "i32", wide=True),
        _variant("scatter", True, "i32", wide=True),
        _variant("gather-bytes", False, "u8", wide=False),
    ]


def _variant(name: str, to_pool: bool, unit: str, *, wide: bool) -> Variant:
    strides = ("pool_plane", "pool_block", "staging_plane", "staging_block")
    signature = {"pool": f"*{unit}", "staging": f"*{unit}", "blocks": "*i32"}
    signature |= dict.fromkeys(("total", "units", "chunks"), "i32") | dict.fromkeys(strides, "i64")
    signature |= {"TO_POOL": "constexpr", "CHUNK": "constexpr"}
    fixed = {"TO_POOL": to_pool, "CHUNK": _CHUNK_BYTES // (4 if unit == "i32" else 1)}
    aligned = {"pool", "staging", "blocks"} | ({"units", *strides} if wide else set())
    return Variant(name, move_blocks, signature, fixed, wide=wide, divisible=frozenset(aligned))
