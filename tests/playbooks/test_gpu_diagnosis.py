"""The playbooks of a GPU beyond their fixtures: default counters, look-alikes by name, two sources at once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from playbooks.lab.shelf import Shelf
from playbooks.lab.trim import trim
from playbooks.playbook import Playbook
from playbooks.rehearse import diagnose_text
from playbooks.verdict import Diagnosis, Finding, Overall, Verdict
from probes.rules import RuleSet

OURS = frozenset(
    (
        "hbm-bandwidth-bound", "clock-throttle", "launch-bound", "pcie-downtrained", "pcie-saturated-by-offload",
        "pcie-signal-errors", "nvlink-errors", "block-table-upload",
    )
)  # fmt: skip
BEYOND_DEFAULT = (
    "DCGM_FI_DEV_MAX_SM_CLOCK", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_ENFORCED_POWER_LIMIT",
    "DCGM_FI_DEV_POWER_VIOLATION", "DCGM_FI_DEV_THERMAL_VIOLATION", "DCGM_FI_DEV_PCIE_*LINK_*", "DCGM_FI_*NVLINK*",
)  # fmt: skip
"""What dcgm-exporter's own list leaves out."""
SEPARATED = {
    "hbm-bandwidth-bound": {"launch-bound", "prefill-interference", "preemption-thrash"},
    "clock-throttle-power": {"hbm-bandwidth-bound", "launch-bound"},
    "pcie-saturated-by-offload": {"pcie-downtrained", "pcie-signal-errors", "launch-bound"},
    "pcie-downtrained": {"pcie-signal-errors"},
    "pcie-downtrained-offload": {"pcie-signal-errors", "pcie-saturated-by-offload"},
    "pcie-signal-errors": {"engine-crash"},
    "launch-bound": {"hbm-bandwidth-bound", "host-cpu-starved", "pcie-saturated-by-offload", "stuck-transfer"},
    "store-block-table-upload": {"bitmap-sync", "launch-bound"},
}
"""By scene: which look-alikes the finding says that it is not."""


class Ward:
    """Scenes of the lab, diagnosed."""

    def __init__(self, shelf: Shelf, playbooks: list[Playbook], rules: RuleSet) -> None:
        self.shelf, self.playbooks, self.rules = shelf, playbooks, rules

    def text(self, text: str) -> Diagnosis:
        return diagnose_text(text, self.playbooks, self.rules)

    def scene(self, name: str, drop: tuple[str, ...] = ()) -> Diagnosis:
        text = self.shelf.composed(name).text
        return self.text(trim(text, drop=drop) if drop else text)


@pytest.fixture(scope="module")
def ward(shelf_folder: Path, playbooks: list[Playbook], rules: RuleSet) -> Ward:
    return Ward(Shelf(shelf_folder), playbooks, rules)


def found(diagnosis: Diagnosis, cause: str) -> Finding:
    return next(f for f in diagnosis.findings if f.cause == cause)


@pytest.mark.parametrize("name", SEPARATED)
def test_a_finding_says_which_look_alikes_it_is_not(name: str, ward: Ward) -> None:
    truth = ward.shelf.composed(name).truth
    one = found(ward.scene(name), truth.cause)
    assert SEPARATED[name] <= {refuted.cause for refuted in one.refuted}
    assert one.cost


@pytest.mark.parametrize("name", ["healthy-gpu-counters", "healthy-memory-busy", "healthy-power-capped"])
def test_with_the_default_counters_nothing_is_found_and_nothing_called_excluded(name: str, ward: Ward) -> None:
    diagnosis = ward.scene(name, BEYOND_DEFAULT)
    assert diagnosis.verdict is Overall.HEALTHY
    undecided = {one.cause for one in diagnosis.unknown}
    assert {"clock-throttle", "pcie-downtrained", "nvlink-errors"} <= undecided
    assert all(one.missing and one.enable for one in diagnosis.unknown if one.cause in OURS)


def test_without_reasons_a_clock_that_fell_is_only_suspected(ward: Ward) -> None:
    truth = ward.shelf.composed("clock-throttle-heat").truth
    one = found(ward.scene("clock-throttle-heat", BEYOND_DEFAULT), "clock-throttle")
    assert one.verdict is Verdict.SUSPECTED
    assert truth.member.items() <= one.member.items()


def test_a_clock_that_somebody_set_is_neither_power_nor_heat(ward: Ward) -> None:
    """The same slower device, and the driver says that a user fixed its clocks."""
    text = ward.shelf.composed("clock-throttle-heat").text
    line = re.compile(r"^(DCGM_FI_DEV_CLOCKS_EVENT_REASONS\{.*\}) \S+ (\S+)$", re.MULTILINE)
    fixed = trim(line.sub(r"\1 2.0 \2", text), drop=["DCGM_FI_DEV_THERMAL_VIOLATION"])
    assert "clock-throttle" not in {f.cause for f in ward.text(fixed).findings}


def test_the_worst_link_speaks_and_its_device_alone_is_named(ward: Ward) -> None:
    diagnosis = ward.scene("nvlink-errors-by-link")
    assert [f.cause for f in diagnosis.findings] == ["nvlink-errors"]
    assert diagnosis.findings[0].evidence[0].value > 100


def test_a_device_that_two_sources_tell_of_counts_its_bytes_once(ward: Ward) -> None:
    """The same link, told by dcgm-exporter and by the target `nvml`."""
    text = ward.shelf.composed("pcie-saturated-by-offload").text
    twice = []
    for line in text.splitlines():
        twice.append(line)
        if line.startswith("DCGM_FI_PROF_PCIE_RX_BYTES{"):
            renamed = line.replace("DCGM_FI_PROF_PCIE_RX_BYTES", "kvscope_nvml_pcie_receive_bytes_per_second")
            twice.append(re.sub(r'instance="([^":]+):9400",job="dcgm"', r'instance="\1",job="nvml"', renamed))
    added = [line for line in twice if line.startswith("kvscope_nvml_")]
    kept = [line for line in twice if not line.startswith(("kvscope_nvml_", "# EOF"))]
    both = "\n".join([*kept, "# TYPE kvscope_nvml_pcie_receive_bytes_per_second gauge", *added, "# EOF", ""])
    assert len(added) > 100
    single, double = (found(ward.text(t), "pcie-saturated-by-offload") for t in (text, both))
    share = [next(e.value for e in one.evidence if e.test == "loads_of_kv") for one in (single, double)]
    assert share[0] == pytest.approx(share[1], rel=0.01)


def test_where_labels_say_which_pod_has_which_device_no_other_is_blamed(ward: Ward) -> None:
    """The memory of both is at its limit, and one engine got slower; without the labels both would be named."""
    truth = ward.shelf.composed("hbm-bandwidth-bound-pods").truth
    told = ward.scene("hbm-bandwidth-bound-pods").findings
    assert [dict(f.member) for f in told] == [truth.member]
    text = ward.shelf.composed("hbm-bandwidth-bound-pods").text
    bare = re.sub(r',(exported_)?pod="[^"]*"', "", text)
    assert bare != text
    assert [f.cause for f in ward.text(bare).findings] == ["hbm-bandwidth-bound"] * 2


@pytest.mark.parametrize("scene", ["clock-throttle-heat", "pcie-saturated-by-offload", "launch-bound"])
def test_what_engines_feel_is_shown_under_the_device(scene: str, ward: Ward) -> None:
    diagnosis = ward.scene(scene)
    assert next(check.bad for check in diagnosis.core if check.name == "latency") is True
    assert diagnosis.unexplained == ()


def test_a_store_without_tables_on_a_device_is_not_asked_about_them(ward: Ward) -> None:
    diagnosis = ward.scene("store-bitmap-sync")
    assert "block-table-upload" not in {one.cause for one in diagnosis.unknown}
    assert "block-table-upload" not in {one.cause for one in diagnosis.refuted}
