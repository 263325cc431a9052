"""The packed rule files say what the YAML files say, and are not believed when those have changed."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from probes.rules import RuleSet
from probes.rules import packed as packing


def test_the_packed_file_is_what_the_yaml_files_say() -> None:
    found = packing.packed()
    assert found is not None, "engines/packed.json is out of date: run `python -m probes.rules.packed`"
    read = RuleSet._read(())
    loaded = RuleSet.load()
    assert loaded.rules == read.rules
    assert list(loaded.vocabulary) == list(read.vocabulary)
    assert [str(rule.expr) for rule in loaded.rules] == [str(rule.expr) for rule in read.rules]
    assert found.info == yaml.safe_load((packing.ENGINES / "info_labels.yml").read_text("utf-8"))


@pytest.mark.parametrize("damage", ["changed", "broken", "gone"])
def test_a_packed_file_that_does_not_fit_is_left_alone(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for source in packing.ENGINES.glob("*.yml"):
        (tmp_path / source.name).write_bytes(source.read_bytes())
    if damage != "gone":
        text = packing.FILE.read_text("utf-8")
        (tmp_path / "packed.json").write_text(text if damage == "changed" else text[:1000], "utf-8")
    monkeypatch.setattr(packing, "ENGINES", tmp_path)
    monkeypatch.setattr(packing, "FILE", tmp_path / "packed.json")
    packing.packed.cache_clear()
    try:
        if damage == "changed":
            assert packing.packed() is not None
            packing.packed.cache_clear()
            vllm = tmp_path / "vllm.rules.yml"
            vllm.write_text(vllm.read_text("utf-8") + "# one more line\n", "utf-8")
        assert packing.packed() is None
    finally:
        packing.packed.cache_clear()
