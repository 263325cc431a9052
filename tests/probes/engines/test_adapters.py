"""The packaged engine files: every name is real, every canonical entry is filled with what it says."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from probes.nvml.names import HELP as NVML_HELP
from probes.rdma.page import Reader
from probes.rdma.tree import SysfsTree
from probes.rules import CanonicalEntry, Rule, RuleSet
from tests.fixtures.kvstore import page as store
from tests.probes import sysfs_trees
from tests.probes.dcgm_names import RENAMED, counters

ENGINES = Path(__file__).parents[3] / "probes" / "engines"
SHARED = Path(__file__).parents[3] / ".." / "shared"
SUFFIXES = ("_bucket", "_sum", "_count")

# What is no metric of an engine: the scraper's own series.
SYNTHETIC = {
    "up": "gauge",
    "scrape_duration_seconds": "gauge",
    "scrape_samples_scraped": "gauge",
    "kvscope_scrape_samples_changed": "gauge",
}
# node_exporter 1.11, collectors infiniband, netdev and netclass: not in the catalogue.
NODE = dict.fromkeys(
    (
        "node_infiniband_port_packets_received_total",
        "node_infiniband_port_packets_transmitted_total",
        "node_network_receive_packets_total",
        "node_network_transmit_packets_total",
        "node_network_receive_drop_total",
        "node_network_carrier_down_changes_total",
    ),
    "counter",
)
# On the page of a shard that is reached by nixl, too; the page that is written by hand is of one that is not.
AFAR = dict.fromkeys(("kv_transfer_seconds", "kv_transfer_bytes", "kv_transfer_descriptors"), "histogram")
# What only a store on a device has: what it sends there.
UPLOADS = dict.fromkeys(
    ("kv_device_uploads_total", "kv_device_upload_bytes_total", "kv_device_upload_seconds_total"), "counter"
)
# Units of the catalogue that are another word for ours, and those that a rule's scale turns into ours.
WORDS = {
    "ratio 0-1": "ratio",
    "ratio": "ratio",
    "count": "preemptions",
    "bytes/s": "bytes_per_second",
    "stores / blocks": "blocks",
    "ratio / pages": "ratio",
    "bytes / descriptors": None,
    "bytes / seconds": None,
    "ops / keys / keys / bytes": None,
    "events": None,
    "info": None,
    "NAKs": "naks",
    "bytes/s / id": None,
    "bytes / ratio": None,
    "chunks / events": "chunks",
    "events / keys": None,
    "events / flag": None,
    "see DCGM": None,
}
SCALED = {("%", 0.01): "ratio", ("MiB", 1048576.0): "bytes"}


@cache
def rules() -> RuleSet:
    return RuleSet.load()


def references() -> Iterator[tuple[Rule, CanonicalEntry, str, float]]:
    for rule in rules().rules:
        for alternative in rule.alternatives:
            assert alternative.selector.name
            yield rule, rules().canonical(rule.record), alternative.selector.name, alternative.scale


@cache
def catalogue() -> dict[str, dict[str, object]]:
    path = SHARED / "engine_metrics.json"
    if not path.exists():
        pytest.skip("the engines' metric catalogue (../shared/engine_metrics.json) is not here")
    entries = json.loads(path.read_text())
    old = {str(entry["renamed_from"]): entry for entry in entries if entry.get("renamed_from")}
    return old | {entry["name"]: entry for entry in entries}


@cache
def seen_types() -> dict[str, str]:
    """Family name (as exposed, with _total) → type, from the real page and the recordings."""
    found: dict[str, str] = {}
    pages = [*SHARED.glob("pages/*.txt"), *SHARED.glob("cases/*.om")]
    if not pages:
        pytest.skip("no pages or recordings in ../shared")
    for page in pages:
        for name, kind in re.findall(r"^# TYPE (\S+) (\w+)$", page.read_text(), re.MULTILINE):
            exposed = f"{name}_total" if kind == "counter" and page.suffix == ".om" else name
            found[exposed] = kind
    return found


@cache
def store_types() -> dict[str, str]:
    """Family name (as exposed, with _total or _info) → type, on a page of the store."""
    ends = {"counter": "_total", "info": "_info"}
    kinds = {"info": "gauge"}
    found = re.findall(r"^# TYPE (\S+) (\w+)$", store.page(store.healthy(), 60.0), re.MULTILINE)
    return {name + ends.get(kind, ""): kinds.get(kind, kind) for name, kind in found}


@cache
def sysfs_types() -> dict[str, str]:
    """Name → type, as the target `rdma` tells an mlx5, a bnxt_re and an rxe port."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        sysfs_trees.mlx5(root)
        sysfs_trees.bnxt(root)
        sysfs_trees.lay(root, "healthy_rc-a-after")
        page = Reader(SysfsTree.at(root)).read().page.decode()
    return dict(re.findall(r"^# TYPE (\S+) (\w+)$", page, re.MULTILINE))


@cache
def dcgm_types() -> dict[str, str]:
    """Field → type, of our counters for dcgm-exporter; a field's new name is of its old one's type."""
    types = {name: one.type for name, one in counters().items()}
    return types | {new: types[old] for new, old in RENAMED.items() if old in types}


@cache
def nvml_types() -> dict[str, str]:
    """Name → type, as the target `nvml` tells them."""
    return {name: "counter" if name.endswith("_total") else "gauge" for name in NVML_HELP}


@cache
def info_gauges() -> set[str]:
    listed = yaml.safe_load((ENGINES / "info_labels.yml").read_text())
    return {f"{info}:{label}" for info, entry in listed.items() for label in entry["labels"]}


def family(name: str, entry: CanonicalEntry) -> str:
    if entry.type != "histogram":
        return name
    suffix = next(s for s in SUFFIXES if name.endswith(s))
    return name.removesuffix(suffix)


def test_every_raw_name_is_known_with_the_type_of_its_canonical_entry() -> None:
    wrong = []
    for rule, entry, name, _ in references():
        metric = family(name, entry)
        if metric in info_gauges() or metric in SYNTHETIC:
            kind = "gauge"
        elif metric in catalogue():
            kind = str(catalogue()[metric]["type"])
        else:
            known = store_types() | sysfs_types() | dcgm_types() | nvml_types() | NODE | AFAR | UPLOADS
            kind = known.get(metric) or seen_types().get(metric, "nowhere to be found")
        if kind != entry.type and not (kind == "unknown" and entry.type == "counter"):
            wrong.append(f"{rule.file}:{rule.line}: {metric} is {kind}, {entry.name} a {entry.type}")
    assert not wrong


def test_units_agree_with_the_catalogue() -> None:
    wrong = []
    for rule, entry, name, scale in references():
        known = catalogue().get(family(name, entry))
        if known is None:
            continue
        unit = str(known["unit"]).split(" (")[0]
        mine = SCALED.get((unit, scale), WORDS.get(unit, unit) if scale == 1 else "a scaled " + unit)
        if mine is not None and mine != entry.unit:
            wrong.append(f"{rule.file}:{rule.line}: {name} in {unit} times {scale:g} is no {entry.unit}")
    assert not wrong


def test_histograms_have_all_three_series_from_the_same_histogram() -> None:
    for entry in rules().vocabulary:
        if entry.type == "histogram":
            families = [
                [family(raw, entry) for rule in rules().rules_of(series) for raw in rule.raw_names]
                for series in entry.series
            ]
            assert families[0] == families[1] == families[2], entry.name
            for series, suffix in zip(entry.series, SUFFIXES, strict=True):
                assert all(name.endswith(suffix) for name in rules().sources(series)), series


def test_every_canonical_name_has_a_source() -> None:
    assert [e.name for e in rules().vocabulary if not rules().sources(e.name)] == []


def test_what_vllm_still_shows_is_used_or_left_out_on_purpose() -> None:
    """A family of the real page that no rule reads is one that somebody decided about."""
    page = SHARED / "pages" / "vllm-0.32.0-cpu.txt"
    if not page.exists():
        pytest.skip("the real vLLM page (../shared/pages) is not here")
    shown = set(re.findall(r"^# TYPE (vllm:\S+) (?:gauge|counter|histogram)$", page.read_text(), re.MULTILINE))
    shown = {n for n in shown if not n.endswith("_created")}
    read = {family(name, entry).split(":cache_config_info:")[0] for _, entry, name, _ in references()}
    read = {n if n != "vllm" else "vllm:cache_config_info" for n in read}
    assert shown - read == {
        "vllm:estimated_flops_per_gpu_total",  # no signal of the cache
        "vllm:mm_cache_queries_total",  # multimodal inputs, not KV
        "vllm:mm_cache_hits_total",
        "vllm:request_max_num_generation_tokens",  # equal to the output length unless n > 1
        "vllm:request_params_n",
        "vllm:request_params_max_tokens",
    }


def test_each_engine_sets_its_system() -> None:
    """Everything but process.rules.yml, which holds for every target, says which system a series comes from."""
    for rule in rules().rules:
        assert ("system" in dict(rule.labels)) == (rule.file != "process.rules.yml"), rule.record
