"""The simulated page has a real engine's names, labels and bounds."""

from __future__ import annotations

import json
import re
from pathlib import Path
from random import Random

import pytest
from prometheus_client.parser import text_string_to_metric_families

from playbooks.lab.config import EngineConfig
from playbooks.lab.exposition import ProcessFacts, classic_text, engine_families, process_families
from playbooks.lab.scheduler import Engine
from playbooks.lab.workload import Lengths, Stream, Unique

ROOT = Path(__file__).parents[3]
REAL = ROOT / "tests" / "fixtures" / "vllm" / "unique-prefixes.txt"
CATALOGUE = ROOT / ".." / "shared" / "engine_metrics.json"
LEFT_OUT = re.compile(r"_created$|^python_|^process_(virtual|open|max)|^http_(request|response)_")


def _page(residency: int = 0, transfers: bool = False) -> str:
    rng = Random(1)
    engine = Engine(EngineConfig(800, residency_sample=residency, transfers=transfers, max_model_len=1024), rng)
    Stream(5.0, Unique(Lengths(300)), Lengths(40), rng).attach(engine, 0.0)
    engine.advance(20.0)
    facts = ProcessFacts(1.7e9, 12.5, 6e9)
    return classic_text([*engine_families(engine, "tiny"), *process_families(facts, engine.meters)])


def _families(page: str) -> dict[str, tuple[str, frozenset[str], frozenset[str]]]:
    """Name → (type, label names, bounds)."""
    found = {}
    for family in text_string_to_metric_families(page):
        labels = frozenset(label for sample in family.samples for label in sample.labels)
        bounds = frozenset(sample.labels["le"] for sample in family.samples if "le" in sample.labels)
        found[family.name] = (family.type, labels, bounds)
    return found


def test_a_real_parser_reads_the_page_and_its_sums_agree() -> None:
    samples = {
        s.name: s.value for f in text_string_to_metric_families(_page()) for s in f.samples if "le" not in s.labels
    }
    assert samples["vllm:time_to_first_token_seconds_count"] > 20
    assert samples["process_cpu_seconds_total"] == 12.5
    assert samples["vllm:prompt_tokens_total"] > 5000


def test_names_types_labels_and_bounds_are_those_of_a_real_engine() -> None:
    real, ours = _families(REAL.read_text()), _families(_page())
    expected = {name: shape for name, shape in real.items() if not LEFT_OUT.search(name)}
    assert set(ours) == set(expected)
    for name, shape in expected.items():
        if name == "vllm:cache_config_info":
            assert ours[name][1] < shape[1], "its labels are a part of the real ones"
        else:
            assert ours[name] == shape, name


def test_optional_families_are_catalogued() -> None:
    if not CATALOGUE.exists():
        pytest.skip("../shared/engine_metrics.json is not here")
    known = {entry["name"].removesuffix("_total") for entry in json.loads(CATALOGUE.read_text())}
    ours = {name for name in _families(_page(residency=1, transfers=True)) if name.startswith("vllm:")}
    assert len(ours) > 40
    assert ours - known - set(_families(REAL.read_text())) == set()
