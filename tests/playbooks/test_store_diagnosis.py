"""A store alone: healthy ones are silent, each trouble is named with its member, the rest is unexplained."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from playbooks.lab.scenarios import scenario_names
from playbooks.lab.shelf import Shelf
from playbooks.lab.trim import trim
from playbooks.playbook import Playbook
from playbooks.rehearse import diagnose_text
from playbooks.verdict import Diagnosis, Overall
from probes.rules import RuleSet

STORE = [name for name in scenario_names() if name.startswith("store-")]
HEALTHY = [name for name in STORE if name.startswith("store-healthy")]
TROUBLES = [name for name in STORE if name not in HEALTHY and name != "store-slow-host"]
LOOKALIKES = {
    "store-external-fragmentation": {"kv-capacity-exhausted", "pool-leak"},
    "store-bitmap-sync": {"launch-bound"},
    "store-wal-stall": {"host-cpu-starved", "hot-shard"},
    "store-session-leak": {"traffic-surge"},
    "store-ttl-too-short": {"prefix-capacity-miss", "prefix-key-unstable"},
    "store-hot-shard": {"stalled-shard"},
    "store-stalled-shard": {"engine-crash"},
    "store-capacity-exhausted": {"external-fragmentation", "pool-leak", "internal-fragmentation"},
    "store-over-tcp": {"wrong-rail"},
    "store-scattered": {"external-fragmentation"},
    "store-crash": {"stalled-shard"},
    "store-page-gone": {"stalled-shard"},
}


class Doctor:
    """Diagnoses recordings of the shelf."""

    def __init__(self, shelf: Shelf, playbooks: list[Playbook], rules: RuleSet) -> None:
        self.shelf, self.playbooks, self.rules = shelf, playbooks, rules

    def text(self, text: str) -> Diagnosis:
        return diagnose_text(text, self.playbooks, self.rules)

    def scene(self, name: str, seed: int = 0) -> Diagnosis:
        return self.text(self.shelf.composed(name, seed).text)


@pytest.fixture
def doctor(shelf_folder: Path, playbooks: list[Playbook], rules: RuleSet) -> Doctor:
    return Doctor(Shelf(shelf_folder), playbooks, rules)


def test_a_shard_gets_a_shards_advice(doctor: Doctor) -> None:
    """What an engine would be told, switches of its command line among it, does not hold for a shard."""
    shard = doctor.scene("store-capacity-exhausted").findings[0]
    engine = doctor.scene("kv-capacity-exhausted", 1).findings[0]
    assert shard.cause == engine.cause
    assert shard.title == "The shard's pool is full and puts are refused"
    assert engine.title == "The KV pool is full and requests queue for it"
    assert not any("gpu_memory_utilization" in remedy for remedy in shard.remedies)
    assert any("gpu_memory_utilization" in remedy for remedy in engine.remedies)
    assert shard.member["instance"] in shard.confirm[0].command
    assert "kv_pool_blocks" in shard.confirm[0].command


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_store_without_an_engine_beside_it_is_decided_healthy(name: str, doctor: Doctor) -> None:
    diagnosis = doctor.scene(name)
    assert diagnosis.findings == ()
    assert diagnosis.unexplained == ()
    assert diagnosis.verdict is Overall.HEALTHY
    assert diagnosis.exit_code() == 0
    assert {c.name for c in diagnosis.core} == {"capacity", "queue", "latency", "freshness"}


@pytest.mark.parametrize("name", TROUBLES)
def test_each_trouble_is_found_where_it_is(name: str, doctor: Doctor) -> None:
    truth = doctor.shelf.composed(name, 0).truth
    first = doctor.scene(name).findings[0]
    assert first.cause == truth.cause
    assert truth.member.items() <= first.member.items()
    assert first.cost, "what it costs now"
    assert LOOKALIKES.get(name, set()) <= {refuted.cause for refuted in first.refuted}


@pytest.mark.parametrize("name", ["store-healthy-durable", "store-session-leak"])
def test_what_a_store_has_nothing_of_is_not_listed_as_unknown(name: str, doctor: Doctor) -> None:
    assert doctor.scene(name).unknown == ()


def test_trouble_outside_the_set_is_no_health(doctor: Doctor) -> None:
    diagnosis = doctor.scene("store-slow-host")
    assert diagnosis.findings == ()
    assert diagnosis.verdict is Overall.UNKNOWN
    assert {one.resource for one in diagnosis.unexplained} == {"store-latency"}
    assert diagnosis.exit_code() == 3


def _growing(text: str, series: str, from_s: float, per_s: float) -> str:
    """The recording with one counter that grows from a moment on."""
    lines = text.splitlines()
    times = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("up{")]
    start = min(times)

    def raised(line: str) -> str:
        head, value, time = line.rsplit(" ", 2)
        return f"{head} {float(value) + per_s * max(0.0, float(time) - start - from_s):g} {time}"

    found = [raised(line) if re.match(series, line) else line for line in lines]
    assert found != lines
    return "\n".join([*found, ""])


@pytest.mark.parametrize(
    ("series", "resource"),
    [
        (r'kv_read_blocks_total\{.*result="corrupt".*shard="2"', "store-corrupt-reads"),
        (r'kv_put_refusals_total\{.*reason="checksum".*shard="2"', "store-refusals"),
        (r'kv_wal_failures_total\{.*operation="flush".*shard="2"', "store-log-failures"),
        (r'kv_read_blocks_total\{.*result="torn".*shard="2"', "store-lost-leases"),
        (r'kv_operations_total\{.*op="lookup".*result="error".*shard="2"', "store-errors"),
    ],
)
def test_the_sweep_sees_each_resource_of_a_store(series: str, resource: str, doctor: Doctor) -> None:
    text = _growing(doctor.shelf.composed("store-healthy-durable", 0).text, series, 150, 40.0)
    diagnosis = doctor.text(text)
    assert resource in {one.resource for one in diagnosis.unexplained}
    assert all(one.member["shard"] == "2" for one in diagnosis.unexplained)
    assert diagnosis.verdict is Overall.UNKNOWN


@pytest.mark.parametrize("family", ["kv_pool_usage_ratio", "kv_inflight_operations", "up"])
def test_without_a_family_of_the_core_set_nothing_is_called_healthy(family: str, doctor: Doctor) -> None:
    text = trim(doctor.shelf.composed("store-healthy", 0).text, drop=[family])
    diagnosis = doctor.text(text)
    assert diagnosis.findings == ()
    assert diagnosis.verdict is Overall.UNKNOWN


def test_who_comes_after_the_stall_still_learns_which_shard_it_is(doctor: Doctor) -> None:
    made = doctor.shelf.composed("store-stalled-shard", 0)
    onset = made.truth.onset_s
    assert onset is not None
    diagnosis = doctor.text(trim(made.text, start_s=onset + 20))
    first = diagnosis.findings[0]
    assert (first.cause, first.member["shard"]) == ("stalled-shard", made.truth.member["shard"])


def test_one_shard_alone_needs_no_peers_to_be_healthy(doctor: Doctor) -> None:
    made = doctor.shelf.composed("store-healthy", 0)
    instances = sorted(set(re.findall(r'instance="(store-[^"]+)"', made.text)))
    shards = [name for name in instances if not name.endswith(":9100")]
    diagnosis = doctor.text(trim(made.text, without=shards[1:], drop=["kv_peer_*"]))
    assert diagnosis.verdict is Overall.HEALTHY
