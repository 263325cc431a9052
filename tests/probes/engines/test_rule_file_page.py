"""The examples of docs/reference/rule-files.md are rule files that load and that Prometheus takes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from probes.promql.parse import parse
from probes.rules import RuleSet

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "rule-files.md"


def test_the_examples_work(tmp_path: Path, check_rules: Callable[[Path], str]) -> None:
    first, second, vocabulary = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for name, text in (("a.rules.yml", first), ("b.rules.yml", second), ("canonical.yml", vocabulary)):
        (tmp_path / name).write_text(text)
    loaded = RuleSet.load([tmp_path])
    asked = 'sum by (reason) (rate(kv:requests_finished_total{system="myengine", reason="stop"}[5m]))'
    assert 'rate(myengine_done_total{internal!="yes",why="stop"}[5m])' in str(loaded.expand(parse(asked)))
    assert loaded.canonical("kv:pool_spilled_blocks").unit == "blocks"
    for name in ("a.rules.yml", "b.rules.yml"):
        assert "SUCCESS" in check_rules(tmp_path / name)
