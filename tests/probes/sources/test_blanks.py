"""What stands for "no value" is no sample, live and recorded; what merely looks odd stays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from probes.labels import Labels
from probes.promql.value import Vector
from probes.rules import RuleSet
from probes.series import SeriesStore
from probes.sources.blanks import Blanks
from probes.sources.info import info_labels
from probes.sources.ingest import TargetFrame
from probes.sources.recording import load
from probes.target import Target
from probes.view import View

AT_MS = 1_700_000_000_000
BLANK = "9223372036854775794"
PAGE = """\
DCGM_FI_DEV_MEMORY_TEMP{gpu="0",UUID="GPU-1"} 9223372036854775794
DCGM_FI_DEV_MEMORY_TEMP{gpu="1",UUID="GPU-2"} 61
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-1"} 2147483634
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0",UUID="GPU-1"} 140737488355328
DCGM_FI_PROF_DRAM_ACTIVE{gpu="0",UUID="GPU-1"} 17.5
DCGM_FI_PROF_SM_OCCUPANCY{gpu="0",UUID="GPU-1"} 0.5
node_infiniband_port_transmit_wait_total{device="mlx4_0",port="1"} 4294967295
something_else 9223372036854775794
"""
KEPT = {
    ("DCGM_FI_DEV_MEMORY_TEMP", "1"): 61.0,
    ("DCGM_FI_PROF_SM_OCCUPANCY", "0"): 0.5,
    ("node_infiniband_port_transmit_wait_total", ""): 4294967295.0,
    ("something_else", ""): 2.0**63,
}


def live() -> tuple[SeriesStore, TargetFrame]:
    store = SeriesStore()
    target = Target("http", "http://node-a:9400/metrics", job="dcgm", instance="node-a:9400")
    return store, TargetFrame(store, target, info_labels())


def shown(store: SeriesStore, at_ms: int) -> dict[tuple[str, str], float]:
    found = View(store, RuleSet.load()).instant('{__name__=~"DCGM_.+|node_.+|something_else"}', at_ms)
    assert isinstance(found, Vector)
    return {(one.name, one.get("gpu")): float(v) for one, v in zip(found.labels, found.values[:, 0], strict=True)}


@pytest.mark.parametrize(
    ("name", "value", "blank"),
    [
        *(("DCGM_FI_DEV_FB_USED", text, True) for text in (BLANK, "9223372036854775792", "9223372036854775795")),
        *(("DCGM_FI_DEV_GPU_UTIL", str(2_147_483_632 + n), True) for n in range(4)),
        ("DCGM_FI_DEV_POWER_USAGE", "140737488355329", True),
        ("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "2147483636", False),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "2147483631", False),
        ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "1.01", False),
        ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "1.51", True),
        ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "-1", True),
        ("DCGM_FI_PROF_PCIE_TX_BYTES", "1e10", False),
        ("DCGM_FI_PROF_DRAM_ACTIVE", "nan", False),
        ("vllm:num_requests_running", BLANK, False),
    ],
)
def test_which_values_are_blank(name: str, value: str, blank: bool) -> None:
    blanks = Blanks([Labels.of({}, name="other"), Labels.of({"gpu": "0"}, name=name)])
    found = blanks.among(np.array([0, 1]), np.array([float(value)] * 2))
    assert found.tolist() == [False, blank]


def test_a_live_page_shows_no_blanks() -> None:
    store, frame = live()
    frame.write(AT_MS, frame.parser.parse(PAGE.encode()), 0.002)
    assert shown(store, AT_MS) == KEPT


def test_a_value_that_turns_blank_is_gone_at_once_and_comes_back() -> None:
    store, frame = live()
    for step, value in enumerate(("55", "2147483632", "56")):
        page = PAGE.replace("2147483634", value)
        frame.write(AT_MS + step * 1000, frame.parser.parse(page.encode()), 0.002)
    key = ("DCGM_FI_DEV_GPU_TEMP", "0")
    assert [shown(store, AT_MS + step * 1000).get(key) for step in range(3)] == [55.0, None, 56.0]


def test_a_recording_shows_no_blanks(tmp_path: Path) -> None:
    path = tmp_path / "node.om"
    body = "".join(f"{line} {AT_MS // 1000 + step}\n" for line in PAGE.splitlines() for step in (0, 5))
    path.write_text(body + "# EOF\n")
    store = SeriesStore()
    for block in load(path).blocks:
        store.frame(block.instance).load(block.times, block.labels, block.values)
    assert shown(store, AT_MS + 5000) == KEPT
    assert "DCGM_FI_DEV_GPU_TEMP" not in store.names()


def test_nan_of_what_is_counted_is_no_sample_and_of_a_gauge_it_stays() -> None:
    names = ("a_total", "b_bucket", "c_count", "process_start_time_seconds", "d_sum", "usage", "total_kind")
    labels = [Labels.of({}, name) for name in names]
    series = np.arange(len(names))
    assert Blanks(labels).among(series, np.full(len(names), np.nan)).tolist() == [True] * 4 + [False] * 3
    assert not Blanks(labels).among(series, np.zeros(len(names))).any()
