"""FlashInfer's batch decode over our own pool and page table, where FlashInfer can be had.

python -m gpu.rival FOLDER      the process that has its kernels compiled (`building.Build`)
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from gpu import building
from gpu.clock import Arm
from gpu.paged import Heads, Scene, scene
from gpu.rows import one_line
from gpu.scenes import Draw, name_of

WORKSPACE_BYTES = 128 << 20
KINDS = (torch.bfloat16, torch.float8_e4m3fn)
"""Of KV; the query is bfloat16."""


def why_not(cpu: bool) -> str:
    """Why there is no such arm at all; empty when there may be one."""
    return "no CUDA device" if cpu else building.why_not()


def flashinfer(given: Scene) -> Arm:
    """The call, planned: the page table is read once, before. Scales of 8-bit KV are one number for all heads."""
    import flashinfer as library  # type: ignore[import-not-found]

    indptr, indices, last = given.csr()
    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
    wrapper = library.BatchDecodeWithPagedKVCacheWrapper(workspace, "HND", use_tensor_cores=True)
    heads, dim = given.query.shape[2:]
    wrapper.plan(
        indptr, indices, last, heads, given.pool.shape[2], dim, given.block_tokens,
        q_data_type=given.query.dtype, kv_data_type=given.pool.dtype, sm_scale=given.scale,
    )  # fmt: skip
    query = given.query[:, 0].contiguous()
    scales = {}
    if given.key_scale is not None and given.value_scale is not None:
        scales = {"k_scale": float(given.key_scale), "v_scale": float(given.value_scale)}
    return lambda: wrapper.run(query, given.pool, **scales)


def compile_all(folder: Path) -> None:
    """Call each kind once, and say what became of it."""
    for kind in KINDS:
        given = scene(Draw(1, "cuda"), [40, 17], Heads(32, 8, 128), kv_dtype=kind, one_scale=True)
        try:
            flashinfer(given)()
            torch.cuda.synchronize()
        except Exception as error:
            (folder / f"failed-{name_of(kind)}").write_text(one_line(error), encoding="utf-8")
        else:
            (folder / f"ready-{name_of(kind)}").touch()


if __name__ == "__main__":
    compile_all(Path(sys.argv[1]))
