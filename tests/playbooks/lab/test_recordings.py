"""Every scenario is a recording that Prometheus takes, the same for the same seed, in which the fault can be seen."""

from __future__ import annotations

import gzip
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from playbooks.lab import scenes_demo
from playbooks.lab.compose import compose, main
from playbooks.lab.fleet import Fleet
from playbooks.lab.scenarios import SCENARIOS, build, scenario_names
from playbooks.lab.shelf import Shelf
from playbooks.lab.trim import families
from playbooks.playbook import load_playbooks

ROOT = Path(__file__).parents[3]
FIXTURES = [fixture for playbook in load_playbooks() for kind in playbook.fixtures.values() for fixture in kind]
DEMO = ROOT / "playbooks" / "recordings" / "demo.om.gz"
SHORT = [name for name in scenario_names() if name != "demo"]
STORE = [name for name in SHORT if name.startswith("store-")]
GPU = [name for name in SHORT if SCENARIOS[name].__module__.startswith("playbooks.lab.scenes_gpu")]
# One page of a store is like another, and so is one of a device: three of each stand for all before promtool.
TOLD = [name for name in SHORT if name not in (*STORE, *GPU)] + [
    "store-healthy-durable",
    "store-healthy-restart",
    "store-crash",
]
TOLD += ["clock-throttle-brake", "nvlink-errors", "pcie-saturated-by-offload"]
CAUSES = {
    "kv-capacity-exhausted", "preemption-thrash", "prefix-key-unstable", "prefix-capacity-miss",
    "internal-fragmentation", "pool-leak", "stuck-transfer", "engine-crash", "traffic-surge", "source-blind", "healthy",
    "external-fragmentation", "bitmap-sync", "wal-stall", "session-leak", "ttl-too-short", "hot-shard",
    "stalled-shard", "wrong-transport", "roce-loss", "descriptor-explosion", "unknown", "hbm-bandwidth-bound",
    "clock-throttle", "launch-bound", "pcie-downtrained", "pcie-saturated-by-offload", "pcie-signal-errors",
    "nvlink-errors", "block-table-upload",
}  # fmt: skip

# Every shard alike: there is no member to name.
STRIKE_ALL = ("store-internal-fragmentation", "store-prefix-capacity-miss")


def _promtool(text: str, folder: Path) -> None:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed")
    path = folder / "recording.om"
    path.write_text(text)
    command = [tool, "tsdb", "create-blocks-from", "openmetrics", str(path), str(folder / "data")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-400:]


@pytest.mark.parametrize("name", TOLD)
def test_prometheus_takes_every_recording(name: str, shelf: Shelf, tmp_path: Path) -> None:
    text = shelf.composed(name, _seed_of(name)).text
    names = [family for family, _lines in families(text)]
    assert len(names) == len(set(names)), "families are contiguous"
    assert text.endswith("\n# EOF\n")
    _promtool(text, tmp_path)


def _seed_of(name: str) -> int:
    """One that a playbook's fixtures play, too: each recording is composed once."""
    played = {fixture.seed for fixture in FIXTURES if fixture.scenario == name}
    return min(played, default=0)


def test_every_cause_has_a_scenario(shelf: Shelf) -> None:
    truths = {name: shelf.composed(name, _seed_of(name)).truth for name in SHORT}
    assert {truth.cause for truth in truths.values()} == CAUSES
    assert not [truth for truth in truths.values() if truth.cause in truth.must_not]
    for name, truth in truths.items():
        everywhere = truth.cause in ("healthy", "traffic-surge", "unknown") or name in STRIKE_ALL
        assert bool(truth.member) != everywhere, name


def test_the_same_seed_gives_the_same_bytes_and_another_does_not() -> None:
    first, again, other = (compose("pool-leak-prefill", seed) for seed in (3, 3, 4))
    assert first == again
    assert first.text != other.text
    assert first.truth.onset_s != other.truth.onset_s or first.truth.member != other.truth.member


def test_scrapes_come_at_the_interval_that_was_asked(shelf: Shelf) -> None:
    text = compose("healthy-idle", 1, interval_s=1).text
    lines = next(lines for name, lines in families(text) if name == "vllm:num_requests_running")
    times = sorted({float(line.rsplit(" ", 1)[1]) for line in lines if line[0] != "#"})
    assert len(times) == 301
    assert {b - a for a, b in pairwise(times)} == {1.0}


def _ground(shelf: Shelf, name: str, what: str) -> tuple[float, float]:
    """The value at the pod at fault, and at its peer."""
    truth = shelf.composed(name).truth
    pod = truth.member["instance"].split(":")[0]
    values = {key.split("/")[0]: value for key, value in truth.ground.items() if key.endswith("/" + what)}
    peer = next(value for key, value in values.items() if key != pod)
    return values[pod], peer


def test_an_infinite_cache_would_not_help_an_unstable_key(shelf: Shelf) -> None:
    for name in ("prefix-key-unstable", "prefix-key-unstable-falls"):
        hit, peer_hit = _ground(shelf, name, "hit_share")
        would, _peer = _ground(shelf, name, "infinite_hit_share")
        assert would - hit < 0.01
        assert peer_hit > hit + 0.25


def test_an_infinite_cache_would_help_a_small_one(shelf: Shelf) -> None:
    for name in ("prefix-capacity-miss", "prefix-capacity-miss-unsampled"):
        hit, peer_hit = _ground(shelf, name, "hit_share")
        would, _peer = _ground(shelf, name, "infinite_hit_share")
        assert would - hit > 0.15
        assert peer_hit - hit > 0.15


def test_large_blocks_are_mostly_empty(shelf: Shelf) -> None:
    waste, peer = _ground(shelf, "internal-fragmentation", "unused_slot_share")
    assert waste > 0.6
    assert peer < 0.1


def test_leaks_are_on_one_pod_only(shelf: Shelf) -> None:
    leaked, peer = _ground(shelf, "pool-leak", "leaked_blocks")
    assert leaked > 1000
    assert peer == 0
    truth = shelf.composed("pool-leak-prefill").truth
    assert sum(value for key, value in truth.ground.items() if key.endswith("/held_blocks")) > 1000


def _values(text: str, family: str, instance: str) -> list[float]:
    lines = next(lines for name, lines in families(text) if name == family)
    return [float(line.rsplit(" ", 2)[1]) for line in lines if f'instance="{instance}"' in line]


def test_a_frozen_page_stays_up_and_never_changes_again(shelf: Shelf) -> None:
    made = shelf.composed("source-blind")
    instance = made.truth.member["instance"]
    assert set(_values(made.text, "up", instance)) == {1.0}
    generated = _values(made.text, "vllm:generation_tokens", instance)
    assert generated[-1] == generated[-20]
    assert generated[10] > generated[0]


def test_a_crash_is_a_minute_without_scrapes_and_counters_from_zero(shelf: Shelf) -> None:
    made = shelf.composed("engine-crash")
    instance = made.truth.member["instance"]
    assert _values(made.text, "up", instance).count(0.0) >= 12
    generated = _values(made.text, "vllm:generation_tokens", instance)
    assert min(generated[-10:]) < generated[0]


def test_an_idle_fleet_has_a_past_but_no_present(shelf: Shelf) -> None:
    text = shelf.composed("healthy-idle").text
    lines = next(lines for name, lines in families(text) if name == "vllm:generation_tokens")
    values = {float(line.rsplit(" ", 2)[1]) for line in lines if line[0] != "#"}
    assert len(values) == 2
    assert min(values) > 10_000


def _fleet(seed: int) -> Fleet:
    return build("healthy-steady", seed).fleet


def test_some_seeds_miss_a_scrape_and_only_up_says_so() -> None:
    fleet = _fleet(0)
    fleet.miss = (Random(1), 0.2)
    text = fleet.record(60, 5).text()
    instance = fleet.pods[0].instance
    missed = _values(text, "up", instance).count(0.0)
    assert missed > 0
    assert len(_values(text, "vllm:num_requests_running", instance)) == 13 - missed


def test_more_target_labels_go_on_every_series_of_a_pod() -> None:
    fleet = _fleet(0)
    fleet.miss, fleet.pod_labels = None, (("namespace", "prod"),)
    text = fleet.record(10, 5).text()
    of_pods = [line for line in text.splitlines() if 'job="vllm"' in line]
    assert len(of_pods) > 500
    assert all('namespace="prod"' in line for line in of_pods)


def test_the_demo_ships_and_is_what_the_lab_makes() -> None:
    assert DEMO.stat().st_size < 400_000
    text = gzip.decompress(DEMO.read_bytes()).decode()
    assert {name for name, _lines in families(text)} == set(scenes_demo.DEMO_FAMILIES)
    assert text == compose("demo", seed=1).text


def test_prometheus_takes_the_demo(tmp_path: Path) -> None:
    _promtool(gzip.decompress(DEMO.read_bytes()).decode(), tmp_path)


def test_the_command_refuses_an_unknown_name_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-thing"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
