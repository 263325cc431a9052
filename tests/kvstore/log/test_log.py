"""Append, acknowledge, recover; one process a directory; failures that refuse and failures that stop."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kvstore.errors import BadRequest, DeadlineExceeded, LayoutMismatch, LogFailed, LogFull, LogLocked
from kvstore.layout import Layout
from kvstore.log import Batch, BlockShape, Durability, Kind, Log, LogConfig
from tests.kvstore.log.blocks import SHAPE, block, clocks, config, drop, grow, number_of, put, recover, write

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("durability", list(Durability))
def test_recovery_yields_what_lives(tmp_path: Path, durability: Durability) -> None:
    with Log(tmp_path, config(durability=durability)) as log:
        write(log, put(1, 1, 2, 3), put(2, 2), drop(3, 3), drop(4, 1, kind=Kind.REMOVE), put(5, 3))
        assert log.live_blocks == 2
    with Log(tmp_path, config(durability=durability)) as log:
        entries = {number_of(entry): entry for entry in log.recovered()}
        assert log.last_clock == 5
    assert {number: entry.clock for number, entry in entries.items()} == {2: 2, 3: 5}
    assert bytes(entries[3].payload) == block(3, 5).tobytes()
    assert (entries[3].valid, entries[3].session, entries[3].chain) == (4, 7, b"\5" * 24)


def test_appends_are_folded_into_the_block(tmp_path: Path) -> None:
    with Log(tmp_path, config()) as log:
        write(log, grow(1, 9, 0, 1), grow(2, 9, 1, 3), grow(3, 9, 3, 4), grow(4, 8, 0, 3), grow(5, 8, 2, 4))
    with Log(tmp_path, config()) as log:
        found = {number_of(entry): entry for entry in log.recovered()}
    assert bytes(found[9].payload) == block(9, 0).tobytes()
    assert bytes(found[8].payload) == block(8, 0).tobytes()
    assert (found[9].clock, found[9].valid) == (3, 4)


def test_an_append_that_continues_nothing_is_refused_and_leaves_no_trace(tmp_path: Path) -> None:
    with Log(tmp_path, config()) as log:
        with pytest.raises(Exception, match="continues no block"):
            write(log, grow(1, 9, 2, 3))
        write(log, put(2, 1))
    assert recover(tmp_path) == {1: 2}


def test_truncations_keep_what_lives_and_write_little(tmp_path: Path) -> None:
    expected: dict[int, int] = {}
    with Log(tmp_path, config()) as log:
        for clock in range(1, 600):
            batch = put(clock, clock)
            expected[clock] = clock
            if clock > 30:
                batch = Batch.joined(drop(clock, clock - 30), batch)
                del expected[clock - 30]
            write(log, batch)
        assert log.truncations >= 2
        assert sum(log.segments.values()) <= 5
        assert log.stats.wal_rewritten_bytes == 0
    assert recover(tmp_path) == expected


def test_old_blocks_that_live_are_rewritten_so_that_segments_are_freed(tmp_path: Path) -> None:
    with Log(tmp_path, config()) as log:
        for clock in range(1, 600):
            number = clock if clock % 20 == 0 and clock < 200 else 1000 + clock % 10
            write(log, put(clock, number))
        live = log.live_blocks
        assert log.stats.wal_rewritten_bytes > 0
        assert sum(log.segments.values()) <= 6
    found = recover(tmp_path)
    assert live == len(found) == 19
    assert {number: clock for number, clock in found.items() if number < 1000} == {n: n for n in range(20, 200, 20)}


def test_a_loop_waits_without_blocking_and_groups_share_flushes(tmp_path: Path) -> None:
    async def many(log: Log) -> None:
        await asyncio.gather(*(log.commit(put(clock, clock)) for clock in range(1, 65)))

    with Log(tmp_path, config(segment_bytes=1 << 16, window_us=20_000)) as log:
        asyncio.run(many(log))
        groups = log.stats.wal_group_records
        assert groups.total == 64
        assert groups.count < 16
        assert log.stats.wal_flush_seconds.count == groups.count
        assert log.stats.wal_acknowledged_bytes == 64 * SHAPE.block_bytes
        assert log.pending_records == 0
    assert len(recover(tmp_path, segment_bytes=1 << 16)) == 64


def test_a_wait_has_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Log(tmp_path, config(window_us=300_000)) as log:
        ticket = log.append(put(1, 1))
        assert log.pending_records == 1
        with pytest.raises(DeadlineExceeded, match="within"):
            ticket.wait(0.01)
        ticket.wait(10)


def test_one_process_a_directory(tmp_path: Path) -> None:
    code = f"from kvstore.log import *; Log({str(tmp_path)!r}, LogConfig(BlockShape(2, 4, 32), segment_bytes=16384))"
    with Log(tmp_path, config()):
        with pytest.raises(LogLocked, match=f"in use by process {os.getpid()}"):
            Log(tmp_path, config())
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
        assert f"LogLocked: log directory {tmp_path} is in use by process {os.getpid()}" in other.stderr
    Log(tmp_path, config()).close()


def test_a_failed_flush_stops_the_log_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[LogFailed] = []
    log = Log(tmp_path, config(), on_failure=told.append)
    write(log, put(1, 1))
    calls = []

    def fails(descriptor: int) -> None:
        calls.append(descriptor)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("kvstore.log.segment.os.fdatasync", fails)
    with pytest.raises(LogFailed, match="cannot flush"):
        write(log, put(2, 2))
    monkeypatch.undo()
    with pytest.raises(LogFailed, match="cannot flush"):
        log.append(put(3, 3))
    log.close()
    assert len(calls) == 1, "a failed fsync is never tried again"
    assert log.stats.wal_failures["flush"] == 1
    assert [str(failure) for failure in told] == [str(log.failure)]


def test_a_full_log_refuses_puts_takes_drops_and_recovers(tmp_path: Path) -> None:
    with Log(tmp_path, config(budget_segments=3, limit_segments=3)) as log:
        stored = []
        refused: LogFull | None = None
        while refused is None:
            clock = len(stored) + 1
            try:
                write(log, put(clock, clock))
                stored.append(clock)
            except LogFull as error:
                refused = error
        assert "limit of 3 segments" in str(refused)
        assert log.failure is None
        for number in stored[:-5]:
            write(log, drop(1000, number))
        for clock in range(1001, 1031):
            write(log, put(clock, clock))
    found = recover(tmp_path, budget_segments=3, limit_segments=3)
    assert sorted(found) == [*stored[-5:], *range(1001, 1031)]


STUCK = """
import os, sys, time
from kvstore.errors import LogFailed
from kvstore.log import Log
from tests.kvstore.log.blocks import config, put, write
log = Log(sys.argv[1], config())
write(log, put(1, 1))
os.fdatasync = lambda descriptor: time.sleep(600)
ticket = log.append(put(2, 2))
time.sleep(0.5)
queued = log.append(put(3, 3))
try:
    log.close(1.0)
except LogFailed as error:
    print(error)
try:
    queued.wait(5.0)
except LogFailed as error:
    print(error)
print("acknowledged:", ticket.done)
"""


def test_a_device_that_no_longer_answers_holds_neither_the_close_nor_the_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STUCK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=True)
    assert f"the log in {tmp_path} did not end within 1 s: its device does not answer" in done.stdout
    assert done.stdout.splitlines()[-2:] == [
        "the log did not end in time: its device does not answer",
        "acknowledged: False",
    ]
    assert recover(tmp_path)[1] == 1


TINY_DISK = """
import sys
from pathlib import Path
from kvstore.errors import LogFull
from kvstore.log import Log
from tests.kvstore.log.blocks import config, put, write
ballast = Path("/mnt/ballast")
with Log("/mnt/log", config(segment_bytes=1 << 18, budget_segments=8)) as log:
    ballast.write_bytes(bytes(900_000))
    stored = 0
    try:
        for clock in range(1, 100_000):
            write(log, put(clock, clock))
            stored = clock
    except LogFull as error:
        print(error)
    ballast.unlink()
    write(log, put(stored + 2, stored + 2))
    print("stored", stored > 10, log.failure, log.live_blocks == stored + 1)
"""


def test_a_full_disk_refuses_puts_until_there_is_room(tmp_path: Path) -> None:
    mount = 'mount -t tmpfs -o size=2m none /mnt && exec "$0" -c "$1"'
    command = ["unshare", "-Urm", "sh", "-c", mount, sys.executable, TINY_DISK]
    try:
        probe = subprocess.run([*command[:4], "mount -t tmpfs none /mnt"], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("no unshare: cannot mount a small disk")
    if probe.returncode:
        pytest.skip("this host does not let us mount a small disk")
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
    assert "no room for the log in /mnt/log" in done.stdout, done.stderr
    assert "stored True None True" in done.stdout, done.stderr


def test_a_directory_that_cannot_be_used_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LogFailed, match=r"^cannot open the log in .*Not a directory: a part of the path"):
        Log(tmp_path / "file" / "log", config())

    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(tmp_path / "lock"))

    monkeypatch.setattr("kvstore.log.lock.os.open", read_only)
    with pytest.raises(LogFailed, match=r"mounted read-only; choose another directory$"):
        Log(tmp_path, config())


def test_another_layout_is_refused(tmp_path: Path) -> None:
    with Log(tmp_path, config()) as log:
        write(log, put(1, 1))
    with pytest.raises(LayoutMismatch, match="token_bytes 32, this store has 64"):
        Log(tmp_path, LogConfig(BlockShape(2, 4, 64)))


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("dtype", "bfloat16", "'dtype', 'float16' there and 'bfloat16' here"),
        ("model_id", "other", "'model_id'"),
        ("layers", 4, "'layers', 1 there and 4 here"),
        ("head_groups", 2, "'head_groups'"),
        ("salt", "abc", "'salt': another tenant's"),
        ("heads", 2, "'heads'"),
    ],
)
def test_a_layout_that_differs_in_one_field_is_refused_and_named(
    tmp_path: Path, field: str, value: object, said: str
) -> None:
    layout = Layout("m", head_dim=4, block_tokens=4, salt="xyz")
    other = replace(layout, **{field: value})  # type: ignore[arg-type]
    with Log(tmp_path, config(layout=layout.as_json())) as log:
        write(log, put(1, 1))
    with pytest.raises(LayoutMismatch, match=said) as refused:
        Log(tmp_path, config(layout=other.as_json()))
    assert "xyz" not in str(refused.value)
    assert "\n" not in str(refused.value)
    assert recover(tmp_path, layout=layout.as_json()) == {1: 1}


def test_what_does_not_fit_a_block_is_refused(tmp_path: Path) -> None:
    with Log(tmp_path, config()) as log, pytest.raises(BadRequest, match="payload bytes"):
        log.append(Batch.joined(grow(1, 1, 0, 2), put(2, 2), _too_long()))
    assert recover(tmp_path) == {}


def _too_long() -> Batch:
    batch = put(3, 3)
    batch.headers["payload_bytes"] += 8
    return batch


def test_a_log_survives_a_kill_of_its_process_without_sync(tmp_path: Path) -> None:
    code = (
        "import os, signal\nfrom kvstore.log import *\nfrom tests.kvstore.log.blocks import *\n"
        f"log = Log({str(tmp_path)!r}, config(durability=Durability.LOG))\n"
        "write(log, put(1, 1, 2), put(2, 3), drop(3, 1))\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=30, check=False)
    assert done.returncode == -9
    with Log(tmp_path, config()) as log:
        assert log.replayed_records == 4
        assert clocks(log.recovered()) == {2: 1, 3: 2}
