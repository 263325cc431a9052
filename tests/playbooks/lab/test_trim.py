"""Trimming leaves whole families, and a file that is still a recording."""

from __future__ import annotations

from pathlib import Path

from playbooks.lab.shelf import Shelf
from playbooks.lab.trim import families, trim

TEXT = """\
# TYPE a counter
a_total{instance="x:1",job="j"} 1 100
a_total{instance="x:1",job="j"} 2 105
a_total{instance="y:1",job="j"} 5 105
# TYPE b_seconds histogram
# UNIT b_seconds seconds
b_seconds_bucket{instance="x:1",job="j",le="+Inf"} 1 100
b_seconds_count{instance="x:1",job="j"} 1 100
b_seconds_sum{instance="x:1",job="j"} 0.5 100
# TYPE up gauge
up{instance="x:1",job="j"} 1 100
up{instance="x:1",job="j"} 1 105
# EOF
"""


def test_without_options_nothing_changes() -> None:
    assert trim(TEXT) == TEXT


def test_families_go_by_name_total_name_or_pattern() -> None:
    assert [name for name, _lines in families(trim(TEXT, drop=["a_total"]))] == ["b_seconds", "up"]
    assert [name for name, _lines in families(trim(TEXT, drop=["b_*", "a"]))] == ["up"]
    assert [name for name, _lines in families(trim(TEXT, keep=["up"]))] == ["up"]


def test_time_counts_from_the_first_sample_and_empty_families_go() -> None:
    assert trim(TEXT, start_s=5, keep=["a", "b_seconds"]).splitlines() == [
        "# TYPE a counter",
        'a_total{instance="x:1",job="j"} 2 105',
        'a_total{instance="y:1",job="j"} 5 105',
        "# EOF",
    ]


def test_an_instance_can_be_left_out() -> None:
    assert trim(TEXT, without=["x:1"]).splitlines() == [
        "# TYPE a counter",
        'a_total{instance="y:1",job="j"} 5 105',
        "# EOF",
    ]


def test_a_shelf_composes_once_and_drops_families(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    whole = shelf.path("healthy-idle")
    less = shelf.path("healthy-idle", drop=["vllm:kv_cache_usage_perc"])
    assert "vllm:kv_cache_usage_perc" in whole.read_text()
    assert "vllm:kv_cache_usage_perc" not in less.read_text()
    truth = shelf.composed("healthy-idle").truth
    before = whole.stat().st_mtime_ns
    assert Shelf(tmp_path).composed("healthy-idle").truth == truth
    assert Shelf(tmp_path).path("healthy-idle").stat().st_mtime_ns == before
