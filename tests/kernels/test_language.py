"""Where no kernel can be launched, the references answer; where nothing is installed, that is said."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed (extra cuda)")

WITHOUT_TRITON = """
import sys
import kvstore.kernels
assert not {"torch", "triton"} & set(sys.modules), "the package itself is to be light"
sys.modules["triton"] = None
import torch
from kvstore.device import DevicePool
from kvstore.kernels import language, moves
from kvstore.layout import Layout

assert not language.interpreted() and not language.launches(torch.zeros(1))
layout = Layout("m", heads=2, head_dim=8, block_tokens=4, window_tokens=8, dtype="float16")
pool = DevicePool(layout, 8, rows=2, columns=4, device="cpu")
row = pool.open()
keys = torch.arange(5 * 16).reshape(5, 2, 8).half()
pool.append(0, keys, -keys, pool.extend([row], [5]))
staging = torch.zeros(1, 2, *layout.block_shape, dtype=torch.float16)
moves.gather(pool.kv, pool.table[row, :2], staging)
assert torch.equal(staging[0, :, 0].transpose(1, 2).flatten(0, 1)[:5], keys)
pool.close(row)
assert pool.free_blocks() == 8
try:
    moves.move_blocks[(1,)]()
except ModuleNotFoundError as error:
    print(error)
"""


def run(code: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_triton_the_references_answer() -> None:
    assert run(WITHOUT_TRITON).strip() == "kernel move_blocks needs triton: pip install '.[cuda]' in kvscope's checkout"
