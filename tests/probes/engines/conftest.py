"""Runs rule files through Prometheus' own rule evaluation (promtool test rules)."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest
import yaml

from probes.promql.parse import parse
from probes.rules import RuleSet

INTERVAL_S = 15


@pytest.fixture
def check_rules() -> Callable[[Path], str]:
    """What ``promtool check rules`` says of a file; fails the test if it refuses it."""
    return _check_rules


@pytest.fixture
def assert_recorded_equals_inlined() -> Callable[..., None]:
    return _assert_recorded_equals_inlined


def _check_rules(path: Path) -> str:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")
    done = subprocess.run(["promtool", "check", "rules", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _assert_recorded_equals_inlined(
    rules: RuleSet, files: Iterable[Path], series: Mapping[str, str], asked: Iterable[str], directory: Path
) -> None:
    """``asked`` over recorded kv:* series and its inlined form select the same series with the same values.

    ``series`` maps a selector to promtool's notation of its samples, one every 15 s; both sides are evaluated at 5m.
    """
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")
    cases: list[dict[str, object]] = []
    for text in asked:
        inlined = str(rules.expand(parse(text)))
        differs = f"(({text}) unless ({inlined})) or (({inlined}) unless ({text}))"
        cases += [
            {"expr": differs, "eval_time": "5m", "exp_samples": []},
            {"expr": f"abs(({text}) - ({inlined})) > 1e-9 * abs({text})", "eval_time": "5m", "exp_samples": []},
            {"expr": f"count({inlined}) > bool 0", "eval_time": "5m", "exp_samples": [{"labels": "{}", "value": 1}]},
        ]
    document = {
        "rule_files": [str(f) for f in files],
        "evaluation_interval": f"{INTERVAL_S}s",
        "tests": [
            {
                "interval": f"{INTERVAL_S}s",
                "input_series": [{"series": s, "values": v} for s, v in series.items()],
                "promql_expr_test": cases,
            }
        ],
    }
    path = directory / "recorded_test.yml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    done = subprocess.run(["promtool", "test", "rules", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[:4000]
