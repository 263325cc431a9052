"""The canonical layer: what a rule may say, and what an expression over kv:* names becomes."""

from __future__ import annotations

from pathlib import Path

import pytest

from probes.promql.ast import Matcher
from probes.promql.errors import PromQLError
from probes.promql.parse import parse
from probes.rules import ExpansionError, Relabel, RuleError, RuleSet
from probes.rules.push import push

RULES = """\
groups:
  - name: test
    rules:
      # Old name in older releases.
      # Named percent.
      - record: kv:pool_usage_ratio
        expr: new_usage or 0.01 * old_usage_percent
        labels: {system: alpha}
      - record: kv:preemptions_total
        expr: alpha_preemptions_total
        labels: {system: alpha}
      - record: kv:preemptions_total
        expr: beta_retractions_total{kind="real"}
        labels: {system: beta}
      - record: kv:requests_waiting
        expr: alpha_waiting
      - record: kv:gpu_utilization_ratio
        expr: 0.01 * GPU_UTIL
      - record: kv:prompt_tokens_cached_by_tier_total
        expr: >-
          label_replace(label_replace(cached_total, "tier", "$1", "source", "(.*)"), "source", "", "", "")
      - record: kv:transfer_failures_total
        expr: >-
          label_replace(sends_total, "direction", "send", "", "") or
          label_replace(receives_total, "direction", "receive", "", "")
"""
VOCABULARY = Path(__file__).parents[2] / "probes" / "engines" / "canonical.yml"


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RuleSet:
    """A small rule set of its own, with the packaged vocabulary and none of the packaged engines."""
    return load(tmp_path, monkeypatch, RULES)


def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> RuleSet:
    (tmp_path / "own.rules.yml").write_text(text)
    monkeypatch.setattr("probes.rules.files.packaged", lambda: [VOCABULARY])
    return RuleSet.load([tmp_path])


def one_rule(expr: str, record: str = "kv:requests_waiting", labels: str = "") -> str:
    extra = f"\n        labels: {labels}" if labels else ""
    return f"groups:\n  - name: g\n    rules:\n      - record: {record}\n        expr: >-\n          {expr}{extra}\n"


@pytest.mark.parametrize(
    ("asked", "inlined"),
    [
        # Names are set only where somebody can see them.
        ("kv:requests_waiting", 'label_replace(alpha_waiting, "__name__", "kv:requests_waiting", "", "")'),
        ("sum(kv:requests_waiting)", "sum(alpha_waiting)"),
        ("kv:requests_waiting * 2", "alpha_waiting * 2"),
        ("kv:requests_waiting > bool 2", "alpha_waiting > bool 2"),
        (
            "topk(1, kv:requests_waiting) > 2",
            'topk(1, label_replace(alpha_waiting, "__name__", "kv:requests_waiting", "", "")) > 2',
        ),
        (
            "count by (__name__) (kv:requests_waiting)",
            'count by (__name__) (label_replace(alpha_waiting, "__name__", "kv:requests_waiting", "", ""))',
        ),
        # So are the labels of a rule that is alone; two rules' series are told apart by them.
        (
            "sum by (system) (kv:pool_usage_ratio{a=''} * 2)",
            'sum by (system) (label_replace(new_usage{a=""} or 0.01 * old_usage_percent{a=""}, '
            '"system", "alpha", "", "") * 2)',
        ),
        (
            "sum without (instance) (rate(kv:preemptions_total{system=~'al.*'}[1m]))",
            'sum without (instance) (label_replace(rate(alpha_preemptions_total[1m]), "system", "alpha", "", ""))',
        ),
        (
            "sum(kv:preemptions_total)",
            'sum(label_replace(alpha_preemptions_total, "system", "alpha", "", "") or '
            'label_replace(beta_retractions_total{kind="real"}, "system", "beta", "", ""))',
        ),
        (
            "kv:pool_usage_ratio * on (system) up",
            'label_replace(new_usage or 0.01 * old_usage_percent, "system", "alpha", "", "") * on (system) up',
        ),
        # Alternatives and scales.
        (
            "max(kv:pool_usage_ratio)",
            "max(new_usage or 0.01 * old_usage_percent)",
        ),
        # The selector's matchers, offset and @ go to each alternative.
        (
            'max(kv:pool_usage_ratio{instance=~"a|b"} @ 60 offset 5m)',
            'max(new_usage{instance=~"a|b"} @ 60.000 offset 5m or '
            '0.01 * old_usage_percent{instance=~"a|b"} @ 60.000 offset 5m)',
        ),
        # A matcher on a static label is decided at once.
        (
            'sum(kv:preemptions_total{system="beta"})',
            'sum(beta_retractions_total{kind="real"})',
        ),
        ('sum(kv:preemptions_total{system="gamma"})', 'sum(kv:preemptions_total{system="gamma"})'),
        # Range functions go inside, the scale and the labels outside.
        (
            "rate(kv:preemptions_total[5m])",
            'label_replace(rate(alpha_preemptions_total[5m]), "system", "alpha", "", "") or '
            'label_replace(rate(beta_retractions_total{kind="real"}[5m]), "system", "beta", "", "")',
        ),
        ("avg_over_time(kv:gpu_utilization_ratio[1m])", "0.01 * avg_over_time(GPU_UTIL[1m])"),
        ("changes(kv:gpu_utilization_ratio[1m])", "changes(GPU_UTIL[1m])"),
        ("stdvar_over_time(kv:gpu_utilization_ratio[1m])", "0.0001 * stdvar_over_time(GPU_UTIL[1m])"),
        (
            "quantile_over_time(0.9, kv:gpu_utilization_ratio[1m] offset 1h)",
            "0.01 * quantile_over_time(0.9, GPU_UTIL[1m] offset 1h)",
        ),
        ("timestamp(kv:gpu_utilization_ratio)", "timestamp(GPU_UTIL)"),
        # A subquery is no range of the selector.
        ("max_over_time(kv:gpu_utilization_ratio[5m:10s])", "max_over_time((0.01 * GPU_UTIL)[5m:10s])"),
        # absent asks the union, and keeps the labels of equality matchers.
        (
            'absent(kv:pool_usage_ratio{instance="a", engine!="1"})',
            'label_replace(absent(new_usage{instance="a",engine!="1"} or '
            '0.01 * old_usage_percent{instance="a",engine!="1"}), "instance", "a", "", "")',
        ),
        ("absent_over_time(kv:requests_waiting[5m])", "absent(present_over_time(alpha_waiting[5m]))"),
        # Known but without a source: left alone, which selects nothing.
        ("rate(kv:generation_tokens_total[1m])", "rate(kv:generation_tokens_total[1m])"),
        ("rate(raw_total[1m]) / up", "rate(raw_total[1m]) / up"),
    ],
)
def test_expansion(rules: RuleSet, asked: str, inlined: str) -> None:
    expanded = str(rules.expand(parse(asked)))
    assert expanded == inlined
    assert str(parse(expanded)) == inlined


def test_matchers_reach_the_label_that_a_relabelled_one_came_from(rules: RuleSet) -> None:
    expanded = str(rules.expand(parse('sum(kv:prompt_tokens_cached_by_tier_total{tier=~"host|disk"})')))
    assert 'cached_total{source=~"host|disk"}' in expanded
    # A label that the rule removes is empty in the result: only a matcher for empty passes.
    kept = 'sum(kv:prompt_tokens_cached_by_tier_total{source="host"})'
    assert str(rules.expand(parse(kept))) == kept
    assert "cached_total, " in str(rules.expand(parse('sum(kv:prompt_tokens_cached_by_tier_total{source=""})')))


def test_a_matcher_on_a_constant_label_chooses_the_alternative(rules: RuleSet) -> None:
    expanded = str(rules.expand(parse('sum(kv:transfer_failures_total{direction!="send"})')))
    assert "receives_total" in expanded
    assert "sends_total" not in expanded


def test_conditional_relabelling_splits_a_matcher_in_two() -> None:
    relabel = Relabel("kind", "slow", "device", "hdd.*")
    wanted = (Matcher("kind", "=", "slow"),)
    assert push(wanted, [relabel]) == [
        (Matcher("device", "=~", "hdd.*"),),
        (Matcher("kind", "=", "slow"), Matcher("device", "!~", "hdd.*")),
    ]
    other = (Matcher("kind", "=", "fast"),)
    assert push(other, [relabel]) == [(Matcher("kind", "=", "fast"), Matcher("device", "!~", "hdd.*"))]


def test_a_copy_of_a_label_that_may_be_missing_keeps_the_targets_own() -> None:
    relabel = Relabel("tier", "$1", "source", "(.+)")
    assert push((Matcher("tier", "=~", "h.*"),), [relabel]) == [
        (Matcher("source", "=~", "h.*"), Matcher("source", "!=", "")),
        (Matcher("tier", "=~", "h.*"), Matcher("source", "!~", "(.+)")),
    ]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("kv:pool_usage_rati", "did you mean kv:pool_usage_ratio?"),
        ("rate(kv:no_such_thing_at_all_anywhere[1m])", "unknown canonical name"),
        ("kv:ttft_seconds", "ask for kv:ttft_seconds_bucket, kv:ttft_seconds_sum or kv:ttft_seconds_count"),
        ("kv:gpu_utilization_ratio[5m]", "needs a function around it"),
        ('{__name__=~"kv:pool.*"}', "cannot be chosen by a pattern"),
    ],
)
def test_refusals(rules: RuleSet, asked: str, says: str) -> None:
    with pytest.raises(ExpansionError) as refused:
        rules.expand(parse(asked))
    assert isinstance(refused.value, PromQLError)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (one_rule("rate(x_total[5m])"), 5, "rate() is not allowed"),
        (one_rule("sum(x)"), 5, "is not allowed"),
        (one_rule("x / 100"), 5, "`/` is not allowed"),
        (one_rule("-1 * x"), 5, "positive"),
        (one_rule("0 * x"), 5, "positive"),
        (one_rule("x offset 5m"), 5, "offset"),
        (one_rule('{job="x"}'), 5, "metric name"),
        (one_rule("kv:requests_running"), 5, "canonical itself"),
        (one_rule("x or on (instance) y"), 5, "on/ignoring"),
        (one_rule('label_replace(x, "tier", "$1-$2", "a", "(.*)")'), 5, "constant"),
        (one_rule('label_replace(x, "tier", "$1", "a", "v(.*)")'), 5, "copy the whole label"),
        (one_rule('label_replace(x, "__name__", "y", "", "")'), 5, "ordinary label"),
        (one_rule("x{a=}"), 5, "kv:requests_waiting: "),
        (one_rule("x", record="requests_waiting"), 4, "records a kv:* name"),
        (one_rule("x", record="kv:requests_waitin"), 4, "did you mean kv:requests_waiting?"),
        (one_rule("x", record="kv:ttft_seconds"), 4, "kv:ttft_seconds_bucket"),
        (one_rule("x", labels="{port: 8000}"), 7, 'write "8000"'),
        (one_rule("x", labels="{no-label: a}"), 7, "no label name"),
        ("groups:\n  - name: g\n    rules:\n      - alert: A\n        expr: up\n", 4, "playbook"),
        ("groups:\n  - name: g\n    rules:\n      - record: kv:up\n", 4, "needs record and expr"),
        ("groups:\n  - name: g\n    rules:\n      - record: kv:up\n        exp: up\n", 5, "exp is not known"),
        ("groups:\n  - rules: []\n", 2, "name and rules"),
        ("rules: []\n", 1, "rules is not known"),
        ("groups: [\n", 2, "no YAML"),
        ("", 0, "mapping"),
    ],
)
def test_a_bad_rule_file_gets_one_line_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, line: int, says: str
) -> None:
    with pytest.raises(RuleError) as refused:
        load(tmp_path, monkeypatch, text)
    message = str(refused.value)
    assert says in message
    assert "\n" not in message
    assert "own.rules.yml" in message
    assert refused.value.line == line, message


def test_a_directory_without_rule_files_is_said(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match=r"holds no \*\.rules\.yml"):
        RuleSet.load([tmp_path])
    with pytest.raises(RuleError, match="no such file"):
        RuleSet.load([tmp_path / "missing.rules.yml"])


def test_own_rules_come_before_the_packaged_ones(tmp_path: Path) -> None:
    text = (
        one_rule("mine_waiting", labels="{system: vllm}")
        + one_rule("theirs", labels="{system: mine}")[len("groups:\n") :]
    )
    (tmp_path / "mine.rules.yml").write_text(text.replace("name: g", "name: h", 1))
    loaded = RuleSet.load([tmp_path])
    assert loaded.sources("kv:requests_waiting") == ["mine_waiting", "vllm:num_requests_waiting", "theirs"]
    # The same record with the same labels is one rule: two would write the same series in Prometheus.
    assert [dict(r.labels)["system"] for r in loaded.rules_of("kv:requests_waiting")] == ["vllm", "mine"]


def test_an_own_vocabulary_adds_names_and_changes_none(tmp_path: Path) -> None:
    own = tmp_path / "canonical.yml"
    own.write_text("kv:my_pool_pages: {type: gauge, unit: pages, group: capacity, meaning: Pages of my pool}\n")
    (tmp_path / "mine.rules.yml").write_text(one_rule("my_pages", record="kv:my_pool_pages"))
    assert RuleSet.load([tmp_path]).canonical("kv:my_pool_pages").unit == "pages"
    own.write_text("kv:up: {type: gauge, unit: flag, group: source, meaning: Something else}\n")
    with pytest.raises(RuleError, match="there already"):
        RuleSet.load([tmp_path])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kv:x: {type: gauge, unit: u, group: g}\n", "meaning is missing"),
        ("kv:x: {type: summary, unit: u, group: g, meaning: m}\n", "type summary is none of"),
        ("kv:x: {type: counter, unit: u, group: g, meaning: m}\n", "ends in _total"),
        ("kv:x_total: {type: gauge, unit: u, group: g, meaning: m}\n", "ends in _total"),
        ("x: {type: gauge, unit: u, group: g, meaning: m}\n", "begins with kv:"),
        ("kv:x: {type: gauge, unit: u, group: g, meaning: m, core: all}\n", "core all is none of"),
    ],
)
def test_a_bad_vocabulary_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "canonical.yml").write_text(text)
    with pytest.raises(RuleError) as refused:
        RuleSet.load([tmp_path])
    assert says in str(refused.value)


def test_what_a_rule_set_knows(rules: RuleSet) -> None:
    assert rules.sources("kv:pool_usage_ratio") == ["new_usage", "old_usage_percent"]
    assert rules.sources("kv:generation_tokens_total") == []
    assert {"GPU_UTIL", "sends_total", "receives_total"} <= rules.raw_names()
    assert rules.canonical("kv:ttft_seconds_bucket").name == "kv:ttft_seconds"
    assert rules.rules_of("kv:pool_usage_ratio")[0].comment == "Old name in older releases. Named percent."
    with pytest.raises(RuleError, match="did you mean"):
        rules.sources("kv:pool_usage")
