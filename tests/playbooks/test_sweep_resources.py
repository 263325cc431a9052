"""Troubles outside the playbooks: what the sweep says of RDMA ports and cache tiers, and when it says nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from playbooks.lab.shelf import Shelf
from playbooks.playbook import Playbook
from playbooks.rehearse import diagnose_text
from playbooks.verdict import Overall
from probes.rules import RuleSet

LINE = 50e9
Series = Mapping[str, Callable[[float], float]]
"""Selector → value by seconds since the first scrape."""


@pytest.fixture(scope="module")
def calm(shelf_folder: Path) -> str:
    return Shelf(shelf_folder).composed("healthy-steady", 0).text


def port(device: str, instance: str = "node-a:9100", state: float = 4, **rates: float) -> Series:
    """An RDMA port whose counters rise at ``rates`` a second."""
    names = {
        "sent": "port_data_transmitted_bytes_total",
        "got": "port_data_received_bytes_total",
        "resent": "packet_sequence_errors_total",
        "disorder": "out_of_sequence_packets_received_total",
        "timeouts": "local_ack_timeout_errors_total",
        "marks": "np_ecn_marked_roce_packets_received_total",
    }
    at = f'{{device="{device}",instance="{instance}",job="node",port="1"}}'
    found: dict[str, Callable[[float], float]] = {
        f"node_infiniband_rate_bytes_per_second{at}": lambda _: LINE,
        f"node_infiniband_state_id{at}": lambda _: state,
        f'up{{instance="{instance}",job="node"}}': lambda _: 1,
    }
    for key, name in names.items():
        rate = rates.get(key, 0.0)
        found[f"node_infiniband_{name}{at}"] = lambda t, rate=rate: 1e6 + rate * t
    return found


def tier(selector: str, value: Callable[[float], float]) -> Series:
    return {selector: value, 'up{instance="cache-0:9090",job="lmcache"}': lambda _: 1}


def joined(text: str, *more: Series) -> str:
    times = sorted({float(t) for t in re.findall(r"^\S+ \S+ (\d+(?:\.\d+)?)$", text, re.MULTILINE)})
    every = {selector: value for series in more for selector, value in series.items()}
    lines = [f"{selector} {value(t - times[0])} {t}" for selector, value in every.items() for t in times]
    return text.replace("# EOF\n", "\n".join(lines) + "\n# EOF\n")


IN_PROCESS = 'lmcache:local_cpu_evict_failed_count_total{instance="cache-0:9090",job="lmcache",worker_id="0"}'
PUTS = 'lmcache:put_failed_count{instance="cache-0:9090",job="lmcache",worker_id="0"}'
SERVER = 'lmcache_mp_l1_allocation_failure_chunks_total{instance="cache-0:9090",job="lmcache",otel_scope_name="x"}'
NODE = {"instance": "node-a:9100"}


@pytest.mark.parametrize(
    ("series", "resource", "member"),
    [
        ([port("mlx5_0", sent=2e9, resent=8)], "rdma-errors", {**NODE, "device": "mlx5_0"}),
        ([port("mlx5_0", sent=2e9, timeouts=0.5)], "rdma-timeouts", {**NODE, "device": "mlx5_0"}),
        ([port("mlx5_0", got=8e9, marks=1e5)], "rdma-congestion", {**NODE, "device": "mlx5_0"}),
        ([port("mlx5_0", sent=45e9), port("mlx5_1", sent=1e4)], "rdma-one-rail", {**NODE, "device": "mlx5_0"}),
        ([tier(SERVER, lambda t: 5 + t / 2)], "tier-allocation", {"instance": "cache-0:9090"}),
        ([tier(IN_PROCESS, lambda t: 5 + t / 2)], "tier-evictions", {"instance": "cache-0:9090"}),
        ([tier(PUTS, lambda t: 5 + t // 5)], "tier-stores", {"instance": "cache-0:9090"}),
    ],
)
def test_a_trouble_that_no_playbook_knows_is_unexplained_and_not_healthy(
    calm: str,
    series: list[Series],
    resource: str,
    member: Mapping[str, str],
    playbooks: list[Playbook],
    rules: RuleSet,
) -> None:
    diagnosis = diagnose_text(joined(calm, *series), playbooks, rules)
    assert diagnosis.verdict is Overall.UNKNOWN
    assert [(u.resource, dict(u.member)) for u in diagnosis.unexplained] == [(resource, dict(member))]


@pytest.mark.parametrize(
    "series",
    [
        pytest.param([port("mlx5_0", sent=20e9, got=20e9), port("mlx5_1", sent=18e9)], id="both rails work"),
        pytest.param([port("mlx5_0", sent=45e9), port("mlx5_1", state=1)], id="the other port is down"),
        pytest.param([port("mlx5_0", sent=5e9), port("mlx5_1")], id="little traffic on one rail"),
        pytest.param([port("mlx5_0", sent=45e9), port("mlx5_0", "node-b:9100")], id="idle port of another host"),
        pytest.param([port("mlx5_0", got=8e9, marks=50)], id="a mark now and then"),
        pytest.param([port("mlx5_0", got=1e3, marks=20)], id="marks without traffic"),
        pytest.param([port("mlx5_0", sent=8e9, disorder=5e3)], id="reordered by spraying"),
        pytest.param([tier(SERVER, lambda t: 5 + (t > 100))], id="one failed allocation"),
        pytest.param([tier(IN_PROCESS, lambda t: 2000)], id="failures of long ago"),
    ],
)
def test_what_a_working_fabric_and_tier_do_is_healthy(
    calm: str, series: list[Series], playbooks: list[Playbook], rules: RuleSet
) -> None:
    diagnosis = diagnose_text(joined(calm, *series), playbooks, rules)
    assert (diagnosis.verdict, diagnosis.unexplained) == (Overall.HEALTHY, ())
