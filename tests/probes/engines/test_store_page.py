"""The store's page under canonical names: every documented series is read, with its labels and units."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from probes.promql.value import Vector
from probes.rules import RuleSet
from probes.series import SeriesStore
from probes.sources.info import info_labels
from probes.sources.ingest import TargetFrame
from probes.target import Target
from probes.view import View
from tests.fixtures.kvstore.page import Shard, fragmented, healthy, page

CONTRACT = Path(__file__).parents[3] / "docs" / "store.md"
AT_MS = 1_771_149_900_000
# Beside the signals of the store's own rule file, what any target has.
COMMON = ("kv:up", "kv:scrape_", "kv:process_")


@cache
def rules() -> RuleSet:
    return RuleSet.load()


def view_of(*shards: Shard) -> View:
    store = SeriesStore()
    for number, shard in enumerate(shards):
        target = Target("http", f"http://h:{9400 + number}/metrics", job="kvstore", instance=f"h:{9400 + number}")
        frame = TargetFrame(store, target, info_labels())
        for step in range(5):
            frame.write(AT_MS - (4 - step) * 15_000, frame.parser.parse(page(shard, 60.0 + 15 * step).encode()), 0.002)
    return View(store, rules())


def vector(view: View, expr: str) -> Vector:
    value = view.instant(expr, AT_MS)
    assert isinstance(value, Vector)
    return value


def number(view: View, expr: str) -> float:
    value = vector(view, expr)
    assert len(value) == 1, expr
    return float(value.values[0, 0])


def documented() -> set[str]:
    """The families of the table in docs/store.md."""
    text = CONTRACT.read_text(encoding="utf-8").split("### What `/metrics` says")[1]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `kv_")]
    return {name for row in rows for name in re.findall(r"`(kv_\w+)`", row)}


def read_families() -> set[str]:
    found = set()
    for rule in rules().rules:
        if rule.file == "kvstore.rules.yml":
            entry = rules().canonical(rule.record)
            suffix = rule.record.removeprefix(entry.name)
            found |= {name.split(":")[0].removesuffix(suffix) for name in rule.raw_names}
    return found


def test_every_documented_series_is_read_and_no_other() -> None:
    assert documented() == read_families()


def test_the_hand_written_page_has_every_documented_series() -> None:
    text = page(healthy(), 60.0)
    for name in documented():
        assert re.search(rf"^{name}(_bucket)?[{{ ]", text, re.MULTILINE), name


def test_a_page_fills_every_signal_of_the_store() -> None:
    view = view_of(healthy())
    for entry in rules().vocabulary:
        for series in entry.series:
            systems = {dict(rule.labels).get("system") for rule in rules().rules_of(series)}
            assert (len(vector(view, series)) > 0) == ("kvstore" in systems or series.startswith(COMMON)), series


def test_store_series_keep_shard_instance_and_model() -> None:
    view = view_of(healthy("0"), healthy("1"))
    for labels in vector(view, "kv:pool_usage_ratio").labels:
        assert set(labels.as_dict()) == {"__name__", "instance", "job", "model_name", "shard", "system"}
        assert labels.get("system") == "kvstore"
    assert {labels.get("shard") for labels in vector(view, "kv:operations_total").labels} == {"0", "1"}


def test_operation_is_one_label_for_all_engines() -> None:
    view = view_of(healthy())
    for name in ("kv:operations_total", "kv:operation_seconds_count", "kv:operations_inflight"):
        assert {labels.get("operation") for labels in vector(view, name).labels} >= {"lookup", "put", "append"}, name
        assert not any(labels.get("op") for labels in vector(view, name).labels), name


@pytest.mark.parametrize("made", [healthy, fragmented])
def test_the_pool_agrees_with_itself(made: type[Shard]) -> None:
    view = view_of(made("0"))
    blocks = number(view, "kv:pool_blocks")
    for asked, expected in {
        "sum(kv:pool_state_blocks)": blocks,
        'sum(kv:pool_state_blocks{state=~"reserved|used|leased"}) / sum(kv:pool_state_blocks)': number(
            view, "kv:pool_usage_ratio"
        ),
        "sum(kv:pool_free_blocks_by_run)": number(view, 'kv:pool_state_blocks{state="free"}'),
        "sum(kv:pool_token_slots)": number(view, 'sum(kv:pool_state_blocks{state!~"free|reserved"}) * 16'),
        "kv:pool_bytes": number(view, "kv:block_bytes") * blocks,
        "count(kv:block_map) * max(kv:block_map_cell_blocks)": blocks,
        "kv:window_tokens": 512,
    }.items():
        assert number(view, asked) == pytest.approx(expected), asked


def test_rates_are_those_of_the_page() -> None:
    view = view_of(fragmented())
    assert number(view, "sum(rate(kv:put_refusals_total[1m]))") == pytest.approx(2.0)
    assert number(view, 'sum(rate(kv:evicted_blocks_total{reason="run"}[1m]))') == pytest.approx(30.0)
    share = 'sum(rate(kv:lookup_blocks_total{result="hit"}[1m])) / sum(rate(kv:lookup_blocks_total[1m]))'
    assert number(view, share) == pytest.approx(0.75)
