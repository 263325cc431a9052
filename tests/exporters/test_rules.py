"""Exported rule files: Prometheus takes them, and they say what the packaged files and the playbooks say."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml

from exporters.rules import alert_name, render_alerts, render_recording_rules, render_rules
from playbooks.playbook import load_playbooks
from probes.promql.parse import parse
from probes.rules import RuleError, RuleSet


@dataclass(frozen=True)
class StubAlert:
    expr: str
    for_: str = "2m"
    severity: str = "warning"
    symptom: bool = False


@dataclass(frozen=True)
class StubPlaybook:
    id: str = "kv-capacity-exhausted"
    title: str = "The pool is full"
    summary: str = 'Every block is held by a live request: "full".'
    member_labels: tuple[str, ...] = ("instance", "engine")
    alert: StubAlert | None = StubAlert("min_over_time(kv:pool_usage_ratio[$window])\n  > 0.98")


OTHERS = [
    StubPlaybook("engine-crash", "Gone: the engine's process died", "#1 of the summaries", (), StubAlert("kv:up == 0")),
    StubPlaybook("no-alert", alert=None),
    StubPlaybook("slow-tokens", alert=StubAlert("increase(kv:inter_token_seconds_sum[$window]) > 1", symptom=True)),
]


@pytest.fixture(scope="module")
def rules() -> RuleSet:
    return RuleSet.load()


def promtool(verb: str, path: Path) -> str:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")
    done = subprocess.run(["promtool", verb, "rules", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[:4000]
    return done.stdout


def test_promtool_accepts_the_whole_export(rules: RuleSet, tmp_path: Path) -> None:
    file = tmp_path / "kvscope.rules.yml"
    file.write_text(render_rules(rules, [StubPlaybook(), *OTHERS]))
    assert f"{len(rules.rules) + 3} rules found" in promtool("check", file)


def test_an_export_without_alerts_is_a_rule_file_too(rules: RuleSet, tmp_path: Path) -> None:
    file = tmp_path / "kvscope.rules.yml"
    file.write_text(render_rules(rules, []))
    assert f"{len(rules.rules)} rules found" in promtool("check", file)
    assert yaml.safe_load(render_alerts([])) == {"groups": []}


def test_recording_rules_come_out_as_they_went_in(rules: RuleSet) -> None:
    text = render_recording_rules(rules)
    read = [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]
    assert [(r["record"], parse(r["expr"]), r.get("labels", {})) for r in read] == [
        (r.record, r.expr, dict(r.labels)) for r in rules.rules
    ]
    assert "# Holds those of both reasons" in text


def test_group_names_are_unique(rules: RuleSet) -> None:
    names = [group["name"] for group in yaml.safe_load(render_rules(rules, [StubPlaybook()]))["groups"]]
    assert len(names) == len(set(names)) > 5


def test_an_alert_carries_cause_member_and_runbook() -> None:
    (group,) = yaml.safe_load(render_alerts([StubPlaybook(), *OTHERS], "https://example.org/runbooks/"))["groups"]
    first, second, third = group["rules"]
    assert first == {
        "alert": "KvscopeKvCapacityExhausted",
        "expr": "min_over_time(kv:pool_usage_ratio[5m]) > 0.98",
        "for": "2m",
        "labels": {"cause": "kv-capacity-exhausted", "severity": "warning"},
        "annotations": {
            "summary": "The pool is full (instance {{ $labels.instance }}, engine {{ $labels.engine }})",
            "description": 'Every block is held by a live request: "full". Value: {{ $value | humanize }}.',
            "runbook_url": "https://example.org/runbooks/kv-capacity-exhausted.md",
        },
    }
    assert second["annotations"]["summary"] == "Gone: the engine's process died"
    assert third["labels"] == {"cause": "slow-tokens", "severity": "warning", "symptom": "true"}
    assert alert_name("source-blind") == "KvscopeSourceBlind"


@pytest.mark.parametrize(
    ("expr", "says"),
    [
        ("kv:pool_usage_rati > 1", "did you mean kv:pool_usage_ratio?"),
        ("kv:pool_usage_ratio > $limit", "holds $limit"),
        ("sum by (x) kv:pool_usage_ratio)", "kv-capacity-exhausted: alert expr"),
    ],
)
def test_a_bad_alert_stops_the_export(rules: RuleSet, expr: str, says: str) -> None:
    bad = replace(StubPlaybook(), alert=StubAlert(expr))
    with pytest.raises(RuleError) as refused:
        render_rules(rules, [bad])
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_alert_fires_on_recorded_series(rules: RuleSet, tmp_path: Path) -> None:
    """Raw engine series in, alert out: recording rules and alerts of one file work together."""
    file = tmp_path / "kvscope.rules.yml"
    file.write_text(render_rules(rules, [StubPlaybook()]))
    series = 'vllm:kv_cache_usage_perc{instance="pod-1:8000", engine="0"}'
    expected = yaml.safe_load(render_alerts([StubPlaybook()]))["groups"][0]["rules"][0]
    notes = expected["annotations"] | {
        "summary": "The pool is full (instance pod-1:8000, engine 0)",
        "description": 'Every block is held by a live request: "full". Value: 1.',
    }
    labels = expected["labels"] | {"instance": "pod-1:8000", "engine": "0", "system": "vllm"}
    fired = {"alertname": expected["alert"], "exp_alerts": [{"exp_labels": labels, "exp_annotations": notes}]}
    test = {
        "rule_files": [str(file)],
        "evaluation_interval": "15s",
        "tests": [
            {
                "interval": "15s",
                "input_series": [{"series": series, "values": "1x80"}],
                "alert_rule_test": [
                    {"eval_time": "10m", **fired},
                    {"eval_time": "1m", "alertname": expected["alert"], "exp_alerts": []},
                ],
            }
        ],
    }
    path = tmp_path / "alerts_test.yml"
    path.write_text(yaml.safe_dump(test))
    promtool("test", path)


def test_the_catalogue_exports(rules: RuleSet, tmp_path: Path) -> None:
    playbooks = load_playbooks()
    alerts = [p for p in playbooks if p.alert is not None]
    file = tmp_path / "kvscope.rules.yml"
    file.write_text(render_rules(rules, playbooks))
    assert f"{len(rules.rules) + len(alerts)} rules found" in promtool("check", file)
    assert len(alerts) > 5
