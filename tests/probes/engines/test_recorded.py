"""A recorded canonical series and the inlined expression are the same, by Prometheus' own evaluation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from probes.promql.ast import quote
from probes.rules import Rule, RuleSet

ENGINES = Path(__file__).parents[3] / "probes" / "engines"
FILES = sorted(ENGINES.glob("*.rules.yml"))

# Every kind of reading of a canonical series with a scale, a static label, a relabelled label and an alternative.
FUNCTIONS = [
    "rate", "increase", "delta", "irate", "idelta", "deriv", "changes", "resets",
    "avg_over_time", "min_over_time", "max_over_time", "sum_over_time", "count_over_time", "last_over_time",
    "stddev_over_time", "stdvar_over_time", "present_over_time",
]  # fmt: skip
RULES = """\
groups:
  - name: own
    rules:
      - record: kv:gpu_utilization_ratio
        expr: >-
          0.01 * util or label_replace(2 * label_replace(old_util{real="yes"}, "real", "", "", ""),
          "gpu", "$1", "index", "(.+)")
        labels: {system: own}
      - record: kv:gpu_utilization_ratio
        expr: other_util
        labels: {system: other, real: ""}
"""
SERIES = {
    'util{gpu="0", instance="a"}': "10+3x10 5+7x10",
    'util{gpu="1", instance="a"}': "80-2x20",
    'old_util{gpu="0", instance="a", real="yes"}': "1+1x20",  # shadowed by util where its labels are the same
    'old_util{index="7", instance="b", real="yes"}': "1 4 2 8 5 7 1 4 2 8 5 7 1 4 2 8 5 7 1 4 2",
    'old_util{index="8", instance="b", real="no"}': "9x20",
    'old_util{gpu="9", instance="c", real="yes"}': "3+0.5x20",
    'other_util{gpu="0", instance="a", real="x"}': "0.5+0.25x20",
}
MATCHERS = [
    "", '{gpu="7"}', '{gpu!="7"}', '{gpu=~"0|9"}', '{system="own"}', '{system!~"own|x"}', '{index="7"}', '{real=""}',
    '{gpu="0", instance="a", system=~"o.*"}',
]  # fmt: skip
SHAPES = [
    "sum by (gpu) (X)", "max without (instance) (X * 2)", "topk(2, X)", "count by (system) (X > 0)", "sum(X)",
    "sum by (instance, gpu) (rate(X[1m])) / on (instance) group_left () sum by (instance) (X)",
    "X / on (gpu, instance, system, index) X", "count by (__name__) (X)", "max_over_time(sum by (gpu) (X)[1m:15s])",
    'label_replace(X, "where", "$1", "system", "(.*)")', "X and on (system) (X > 0.01)",
]  # fmt: skip


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_promtool_accepts_the_file(file: Path, check_rules: Callable[[Path], str]) -> None:
    assert "SUCCESS" in check_rules(file)


def test_each_packaged_record_equals_its_inlined_form(
    tmp_path: Path, assert_recorded_equals_inlined: Callable[..., None]
) -> None:
    rules = RuleSet.load()
    series = {s: "1+3x20" for rule in rules.rules for s in inputs(rule)}
    asked = [shape.format(rule.record) for rule in rules.rules for shape in ("{}", "sum by (instance, engine) ({})")]
    assert len(asked) > 300
    assert_recorded_equals_inlined(rules, FILES, series, dict.fromkeys(asked), tmp_path)


def test_each_function_equals_its_pushed_form(
    tmp_path: Path, assert_recorded_equals_inlined: Callable[..., None]
) -> None:
    file = tmp_path / "own.rules.yml"
    file.write_text(RULES)
    name = "kv:gpu_utilization_ratio"
    asked = [f"{function}({name}[2m])" for function in FUNCTIONS]
    asked += [f"quantile_over_time(0.3, {name}[2m])", f"predict_linear({name}[2m], 60)"]
    asked += [f"rate({name}{matchers}[2m] offset 30s)" for matchers in MATCHERS]
    asked += [f"{name}{matchers}" for matchers in MATCHERS]
    asked += [f"{name} offset 1m", f"max_over_time({name}[2m:15s])", f"sum by (system) ({name}) > 1", f"-{name}"]
    for matchers in ("", '{system="own"}', '{system="other"}'):
        asked += [shape.replace("X", name + matchers) for shape in SHAPES]
    asked += ['absent(kv:gpu_utilization_ratio{gpu="77", instance!="b"})']
    asked += ['absent_over_time(kv:gpu_utilization_ratio{gpu="77", instance!="b"}[2m])']
    rules = only(file)
    assert_recorded_equals_inlined(rules, [file], SERIES, asked, tmp_path)


def only(file: Path) -> RuleSet:
    """The packaged vocabulary with the rules of one file."""
    loaded = RuleSet.load([file])
    return RuleSet(loaded.vocabulary, [r for r in loaded.rules if r.file == str(file)])


def inputs(rule: Rule) -> list[str]:
    """For each alternative a series that it selects, with the labels that its relabelling reads."""
    found = []
    for alternative in rule.alternatives:
        labels = {"instance": "pod-1:8000", "job": "engine", "model_name": "m", "engine": "0"}
        if rule.record.endswith("_bucket"):
            labels["le"] = "+Inf"
        labels |= {r.source: f"some-{r.source}" for r in alternative.relabels if r.source}
        labels |= {m.name: m.value for m in alternative.selector.matchers}
        inside = ", ".join(f"{k}={quote(v)}" for k, v in labels.items())
        found.append(f"{alternative.selector.name}{{{inside}}}")
    return found
