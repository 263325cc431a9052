"""FlashInfer's batch decode over our own pool and page table, where FlashInfer can be imported.

Its kernels are compiled at the first use where no package of compiled ones is installed: minutes that the command has
not. So they are used as far as they are there, or where `KVSCOPE_FLASHINFER_JIT=1` says that compiling is wanted.
"""

from __future__ import annotations

import functools
import importlib.util
import os

import torch

from gpu.clock import Arm
from gpu.paged import Scene
from gpu.rows import one_line

_WORKSPACE_BYTES = 128 << 20
_COMPILED = ("flashinfer_jit_cache", "flashinfer_cubin")


@functools.cache
def why_not(cpu: bool) -> str:
    """Why there is no such arm; empty when there is."""
    if cpu:
        return "no CUDA device"
    if importlib.util.find_spec("flashinfer") is None:
        return "flashinfer is not installed"
    compiled = any(importlib.util.find_spec(name) is not None for name in _COMPILED)
    if not compiled and os.environ.get("KVSCOPE_FLASHINFER_JIT") != "1":
        return "flashinfer would compile its kernels first (KVSCOPE_FLASHINFER_JIT=1 lets it)"
    try:
        importlib.import_module("flashinfer")
    except Exception as error:
        return one_line(error)
    return ""


def flashinfer(given: Scene) -> Arm:
    """The call, planned: the page table is read once, before. Scales of 8-bit KV are one number for all heads."""
    import flashinfer as library  # type: ignore[import-not-found]

    indptr, indices, last = given.csr()
    workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
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
