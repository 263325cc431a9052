"""Lamport's clock, and what it does not believe."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvstore.clock import MAX_CLOCK, MAX_LEAP, LamportClock
from kvstore.errors import BadRequest, LogCorrupt
from kvstore.log import Durability as LogDurability
from kvstore.log import Kind, Log, LogConfig, drops
from kvstore.messages import Durability, Ping
from kvstore.shard.journal import shape_of
from tests.kvstore.shard_rig import LAYOUT, Rig, keys_of


def test_it_never_runs_behind_what_it_has_seen() -> None:
    clock = LamportClock(5)
    assert (clock.tick(), clock.merge(3), clock.merge(100), clock.tick()) == (6, 7, 101, 102)


def test_what_no_clock_says_moves_none() -> None:
    clock = LamportClock(5)
    for seen in (MAX_CLOCK + 1, (1 << 64) - 1, -1):
        with pytest.raises(BadRequest, match="clock"):
            clock.merge(seen)
    with pytest.raises(BadRequest, match="too far ahead"):
        clock.merge_from_anybody(5 + MAX_LEAP + 1)
    assert clock.now == 5
    assert clock.merge_from_anybody(5 + MAX_LEAP) == 6 + MAX_LEAP


async def test_a_shard_does_not_recover_from_a_log_with_such_a_clock(tmp_path: Path) -> None:
    config = LogConfig(shape_of(LAYOUT), LogDurability.LOG, segment_bytes=1 << 20)
    log = Log(tmp_path, config)
    log.append(drops(keys_of(range(12)), Kind.REMOVE, clock=(1 << 64) - 2), None)
    log.close()
    rig = Rig(log=Log(tmp_path, config), durability=Durability.LOG)
    with pytest.raises(LogCorrupt, match="clock"):
        rig.shard.recover()
    assert (await rig.ask(Ping())).shard == 0
    await rig.shard.close()
