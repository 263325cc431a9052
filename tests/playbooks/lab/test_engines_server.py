"""The benchmark's server: values move, ranks are told apart, nothing appears twice, and it ends by itself."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

SERVER = Path(__file__).parents[3] / "benchmarks" / "engines_server.py"


def _series(url: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    with urllib.request.urlopen(url, timeout=10) as answer:
        page = answer.read().decode()
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"{key} appears twice"
            found[key] = sample.value
    return found


def test_ranks_share_a_page_whose_counters_only_grow() -> None:
    command = [sys.executable, str(SERVER), "--engines", "3", "--for", "6s"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        assert server.stdout.readline().strip() == "ready"
        first = _series(url)
        later = first
        while later == first:
            later = _series(url)
        assert server.wait(30) == 0
    assert {dict(labels)["engine"] for name, labels in first if name == "vllm:num_requests_running"} == {"0", "1", "2"}
    counters = [key for key in first if key[0].endswith("_total")]
    assert all(later[key] >= first[key] for key in counters)
    assert any(later[key] > first[key] for key in counters)
