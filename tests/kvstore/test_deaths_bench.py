"""`kvstore bench deaths`: a shard is killed under its clients, and each call's error is timed."""

from __future__ import annotations

import pytest

from kvstore.bench import deaths


async def test_every_call_ends_in_a_typed_error_and_no_dead_memory_is_answered() -> None:
    found = await deaths.measure("mapped", runs=2)
    assert {name: len(took) for name, took in found.items()} == {"get": 2, "leased get": 2, "put": 2}
    assert all(0 < seconds < 10 for took in found.values() for seconds in took)  # not by the deadline


def test_its_table_names_what_was_asked_and_its_usage_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines = deaths.table({"mapped": {"get": [0.02, 0.04, 0.03]}})
    assert lines[1].split() == ["mapped", "get", "3", "30.0", "ms", "20.0", "ms", "40.0", "ms"]
    with pytest.raises(SystemExit, match="2"):
        deaths.run(["--runs", "0"])
    assert "--runs must be at least 1, not 0" in capsys.readouterr().err
