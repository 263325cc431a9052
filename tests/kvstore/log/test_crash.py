"""kill -9 on a disk that forgets what was not synced; the long run is `benchmarks/crash.py`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from playbooks.lab.shims.build import compiler
from tests.kvstore.log.crash import CrashRun
from tests.kvstore.log.serve_crash import ServeCrashRun

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler: the shim cannot be built")
KILLS = int(os.environ.get("KVSCOPE_CRASH_KILLS", "6"))


def test_what_was_acknowledged_survives_and_nothing_is_half_there(tmp_path: Path) -> None:
    tally = CrashRun(tmp_path, seed=11).run(KILLS)
    assert tally.violations == []
    assert tally.kills == KILLS
    assert tally.acknowledged > 10 * KILLS
    assert tally.replayed > 0


def test_an_acknowledgement_before_the_flush_is_caught(tmp_path: Path) -> None:
    tally = CrashRun(tmp_path, seed=3, early=True, delay_ms=50, leak=0).run(2, 5, 20)
    assert any("may be" in violation for violation in tally.violations)


def test_the_same_delay_without_the_fault_is_no_violation(tmp_path: Path) -> None:
    tally = CrashRun(tmp_path, seed=3, delay_ms=50, leak=0).run(1, 5, 10)
    assert tally.violations == []


def test_a_real_shard_keeps_what_it_acknowledged_to_its_clients(tmp_path: Path) -> None:
    tally = ServeCrashRun(tmp_path, seed=5).run(2)
    assert tally.violations == []
    assert tally.acknowledged > 10
    assert tally.recovered > 10


def test_a_real_shard_that_acknowledges_before_the_flush_is_caught(tmp_path: Path) -> None:
    tally = ServeCrashRun(tmp_path, seed=5, early=True, delay_ms=300, leak=0).run(1, 5, 10)
    assert any("missing" in violation or "there" in violation for violation in tally.violations)
