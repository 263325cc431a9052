"""NIXL between two processes' GPU memory: one-sided reads of a registered segment (of host memory without a GPU).

python -m gpu.vram BYTES SEED DEVICE     the owner: registers, says where in one line of JSON, ends with its input
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpu.check import Check
from gpu.rows import one_line
from gpu.scenes import Draw
from kvstore.transport.nixl.agent import PROGRESS_DELAY_US, agent_name
from kvstore.transport.nixl.library import bindings, flavour, ucx_settings

PIECE = 64 << 10
"""A block of 16 tokens of 8 KV heads × 128 in bfloat16."""
_PATIENCE_S = 20.0


class Segment:
    """An agent and one tensor that it has registered; `serves`: others read from it."""

    def __init__(self, tensor: Tensor, *, serves: bool) -> None:
        self.nixl: Any = bindings()
        self.tensor = tensor
        self.name = agent_name("gpu-check")
        self.kind = self.nixl.VRAM_SEG if tensor.is_cuda else self.nixl.DRAM_SEG
        config = self.nixl.nixlAgentConfig()
        config.useProgThread = serves
        config.useListenThread = False
        config.pthrDelay = PROGRESS_DELAY_US
        config.syncMode = self.nixl.NIXL_THREAD_SYNC_NONE if serves else self.nixl.NIXL_THREAD_SYNC_STRICT
        with ucx_settings():
            self.agent = self.nixl.nixlAgent(self.name, config)
            self.agent.createBackend("UCX", {})
        self._listed = self.nixl.nixlRegDList(self.kind, [(tensor.data_ptr(), tensor.nbytes, self.device, "")])
        self.agent.registerMem(self._listed, [])

    @property
    def device(self) -> int:
        return self.tensor.get_device() if self.tensor.is_cuda else 0

    def pieces(self, address: int, order: np.ndarray[Any, np.dtype[np.int64]]) -> Any:
        """Descriptors of pieces of memory at `address`."""
        rows = np.zeros((len(order), 3), np.uint64)
        rows[:, 0] = np.uint64(address) + order.astype(np.uint64) * np.uint64(PIECE)
        rows[:, 1], rows[:, 2] = PIECE, self.device
        return self.nixl.nixlXferDList(self.kind, rows)

    def read(self, peer: str, address: int, order: np.ndarray[Any, np.dtype[np.int64]]) -> float:
        """Read these pieces of the peer's memory, one behind the other, into ours; the seconds it took."""
        into, source = self.pieces(self.tensor.data_ptr(), np.arange(len(order))), self.pieces(address, order)
        began = time.perf_counter()
        handle = self.agent.createXferReq(self.nixl.NIXL_READ, into, source, peer, "", [])
        self.agent.postXferReq(handle, "")
        while (state := self.agent.getXferStatus(handle)) == self.nixl.NIXL_IN_PROG:
            if time.perf_counter() - began > _PATIENCE_S:
                raise TimeoutError(f"a read of {len(order)} pieces did not end within {_PATIENCE_S:g} s")
        taken = time.perf_counter() - began
        self.agent.releaseXferReq(handle)
        if state != self.nixl.NIXL_SUCCESS:
            raise RuntimeError(f"a read ended with {state}")
        return taken


def run(check: Check) -> None:
    where = "host memory" if check.cpu else "GPU memory"
    if flavour() is None:
        check.skipped(f"nixl, {where}", "no wheel of NIXL is here (make gpu-wheels GPU_WHEELS=nixl-cu13)")
        return
    pieces = 64 if check.cpu else 4096
    owner = subprocess.Popen(
        [sys.executable, "-P", "-m", "gpu.vram", str(pieces * PIECE), str(check.seed), check.device],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        measure(check, where, pieces, owner)
    except Exception as error:
        check.failed(f"nixl, {where}", one_line(error))
    finally:
        owner.kill()
        owner.wait(10)


def measure(check: Check, where: str, pieces: int, owner: subprocess.Popen[str]) -> None:
    """All pieces in order and in no order: the right bytes, and how fast."""
    assert owner.stdout is not None
    line = owner.stdout.readline()
    if not line:
        raise RuntimeError(f"the other process ended with {owner.wait(10)}")
    told = json.loads(line)
    expected = Draw(check.seed, check.device).bytes(pieces * PIECE).reshape(pieces, PIECE)
    segment = Segment(torch.full_like(expected, 0x5A), serves=False)
    segment.agent.loadRemoteMD(bytes.fromhex(told["metadata"]))
    shuffled = np.random.default_rng(check.seed).permutation(pieces)
    for name, order in (("in order", np.arange(pieces)), ("scattered", shuffled)):
        taken = [segment.read(told["name"], told["address"], order) for _ in range(3 if check.cpu else 7)]
        if not check.cpu:
            torch.cuda.synchronize()
        row = f"nixl, {where}, {name}"
        if not torch.equal(segment.tensor, expected[torch.from_numpy(order).to(expected.device)]):
            check.wrong_number(row, "other bytes than the peer has")
            continue
        size = pieces * PIECE
        note = f"{pieces} pieces of {PIECE >> 10} KiB, the right bytes"
        check.measured(row, size / median(taken) / 1e9, "GB/s", note)


def own(size: int, seed: int, device: str) -> None:
    """The owner's process: holds memory until its input ends."""
    segment = Segment(Draw(seed, device).bytes(size), serves=True)
    if device == "cuda":
        torch.cuda.synchronize()
    metadata = segment.agent.getLocalMD()
    print(
        json.dumps({"name": segment.name, "metadata": metadata.hex(), "address": segment.tensor.data_ptr()}), flush=True
    )
    sys.stdin.read()


if __name__ == "__main__":
    own(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
