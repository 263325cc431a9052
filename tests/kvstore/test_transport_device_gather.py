"""Many short runs in one launch: the kernel under Triton's interpreter, and when it is asked at all."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvstore.transport.device.cuda import CudaDevice
from kvstore.transport.device.gather import Gather, worth_it
from kvstore.transport.device.memory import device_named
from tests.kvstore.device_rig import Stub, compiled, stubbed
from tests.kvstore.process_rig import ROOT

_KERNEL = """
import torch
from kvstore.kernels.language import interpreted
from kvstore.transport.device.gather_kernel import launch
assert interpreted()
generator = torch.Generator().manual_seed(5)
for units in (4, 2048, 2052, 5000):
    source = torch.randint(-(2**31), 2**31 - 1, (9, units), dtype=torch.int32, generator=generator)
    to = torch.full((7, units), 77, dtype=torch.int32)
    places, slots = torch.tensor([6, 0, 3]), torch.tensor([8, 2, 0])
    launch(to, source, places, slots, units)
    assert (to[places] == source[slots]).all(), units
    assert (to[[1, 2, 4, 5]] == 77).all(), units
print("equal")
"""


def test_the_kernel_copies_block_by_block_what_it_is_told() -> None:
    pytest.importorskip("torch", reason="torch is not installed (kvscope[cuda])")
    pytest.importorskip("triton", reason="triton is not installed (kvscope[cuda])")
    done = subprocess.run(
        [sys.executable, "-c", _KERNEL],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
    )
    assert done.stdout == "equal\n", done.stderr


def test_an_address_is_taken_for_a_tensor() -> None:
    """What Triton asks of an argument to know its type, without launching."""
    pytest.importorskip("torch", reason="torch is not installed (kvscope[cuda])")
    pytest.importorskip("triton", reason="triton is not installed (kvscope[cuda])")
    import torch

    from kvstore.transport.device.gather import Pointer

    pointer = Pointer(1 << 40)
    assert pointer.data_ptr() == 1 << 40
    assert pointer.dtype is torch.int32


@pytest.mark.parametrize(
    ("runs", "blocks", "size", "worth"),
    [
        (1000, 1000, 16 << 10, True),
        (8, 8, 16 << 10, True),
        (7, 7, 16 << 10, False),
        (10, 1000, 16 << 10, False),
        (1000, 1000, 1 << 20, False),
        (1000, 1000, 1000, False),
    ],
)
def test_it_is_worth_it_for_many_short_runs_of_whole_words(runs: int, blocks: int, size: int, worth: bool) -> None:
    assert worth_it(runs, blocks, size) is worth


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[Stub]:
    with stubbed(compiled(tmp_path), tmp_path / "stub") as made:
        yield made


def test_a_kernel_that_fails_is_said_once_and_done_without(
    stub: Stub, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", sys)
    monkeypatch.setitem(sys.modules, "triton", sys)
    device = device_named("cuda:0")
    assert isinstance(device, CudaDevice)
    gather = device.gather
    assert isinstance(gather, Gather)
    assert gather.usable

    def broken(*_: Any) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(gather, "_copy", broken)
    nothing = np.zeros(0, np.int64)
    assert not gather.copy(0, nothing, 0, nothing, 512)
    assert not gather.usable
    assert [record.message for record in caplog.records] == [
        "cuda:0: blocks are copied run by run, the kernel failed: no such kernel"
    ]


def test_a_process_without_torch_loads_none(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    device = device_named("cuda:0")
    assert device.gather is not None
    assert not device.gather.usable
