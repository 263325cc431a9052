"""Damage of what was acknowledged is said, whatever a torn tail may look like; strange files are refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvstore.errors import LogCorrupt, StoreError
from kvstore.log import Log
from kvstore.log.record import RECORD_BYTES
from kvstore.log.segment import DATA_START
from tests.kvstore.log.blocks import clocks, config, put, recover
from tests.kvstore.log.test_recovery import crashed, segments

STEP = put(1, 1).file_bytes
ROOT = Path(__file__).resolve().parents[3]


def flipped(at: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        raw = bytearray(path.read_bytes())
        raw[at] ^= 1
        path.write_bytes(raw)

    return damage


def zeroed(path: Path) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[: DATA_START + 3 * STEP - 40] + bytes(200) + raw[DATA_START + 3 * STEP + 160 :])


DAMAGES = {
    "one bit of a payload": flipped(DATA_START + 4 * STEP + RECORD_BYTES + 7),
    "one bit of a record": flipped(DATA_START + 4 * STEP + 40),
    "the length of a record": flipped(DATA_START + 4 * STEP),
    "zeros in the middle": zeroed,
    "cut to a half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "nothing in it": lambda path: os.truncate(path, 0),
    "one bit of the header": flipped(9),
    "the magic": flipped(0),
    "zeros instead of the header": lambda path: path.write_bytes(bytes(64) + path.read_bytes()[64:]),
    "deleted": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=list(DAMAGES))
def test_damage_of_what_was_acknowledged_is_no_torn_tail(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    directory = crashed(tmp_path, *(put(clock, clock) for clock in range(1, 11)))
    trial = tmp_path / "whole"
    shutil.copytree(directory, trial)
    assert recover(trial) == {clock: clock for clock in range(1, 11)}
    damage(segments(directory)[-1].path)
    with pytest.raises(LogCorrupt, match="move the log directory away") as said:
        recover(directory)
    assert "\n" not in str(said.value)
    with pytest.raises(LogCorrupt):
        recover(directory)  # nor did the first try settle it


def test_the_same_damage_in_the_last_flush_is_a_torn_tail(tmp_path: Path) -> None:
    directory = crashed(tmp_path, put(1, 1), put(2, 2), [put(clock, clock) for clock in range(3, 11)])
    flipped(DATA_START + 4 * STEP + 40)(segments(directory)[-1].path)
    assert recover(directory) == {1: 1, 2: 2, 3: 3, 4: 4}


def test_damaged_records_may_be_dropped_and_the_log_goes_on(tmp_path: Path) -> None:
    directory = crashed(tmp_path, *(put(clock, clock) for clock in range(1, 11)))
    flipped(DATA_START + 4 * STEP + RECORD_BYTES + 7)(segments(directory)[-1].path)
    with Log(directory, config(drop_damaged=True)) as log:
        assert clocks(log.recovered()) == {clock: clock for clock in range(1, 11) if clock != 5}, "only the one"
    directory = crashed(tmp_path / "records", *(put(clock, clock) for clock in range(1, 11)))
    flipped(DATA_START + 4 * STEP + 40)(segments(directory)[-1].path)
    with Log(directory, config(drop_damaged=True)) as log:
        assert clocks(log.recovered()) == {1: 1, 2: 2, 3: 3, 4: 4}
        assert log.lost_records == 5, "whole ones behind the damage"
    assert recover(directory) == {1: 1, 2: 2, 3: 3, 4: 4}


def test_a_first_record_without_its_bytes_behind_a_whole_segment_is_a_torn_tail(tmp_path: Path) -> None:
    """A segment that was begun, and nothing in it flushed: neither its records nor its header need be there."""
    many = [put(clock, clock) for clock in range(1, 60)]
    directory = crashed(tmp_path, many)  # one flush over several segments
    last = segments(directory)[-1]
    held = recover_copy(directory, tmp_path)
    assert len(held) == 59
    for damage in (flipped(DATA_START + 40), flipped(9), lambda path: os.truncate(path, 0)):
        trial = tmp_path / "trial"
        shutil.copytree(directory, trial)
        damage(trial / last.path.name)
        (trial / "newest").write_bytes(_newest_of(last.epoch - 1, directory))
        found = recover(trial)
        assert 0 < len(found) < 59
        assert found.items() <= held.items()
        shutil.rmtree(trial)


def recover_copy(directory: Path, root: Path) -> dict[int, int]:
    copy = root / "copy"
    shutil.copytree(directory, copy)
    return recover(copy)


def _newest_of(epoch: int, directory: Path) -> bytes:
    """The file as it was before the last segment's first flush: each epoch has its own page of two."""
    raw = bytearray((directory / "newest").read_bytes())
    page = 4096 * ((epoch + 1) % 2)
    raw[page : page + 64] = bytes(64)
    return bytes(raw)


def test_the_file_that_names_the_newest_segment_is_missed(tmp_path: Path) -> None:
    directory = crashed(tmp_path, put(1, 1))
    kept = (directory / "newest").read_bytes()
    for damage in (None, b"", bytes(len(kept))):
        (directory / "newest").unlink()
        if damage is not None:
            (directory / "newest").write_bytes(damage)
        with pytest.raises(LogCorrupt, match=r"newest.*is missing or damaged"):
            Log(directory, config())
    (directory / "newest").write_bytes(kept)
    assert recover(directory) == {1: 1}


def test_a_copy_of_a_segment_is_said(tmp_path: Path) -> None:
    directory = crashed(tmp_path, put(1, 1))
    shutil.copy(segments(directory)[0].path, directory / "segment-00099")
    with pytest.raises(LogCorrupt, match="one of them is a copy"):
        Log(directory, config())


def test_a_log_of_the_format_before_is_refused(tmp_path: Path) -> None:
    recover(tmp_path)
    raw = bytearray((tmp_path / "checkpoint").read_bytes())
    raw[:8] = b"kvsckpt1"
    (tmp_path / "checkpoint").write_bytes(raw)
    with pytest.raises(LogCorrupt, match=r"is of format 1, this version reads and writes format 2: move"):
        Log(tmp_path, config())


@pytest.mark.parametrize("name", ["checkpoint", "newest", "lock", "segment-00001"])
def test_a_fifo_among_the_files_is_refused_and_waited_for_by_nobody(tmp_path: Path, name: str) -> None:
    directory = crashed(tmp_path, put(1, 1))
    (directory / name).unlink()
    os.mkfifo(directory / name)
    code = (
        "from kvstore.errors import StoreError\nfrom kvstore.log import Log\n"
        "from tests.kvstore.log.blocks import config\n"
        f"try: Log({str(directory)!r}, config())\nexcept StoreError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True
    )
    assert f"{directory / name} is no regular file: move it away" in done.stdout


def test_a_fifo_in_place_of_a_half_made_checkpoint_does_not_block(tmp_path: Path) -> None:
    directory = crashed(tmp_path, put(1, 1))
    os.mkfifo(directory / "checkpoint.making")
    assert recover(directory) == {1: 1}


def test_a_directory_in_place_of_the_checkpoint_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    with pytest.raises(StoreError, match=r"^cannot open the log"):
        Log(tmp_path, config())
