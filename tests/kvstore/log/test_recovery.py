"""Torn tails, damage, recycled segments: what recovery accepts and what it refuses."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kvstore.errors import LogCorrupt
from kvstore.log import Batch, Log, puts
from kvstore.log.record import RECORD, RECORD_BYTES, seal
from kvstore.log.segment import DATA_START, Segment
from tests.kvstore.log.blocks import SHAPE, block, clocks, config, drop, grow, keys, put, recover, write


def crashed(directory: Path, *groups: Batch | list[Batch]) -> Path:
    """A log directory as a killed process leaves it: no last checkpoint. A list of batches shares one flush."""
    child = os.fork()
    if not child:
        log = Log(directory / "crashed", config(window_us=30_000))
        for group in groups:
            write(log, *(group if isinstance(group, list) else [group]))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    for half_made in (directory / "crashed").glob("*.making"):
        half_made.unlink()
    return directory / "crashed"


def segments(directory: Path) -> list[Segment]:
    found = [Segment(path, 0) for path in sorted(directory.glob("segment-*"))]
    return sorted((segment for segment in found if segment.epoch), key=lambda segment: segment.epoch)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A directory where a sync costs nothing, if there is one: for a thousand recoveries."""
    fast = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=fast if os.access(fast, os.W_OK) else tmp_path) as directory:
        yield Path(directory)


@pytest.mark.parametrize("last", [put(3, 3), grow(3, 9, 0, 2), drop(3, 1)], ids=["put", "append", "evict"])
def test_a_log_cut_at_every_byte_of_its_last_record_recovers_to_the_record_before(memory: Path, last: Batch) -> None:
    directory = crashed(memory, put(1, 1), put(2, 2), last)
    segment = segments(directory)[0]
    start = DATA_START + put(1, 1).file_bytes + put(2, 2).file_bytes
    whole = segment.path.read_bytes()
    end = start + last.file_bytes
    assert whole[end : end + RECORD_BYTES] == bytes(RECORD_BYTES)
    for cut in range(start, end):
        if not any(whole[cut:end]):
            continue  # only padding or zeros are missing: the record is whole
        segment.path.write_bytes(whole[:cut] + bytes(len(whole) - cut))
        trial = memory / "trial"
        shutil.copytree(directory, trial)
        assert recover(trial) == {1: 1, 2: 2}, cut
        shutil.rmtree(trial)
    segment.path.write_bytes(whole)
    assert recover(directory) != {1: 1, 2: 2}


def test_a_put_of_several_blocks_is_all_there_or_not_at_all(tmp_path: Path) -> None:
    directory = crashed(tmp_path, put(1, 1), put(2, 2, 3, 4))
    segment = segments(directory)[0]
    raw = bytearray(segment.path.read_bytes())
    raw[DATA_START + put(1, 1).file_bytes + put(2, 2, 3, 4).file_bytes - 1] ^= 1
    segment.path.write_bytes(raw)
    assert recover(directory) == {1: 1}


def test_writing_goes_on_behind_a_torn_tail(tmp_path: Path) -> None:
    directory = crashed(tmp_path, put(1, 1), [put(2, 2), put(3, 3)])
    segment = segments(directory)[0]
    raw = bytearray(segment.path.read_bytes())
    checkpoint = (directory / "checkpoint").read_bytes()
    # Block 2 is torn; 3, of the same flush, is whole but must not count.
    raw[DATA_START + put(1, 1).file_bytes + 10] ^= 1
    segment.path.write_bytes(raw)
    with Log(directory, config()) as log:
        assert clocks(log.recovered()) == {1: 1}
        write(log, put(5, 5))
    (directory / "checkpoint").write_bytes(checkpoint)
    with Log(directory, config()) as log:
        assert clocks(log.recovered()) == {1: 1, 5: 5}
        assert log.replayed_records == 2


def test_leftovers_of_an_earlier_use_never_parse(tmp_path: Path) -> None:
    """A record at the right place, with a right checksum, of the same segment's earlier epoch."""
    directory = crashed(tmp_path, put(1, 1))
    segment = segments(directory)[0]
    assert segment.header is not None
    first = put(1, 1)
    leftover = put(9, 9)
    for epoch, previous in ((segment.epoch - 1, 0), (segment.epoch, 12345)):
        seal(leftover.headers, leftover.payloads, epoch, previous, DATA_START)
        leftover.headers["flags"] = 3
        segment.write([leftover.headers.view(np.uint8).data], DATA_START + first.file_bytes)
        trial = tmp_path / f"trial-{epoch}"
        shutil.copytree(directory, trial)
        assert recover(trial) == {1: 1}


def test_damage_before_the_newest_segment_is_no_torn_tail(tmp_path: Path) -> None:
    directory = crashed(tmp_path, *(put(clock, clock) for clock in range(1, 60)))
    segment = segments(directory)[0]
    raw = bytearray(segment.path.read_bytes())
    raw[DATA_START + 3] ^= 1
    segment.path.write_bytes(raw)
    with pytest.raises(LogCorrupt, match=r"segment-\d+ is damaged at byte 4096.*move the log directory away"):
        recover(directory)


def test_a_block_whose_bytes_changed_on_disk_is_said_and_may_be_dropped(tmp_path: Path) -> None:
    with Log(tmp_path, config()) as log:
        write(log, put(1, 1), put(2, 2))
    segment = segments(tmp_path)[0]
    raw = bytearray(segment.path.read_bytes())
    raw[DATA_START + RECORD_BYTES + 5] ^= 1
    segment.path.write_bytes(raw)
    with Log(tmp_path, config()) as log, pytest.raises(LogCorrupt, match=r"^1 of 2 blocks .*start with --drop-damaged"):
        list(log.recovered())
    with Log(tmp_path, config(drop_damaged=True)) as log:
        assert clocks(log.recovered()) == {2: 2}
        assert log.damaged_blocks == 1
    assert recover(tmp_path) == {2: 2}


@pytest.mark.parametrize("at", [0, 20, 96, 110, -1])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, at: int) -> None:
    with Log(tmp_path, config()) as log:
        write(log, put(1, 1))
    raw = bytearray((tmp_path / "checkpoint").read_bytes())
    raw[at] ^= 1
    (tmp_path / "checkpoint").write_bytes(raw)
    with pytest.raises(LogCorrupt, match="checkpoint is damaged"):
        Log(tmp_path, config())


def test_a_missing_checkpoint_or_segment_is_said(tmp_path: Path) -> None:
    with Log(tmp_path, config()) as log:
        write(log, *(put(clock, clock) for clock in range(1, 60)))
    (tmp_path / "checkpoint").rename(tmp_path / "kept")
    with pytest.raises(LogCorrupt, match="no checkpoint"):
        Log(tmp_path, config())
    (tmp_path / "kept").rename(tmp_path / "checkpoint")
    segments(tmp_path)[0].path.unlink()
    with pytest.raises(LogCorrupt, match="lacks the segment of epoch 1"):
        Log(tmp_path, config())


def test_a_half_made_segment_is_deleted(tmp_path: Path) -> None:
    with Log(tmp_path, config()) as log:
        write(log, put(1, 1))
    (tmp_path / "segment-00077.making").write_bytes(b"half")
    assert recover(tmp_path) == {1: 1}
    assert not list(tmp_path.glob("*.making"))


def test_another_segment_size_is_taken_over(tmp_path: Path) -> None:
    with Log(tmp_path, config()) as log:
        write(log, *(put(clock, clock) for clock in range(1, 30)))
    with Log(tmp_path, config(segment_bytes=1 << 15)) as log:
        assert len(clocks(log.recovered())) == 29
        write(log, drop(30, *range(1, 29)), *(put(clock, 40 + clock % 9) for clock in range(31, 400)))
    assert 29 in recover(tmp_path, segment_bytes=1 << 15)
    sizes = [path.stat().st_size for path in tmp_path.glob("segment-*")]
    assert sizes.count(1 << 14) <= 1, "only the one that still holds a live block"
    assert sizes.count(1 << 15) == len(sizes) - sizes.count(1 << 14)


def test_recovered_is_read_once_and_before_the_first_append(tmp_path: Path) -> None:
    with Log(tmp_path, config()) as log:
        write(log, put(1, 1))
        with pytest.raises(RuntimeError, match="already"):
            list(log.recovered())


def test_a_record_is_as_long_as_its_format_says() -> None:
    assert RECORD.itemsize == RECORD_BYTES
    odd = puts(keys(1), [block(1, 1)[:13]], clock=1, valid=1)
    assert odd.file_bytes == RECORD_BYTES + 16
    assert SHAPE.append_bytes(1, 3) == SHAPE.gather(block(1, 1), 1, 3).nbytes
