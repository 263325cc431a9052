"""Readings on a real view: states, ages, and numbers merged as they may be."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from pathlib import Path

import pytest

from probes.attach import Attachment, attach
from probes.labels import Labels
from tui.fleet import fleet, pooled, sound
from tui.observer import Observer
from tui.panels import BY_NAME, PANELS
from tui.provenance import explain
from tui.reading import FLEET, EntityReading, Reading, State, as_json, entity_of, read, sort_key

START_S = 1_771_149_600
STEP_S = 5
STEPS = 25
END_MS = (START_S + STEP_S * (STEPS - 1)) * 1000


def series(name: str, labels: str, values: Iterable[float | None]) -> list[str]:
    return [
        f"{name}{{{labels}}} {value!r} {START_S + STEP_S * step}"
        for step, value in enumerate(values)
        if value is not None
    ]


def recording(tmp_path: Path, *families: tuple[str, str, list[list[str]]]) -> Attachment:
    lines = []
    for name, kind, rows in families:
        lines.append(f"# TYPE {name} {kind}")
        lines += [line for row in rows for line in row]
    path = tmp_path / "made.om"
    path.write_text("\n".join([*lines, "# EOF"]) + "\n")
    attachment = attach([str(path)])
    asyncio.run(attachment.cycle(0))
    return attachment


def engines(tmp_path: Path) -> Attachment:
    """Two engines: pod-1 hits 90 of 100 tokens, pod-2 10 of 900; pod-2 restarts; pod-1 has no length histogram."""
    one, two = (f'engine="0",instance="pod-{i}:8000",job="vllm",model_name="m"' for i in (1, 2))
    steps = range(STEPS)
    return recording(
        tmp_path,
        ("vllm:kv_cache_usage_perc", "gauge", [series("vllm:kv_cache_usage_perc", one, [0.5] * STEPS),
                                              series("vllm:kv_cache_usage_perc", two, [0.9] * STEPS)]),
        ("vllm:num_requests_running", "gauge", [series("vllm:num_requests_running", one, [3] * STEPS),
                                               series("vllm:num_requests_running", two, [4] * STEPS)]),
        ("vllm:prefix_cache_queries", "counter",
         [series("vllm:prefix_cache_queries_total", one, (100 * s for s in steps)),
          series("vllm:prefix_cache_queries_total", two, (900 * s for s in steps))]),
        ("vllm:prefix_cache_hits", "counter", [series("vllm:prefix_cache_hits_total", one, (90 * s for s in steps)),
                                              series("vllm:prefix_cache_hits_total", two, (10 * s for s in steps))]),
        ("vllm:generation_tokens", "counter",
         [series("vllm:generation_tokens_total", one, (5000 + 100 * s for s in steps))]),
        ("vllm:num_preemptions", "counter", [series("vllm:num_preemptions_total", one, [0] * STEPS)]),
        ("process_start_time_seconds", "gauge",
         [series("process_start_time_seconds", 'instance="pod-1:8000",job="vllm"', [START_S - 9] * STEPS),
          series("process_start_time_seconds", 'instance="pod-2:8000",job="vllm"',
                 [START_S - 9 if s < 20 else START_S + 95 for s in steps])]),
    )  # fmt: skip


def by_name(readings: list[EntityReading]) -> dict[str, EntityReading]:
    return {reading.name: reading for reading in readings}


def test_values_and_states_on_a_real_view(tmp_path: Path) -> None:
    rows = by_name(read(engines(tmp_path).view, END_MS, 60_000))
    assert sorted(rows) == ["pod-1:8000", "pod-2:8000"]
    one, two = rows["pod-1:8000"].values, rows["pod-2:8000"].values
    assert one["kv:pool_usage_ratio"] == Reading(0.5, "ratio", State.FRESH, 0.0)
    assert one["kv:prefix_hit_ratio"].value == pytest.approx(0.9)
    assert one["kv:preemptions:rate"].value == 0.0
    assert one["kv:preemptions:rate"].state is State.FRESH
    assert rows["pod-1:8000"].labels["model_name"] == "m"
    missing = one["kv:ttft_seconds:p99"]
    assert (missing.value, missing.state) == (None, State.UNSUPPORTED)
    assert "pod-1:8000 has no kv:ttft_seconds" in missing.why
    assert two["kv:prefix_hit_ratio"].state is State.RESET
    assert two["kv:pool_usage_ratio"].state is State.FRESH
    assert two["kv:preemptions:rate"].state is State.UNSUPPORTED
    assert two["kv:restarts"].value == 1.0


def test_a_fault_makes_values_stale_and_says_so(tmp_path: Path) -> None:
    rows = by_name(read(engines(tmp_path).view, END_MS + 20_000, 60_000, faults={"pod-1:8000": "connection refused"}))
    reading = rows["pod-1:8000"].values["kv:pool_usage_ratio"]
    assert (reading.value, reading.state, reading.age_s, reading.why) == (0.5, State.STALE, 20.0, "connection refused")
    assert rows["pod-2:8000"].values["kv:pool_usage_ratio"].state is State.FRESH


def test_no_requests_is_a_gap_and_not_a_zero(tmp_path: Path) -> None:
    labels = 'engine="0",instance="a:1",job="vllm",model_name="m"'
    name = "vllm:time_to_first_token_seconds"
    attachment = recording(
        tmp_path,
        ("vllm:num_requests_running", "gauge", [series("vllm:num_requests_running", labels, [0] * STEPS)]),
        (name, "histogram", [series(f"{name}_bucket", f'{labels},le="1"', [4] * STEPS),
                             series(f"{name}_bucket", f'{labels},le="+Inf"', [4] * STEPS),
                             series(f"{name}_count", labels, [4] * STEPS),
                             series(f"{name}_sum", labels, [2] * STEPS)]),
    )  # fmt: skip
    reading = read(attachment.view, END_MS, 60_000)[0].values["kv:ttft_seconds:p99"]
    assert (reading.value, reading.state) == (None, State.GAP)
    assert reading.why == "nothing to measure within the window"


def test_nan_is_no_data(tmp_path: Path) -> None:
    labels = 'engine="0",instance="a:1",job="vllm",model_name="m"'
    nan = [f"vllm:kv_cache_usage_perc{{{labels}}} NaN {START_S + STEP_S * s}" for s in range(STEPS)]
    attachment = recording(
        tmp_path,
        ("vllm:kv_cache_usage_perc", "gauge", [nan]),
        ("vllm:num_requests_running", "gauge", [series("vllm:num_requests_running", labels, [1] * STEPS)]),
    )
    reading = read(attachment.view, END_MS, 60_000)[0].values["kv:pool_usage_ratio"]
    assert reading.value is None
    assert reading.state is not State.FRESH


def test_json_minimum(tmp_path: Path) -> None:
    document = as_json(END_MS, read(engines(tmp_path).view, END_MS, 60_000))
    assert document["schema"] == "kvscope.reading/1"
    assert document["time"] == END_MS / 1000
    entities = document["entities"]
    assert isinstance(entities, list)
    value = entities[0]["values"]["kv:requests_running"]
    assert value == {"value": 3.0, "unit": "requests", "state": "fresh", "age_s": 0.0}


def test_the_fleet_merges_numerators_and_denominators(tmp_path: Path) -> None:
    view = engines(tmp_path).view
    rows = read(view, END_MS, 60_000)
    panel = BY_NAME["kv:prefix_hit_ratio"]
    from tui.reading import ask

    total = fleet(rows, PANELS, {panel.name: ask(view, panel.at("60s", fleet=True), END_MS)})
    assert total.values["kv:requests_running"].value == 7.0
    assert total.values["kv:prefix_hit_ratio"].value == pytest.approx(0.1)  # (90 + 10) / 1000, no mean of 0.9 and 0.01
    assert total.values["kv:pool_usage_ratio"].value is None
    assert "capacity is not known" in total.values["kv:pool_usage_ratio"].why


@pytest.mark.parametrize(
    ("pairs", "wanted"),
    [
        ([(0.5, 100.0), (1.0, 300.0)], 0.875),
        ([(0.5, None)], 0.5),
        ([(0.5, 100.0), (1.0, None)], None),
        ([(None, 100.0), (0.25, 300.0)], 0.25),
        ([], None),
    ],
)
def test_pools_are_weighted_by_their_tokens(
    pairs: list[tuple[float | None, float | None]], wanted: float | None
) -> None:
    assert pooled(pairs) == wanted


def test_a_quantile_that_no_engine_has_is_refused() -> None:
    assert sound(5.0, [1.0, 9.0]) == 5.0
    assert sound(640.0, [0.97, 157.0]) == 157.0
    assert sound(None, [1.0, 2.0]) is None
    assert sound(math.nan, [2.0]) == 2.0


def test_a_silent_engine_does_not_count_in_the_fleet() -> None:
    def one(name: str, value: float, state: State) -> EntityReading:
        return EntityReading({"instance": name}, {"kv:requests_waiting": Reading(value, "requests", state, 1.0)})

    rows = [one("a:1", 2.0, State.FRESH), one("b:1", 50.0, State.STALE)]
    assert fleet(rows, PANELS, {}).values["kv:requests_waiting"].value == 2.0
    assert fleet(rows[1:], PANELS, {}).values["kv:requests_waiting"].state is State.STALE
    idle = EntityReading({"instance": "a:1"}, {"kv:requests_waiting": Reading(None, "requests", State.GAP)})
    assert fleet([idle, rows[1]], PANELS, {}).values["kv:requests_waiting"].state is State.GAP


@pytest.mark.parametrize(
    ("labels", "wanted"),
    [
        ({"instance": "a:1", "engine": "0", "model_name": "m"}, {"instance": "a:1", "engine": "0"}),
        ({"instance": "a:1", "gpu": "2", "job": "dcgm"}, {"instance": "a:1", "gpu": "2"}),
        ({"instance": "a:1", "device": "mlx5_0"}, {"instance": "a:1", "device": "mlx5_0"}),
        ({"shard": "3", "instance": "a:1", "model_name": "m"}, {"shard": "3", "instance": "a:1"}),
        ({"job": "x"}, {}),
    ],
)
def test_entities(labels: dict[str, str], wanted: dict[str, str]) -> None:
    assert entity_of(Labels.of(labels)) is Labels.of(wanted)


def test_names_sort_as_people_count() -> None:
    names = [{"instance": f"pod-{i}:8000"} for i in (10, 2, 1)]
    assert [n["instance"] for n in sorted(names, key=sort_key)] == ["pod-1:8000", "pod-2:8000", "pod-10:8000"]


def test_every_panel_parses_and_names_known_signals() -> None:
    from probes.promql.parse import parse
    from probes.rules import RuleSet
    from tui.vocabulary import vocabulary

    rules = RuleSet.load()
    for panel in PANELS:
        for text in filter(None, (panel.at("1m"), panel.at("1m", fleet=True))):
            rules.expand(parse(text))
        assert set(panel.needs) <= set(vocabulary())


def test_where_a_number_comes_from(tmp_path: Path) -> None:
    view = engines(tmp_path).view
    pod = Labels.of({"instance": "pod-1:8000", "engine": "0"})
    origin = explain(view, BY_NAME["kv:prefix_hit_ratio"], pod, END_MS, 60_000)
    assert origin.value == pytest.approx(0.9)
    assert "vllm:prefix_cache_hits_total" in origin.expanded
    assert all("pod-1:8000" in item.series for item in origin.inputs)
    assert {item.value for item in origin.inputs} == {90.0 * (STEPS - 1), 100.0 * (STEPS - 1)}
    whole = explain(view, BY_NAME["kv:requests_running"], FLEET, END_MS, 60_000)
    assert (whole.value, len(whole.inputs)) == (7.0, 2)
    restarts = explain(view, BY_NAME["kv:restarts"], pod, END_MS, 60_000)
    assert restarts.value == 0.0


SILENT = {"pod-1:8000": "refused: cannot connect"}


@pytest.mark.parametrize("silent_s", [5, 20, 45])
def test_a_silent_source_keeps_the_rate_that_it_had_when_it_was_last_heard(tmp_path: Path, silent_s: int) -> None:
    view = engines(tmp_path).view
    before = by_pod(read(view, END_MS, 60_000, PANELS))["pod-1:8000"].values["kv:generation_tokens:rate"]
    at_ms = END_MS + silent_s * 1000
    after = by_pod(read(view, at_ms, 60_000, PANELS, faults=SILENT))["pod-1:8000"].values["kv:generation_tokens:rate"]
    assert before.value is not None
    assert (after.value, after.state, after.age_s) == (before.value, State.STALE, silent_s)
    observer = Observer(view, STEP_S * 1000, 60_000, 300_000)
    for at in range(END_MS, at_ms + 1, STEP_S * 1000):
        rows, _ = observer.observe(at, START_S * 1000, SILENT if at > END_MS else {})
    shown = by_pod(rows)["pod-1:8000"].values["kv:generation_tokens:rate"]
    assert (shown.value, shown.state, shown.age_s) == (before.value, State.STALE, silent_s)


def test_of_a_source_that_was_heard_for_a_short_while_the_rate_is_right(tmp_path: Path) -> None:
    """Watched for longer than it was heard: its window must not reach back before its first sample."""
    view = engines(tmp_path).view
    at_ms = (START_S + 40) * 1000
    words = {"faults": SILENT, "start_ms": START_S * 1000}
    (true,) = (read(view, at_ms, 40_000, PANELS)[0].values["kv:generation_tokens:rate"].value,)
    late = read(view, END_MS + 30_000, END_MS + 30_000 - START_S * 1000, PANELS, **words)[0]  # type: ignore[arg-type]
    assert late.values["kv:generation_tokens:rate"].value == pytest.approx(true, rel=0.01)


def by_pod(rows: Iterable[EntityReading]) -> dict[str, EntityReading]:
    return {row.labels["instance"]: row for row in rows if row.labels.get("engine")}


def test_what_comes_and_is_no_number_is_no_gap_in_the_samples(tmp_path: Path) -> None:
    made = recording(
        tmp_path,
        (
            "vllm:kv_cache_usage_perc",
            "gauge",
            [series("vllm:kv_cache_usage_perc", 'instance="a:1"', [math.nan] * STEPS)],
        ),
        ("vllm:num_requests_running", "gauge", [series("vllm:num_requests_running", 'instance="a:1"', [1] * STEPS)]),
    )
    reading = read(made.view, END_MS, 60_000)[0].values["kv:pool_usage_ratio"]
    assert (reading.value, reading.state) == (None, State.GAP)
    assert "no number" in reading.why
