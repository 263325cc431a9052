"""A long hole in the data: only what came after it is diagnosed, and an event says so."""

from __future__ import annotations

from pathlib import Path

from playbooks.engine import Case, diagnose
from playbooks.grid import Grid
from playbooks.stretch import last_stretch
from probes.attach import attach

LINES = 'vllm:num_requests_running{{engine="0"}} 1 {0}\nvllm:kv_cache_usage_perc{{engine="0"}} 0.3 {0}\n'


def recording(path: Path, times: list[int]) -> Path:
    path.write_text("".join(LINES.format(t) for t in times) + "# EOF\n")
    return path


def test_a_hole_of_years_leaves_the_last_stretch(tmp_path: Path) -> None:
    after = 1_700_000_000
    path = recording(tmp_path / "a.om", [1_600_000_000, 1_600_000_001, *range(after, after + 120)])
    attachment = attach([str(path)])
    found = diagnose(attachment.view, Case(Grid(1_600_000_000_000, (after + 119) * 1000, 1000)), ())
    assert found.start_ms == after * 1000
    (event,) = [e for e in found.events if e.kind == "gap"]
    assert event.time_ms == after * 1000
    assert event.says == "no data for 1157 days before this: only what came after it was diagnosed"


def test_a_hole_within_the_lookback_and_slow_samples_are_none(tmp_path: Path) -> None:
    short = attach([str(recording(tmp_path / "a.om", [0, 10, 20, 300, 310]))])
    assert last_stretch(short.view, Grid(0, 310_000, 10_000)) == (Grid(0, 310_000, 10_000), ())
    slow = attach([str(recording(tmp_path / "b.om", list(range(0, 100_000_000, 1_000_000))))])
    grid = Grid(0, 99_000_000_000, 1_000_000_000)
    assert last_stretch(slow.view, grid) == (grid, ())


def test_a_window_that_is_compared_with_another_stays(tmp_path: Path) -> None:
    attachment = attach([str(recording(tmp_path / "a.om", [1_600_000_000, 1_700_000_000]))])
    grid = Grid(1_600_000_000_000, 1_700_000_000_000, 1000, against_ms=1)
    assert last_stretch(attachment.view, grid) == (grid, ())
