"""Gauges out of the labels of info metrics."""

from __future__ import annotations

import pytest

from probes.labels import Labels
from probes.sources.info import info_labels, number

INFO = Labels.of(
    {
        "block_size": "16",
        "num_gpu_blocks": "None",
        "enable_prefix_caching": "True",
        "gpu_memory_utilization": "0.92",
        "cache_dtype": "auto",
        "engine": "1",
        "instance": "h:1",
        "job": "vllm",
        "cluster": "east",
    },
    name="vllm:cache_config_info",
)


def test_numbers_and_flags_become_gauges_and_the_rest_nothing() -> None:
    found = {labels.name.rsplit(":", 1)[1]: value for labels, value in info_labels().derive(INFO)}
    assert found == {"block_size": 16.0, "enable_prefix_caching": 1.0, "gpu_memory_utilization": 0.92}


def test_only_identity_labels_stay() -> None:
    labels = next(iter(info_labels().derive(INFO)))[0]
    assert labels.as_dict() == {
        "__name__": "vllm:cache_config_info:block_size",
        "engine": "1",
        "instance": "h:1",
        "job": "vllm",
    }
    kept = next(iter(info_labels().derive(INFO, ["cluster"])))[0]
    assert kept.get("cluster") == "east"


def test_other_metrics_give_nothing() -> None:
    assert info_labels().derive(Labels.of({"block_size": "16"}, name="other_info")) == ()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("16", 16.0),
        ("0.5", 0.5),
        ("True", 1.0),
        ("false", 0.0),
        ("None", None),
        ("", None),
        ("nan", None),
        ("inf", None),
    ],
)
def test_what_counts_as_a_number(text: str, value: float | None) -> None:
    assert number(text) == value
