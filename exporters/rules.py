"""Prometheus rule files: the canonical layer as recording rules, the playbooks' alerts, both as one YAML text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from textwrap import indent
from typing import Protocol

import yaml

from probes.promql.errors import PromQLError
from probes.promql.parse import parse
from probes.rules import RuleError, RuleSet

ALERT_WINDOW = "5m"
"""What ``$window`` becomes on export: rules cannot know the scrape interval (policy; ≥ 4 scrapes up to 1m15s)."""
RUNBOOK_BASE = "https://github.com/kvscope/kvscope/blob/main/docs/runbooks"
_PLACEHOLDER = re.compile(r"\$\{?([A-Za-z_]\w*)\}?")


class AlertSource(Protocol):
    """A playbook's alert: ``expr`` over canonical names, ``for_`` a Prometheus duration.

    ``symptom`` says that it shows the effect, not the cause: such alerts carry the label ``symptom="true"``, so that
    Alertmanager can inhibit them under another alert.
    """

    @property
    def expr(self) -> str: ...
    @property
    def for_(self) -> str: ...
    @property
    def severity(self) -> str: ...
    @property
    def symptom(self) -> bool: ...


class PlaybookSource(Protocol):
    """What an alert needs of a playbook."""

    @property
    def id(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def summary(self) -> str: ...
    @property
    def member_labels(self) -> Sequence[str]: ...
    @property
    def alert(self) -> AlertSource | None: ...


def render_recording_rules(rules: RuleSet) -> str:
    """The canonical layer as ``groups`` of recording rules, each under the comment of its adapter."""
    blocks = ["groups:"]
    for (_, group), members in groupby(rules.rules, key=lambda r: (r.file, r.group)):
        blocks.append(f"  - name: {_scalar(group)}\n    rules:")
        for rule in members:
            if rule.comment:
                blocks.append(_comment(rule.comment))
            blocks.append(_rule({"record": rule.record, "expr": str(rule.expr), "labels": dict(rule.labels)}))
    return "\n".join(blocks) + "\n"


def render_alerts(playbooks: Iterable[PlaybookSource], runbook_base: str = RUNBOOK_BASE) -> str:
    """One alerting rule a playbook that has an alert. ``RuleError`` for an expression that is no PromQL."""
    blocks = ["groups:", "  - name: kvscope-alerts\n    rules:"]
    for playbook in playbooks:
        if playbook.alert is not None:
            blocks.append(_rule(_alert(playbook, playbook.alert, runbook_base)))
    return "\n".join(blocks) + "\n" if len(blocks) > 2 else "groups: []\n"


def render_rules(rules: RuleSet, playbooks: Iterable[PlaybookSource], runbook_base: str = RUNBOOK_BASE) -> str:
    """What ``kvtop rules`` prints: recording rules, then alerts that rest on them.

    ``RuleError`` when an alert asks for a canonical name that does not exist.
    """
    known = list(playbooks)
    for playbook in known:
        if playbook.alert is not None:
            _checked(playbook, playbook.alert, rules)
    head = (
        "# Recording rules that fold engine metrics into canonical kv:* series, and alerts over them.\n"
        "# Load with rule_files; check with: promtool check rules FILE\n"
    )
    alerts = render_alerts(known, runbook_base)
    recording = render_recording_rules(rules)
    return head + recording + (alerts.removeprefix("groups:\n") if alerts.startswith("groups:\n") else "")


def alert_name(cause: str) -> str:
    """``kv-capacity-exhausted`` → ``KvscopeKvCapacityExhausted``."""
    return "Kvscope" + "".join(part.capitalize() for part in cause.split("-"))


def _alert(playbook: PlaybookSource, alert: AlertSource, runbook_base: str) -> dict[str, object]:
    member = ", ".join(f"{label} {{{{ $labels.{label} }}}}" for label in playbook.member_labels)
    rule: dict[str, object] = {"alert": alert_name(playbook.id), "expr": _checked(playbook, alert)}
    if alert.for_:
        rule["for"] = alert.for_
    rule["labels"] = {"cause": playbook.id, "severity": alert.severity} | ({"symptom": "true"} if alert.symptom else {})
    rule["annotations"] = {
        "summary": playbook.title + (f" ({member})" if member else ""),
        "description": playbook.summary + " Value: {{ $value | humanize }}.",
        "runbook_url": f"{runbook_base.rstrip('/')}/{playbook.id}.md",
    }
    return rule


def _checked(playbook: PlaybookSource, alert: AlertSource, rules: RuleSet | None = None) -> str:
    """The alert's expression with its window, parsed once so that a broken one stops the export."""
    text = " ".join(alert.expr.split())
    text = text.replace("${window}", ALERT_WINDOW).replace("$window", ALERT_WINDOW)
    left = _PLACEHOLDER.search(text)
    if left:
        raise RuleError(f"alert expr holds ${left[1]}; only $window is filled in on export", rule=playbook.id)
    try:
        expr = parse(text)
        if rules is not None:
            rules.expand(expr)
    except (PromQLError, RuleError) as error:
        raise RuleError(f"alert expr: {error}", rule=playbook.id) from None
    return text


def _rule(fields: dict[str, object]) -> str:
    lines: list[str] = []
    for key, value in fields.items():
        if isinstance(value, dict):
            if value:
                lines.append(f"{key}:")
                lines += [f"  {k}: {_scalar(str(v))}" for k, v in value.items()]
        else:
            lines.append(f"{key}: {_scalar(str(value))}")
    return "      - " + indent("\n".join(lines), "        ").lstrip()


def _scalar(text: str) -> str:
    """One line of YAML for a string, quoted where it must be."""
    return yaml.safe_dump(text, width=1_000_000, allow_unicode=True).removesuffix("\n").removesuffix("\n...")


def _comment(text: str, width: int = 112) -> str:
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + len(word) + 1 > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".lstrip()
    return "\n".join(f"      # {part}" for part in [*lines, line])
