"""A shard's process and its log: what it refuses to start with, and what it keeps when it does not start."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kvstore.cluster import LocalCluster
from kvstore.layout import Layout
from kvstore.messages import Durability
from kvstore.sync import SyncClient

ROOT = Path(__file__).resolve().parents[3]
LAYOUT = Layout("kept", heads=1, head_dim=16)
BLOCKS = 60


def keys() -> np.ndarray:
    column = np.zeros((BLOCKS, 4), np.uint64)
    column[:, 0] = np.random.default_rng(3).integers(1, 1 << 60, BLOCKS)
    column[:, 3] = np.arange(BLOCKS, dtype=np.uint64) << np.uint64(32)
    return column


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A log with `BLOCKS` acknowledged blocks, as kill -9 left it."""
    with LocalCluster(1, LAYOUT, 400, durability="log+sync", log_dir=tmp_path / "log") as cluster:
        with SyncClient(cluster.targets, LAYOUT, deadline_ms=20_000) as client:
            data = np.random.default_rng(4).integers(0, 256, (BLOCKS, LAYOUT.block_bytes), np.uint8)
            for row in range(0, BLOCKS, 4):
                client.put(keys()[row : row + 4], data[row : row + 4], durability=Durability.LOG_SYNC)
        cluster.kill(0)
    return tmp_path / "log" / "0"


def started(log: Path, *words: str, layout: Layout = LAYOUT) -> tuple[int | None, str]:
    """Exit code and last line of `kvstore serve`; None when it serves, and is ended then."""
    ready, tell = os.pipe()
    command = [sys.executable, "-m", "kvstore.cli", "serve", "--layout", layout.as_json(), "--log-dir", str(log)]
    command += ["--durability", "log+sync", "--listen", "127.0.0.1:0", "--metrics-port", "-1", "--ready-fd", str(tell)]
    command += ["--run-dir", str(log.parent.parent / "run"), *words]
    process = subprocess.Popen(command, cwd=ROOT, pass_fds=[tell], stderr=subprocess.PIPE, text=True)
    os.close(tell)
    with open(ready, "rb") as pipe, process:
        select.select([pipe], [], [], 60)
        line = pipe.readline()
        if line:
            process.terminate()
        _, said = process.communicate(timeout=60)
    return (None if line else process.returncode), said.strip()


def found(log: Path, blocks: int = 400) -> int:
    """How many blocks a shard that starts with the log has."""
    with (
        LocalCluster(1, LAYOUT, blocks, durability="log+sync", log_dir=log.parent) as cluster,
        SyncClient(cluster.targets, LAYOUT, deadline_ms=20_000) as client,
    ):
        return int(client.get(keys()).found.sum())


def test_what_cannot_be_kept_is_refused_in_one_line_and_loses_nothing(kept: Path) -> None:
    refusals = [
        (started(kept, "--blocks", "10"), "holds 60 blocks, the pool 10: start with --blocks 60 or more, or with"),
        (started(kept, "--blocks", "400", "--dtype", "bfloat16"), "layout field 'dtype', 'float16' there and 'bfl"),
        (started(kept, "--blocks", "400", "--model", "other"), "layout field 'model_id', 'kept' there and 'other'"),
    ]
    for (code, said), expected in refusals:
        assert code == 2
        assert expected in said
        assert len(said.splitlines()) == 1, said
    assert found(kept) == BLOCKS
    code, said = started(kept, "--blocks", "10", "--drop-surplus")
    assert code is None
    assert "50 of them are dropped" in said


def test_damage_is_said_in_one_line_and_may_be_dropped(kept: Path) -> None:
    segment = max(kept.glob("segment-*"), key=lambda path: path.read_bytes()[:64] != bytes(64))
    raw = bytearray(segment.read_bytes())
    raw[4096 + 9 * (128 + LAYOUT.block_bytes) + 300] ^= 1
    segment.write_bytes(raw)
    code, said = started(kept, "--blocks", "400")
    assert code == 2
    assert "1 of 60 blocks" in said and "start with --drop-damaged" in said  # noqa: PT018
    assert len(said.splitlines()) == 1, said
    code, said = started(kept, "--blocks", "400", "--drop-damaged")
    assert code is None, said
    assert found(kept) == BLOCKS - 1


def test_a_segment_that_was_deleted_is_said(kept: Path) -> None:
    for path in kept.glob("segment-*"):
        path.unlink()
    code, said = started(kept, "--blocks", "400")
    assert code == 2
    assert "lacks the segment of epoch 1" in said
