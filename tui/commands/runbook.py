"""A playbook in a terminal: the page that a person reads, then what the machine tests."""

from __future__ import annotations

from playbooks.playbook import Playbook, Test
from tui.commands.table import table


def runbook(playbook: Playbook) -> str:
    """Title, the page, and the machine's part in words."""
    title = f"{playbook.id}: {playbook.title}"
    parts = [title + "\n" + "=" * len(title), playbook.body.strip(), _machine(playbook)]
    return "\n\n".join(part for part in parts if part)


def _machine(playbook: Playbook) -> str:
    lines = ["What the machine tests", "----------------------"]
    rows = [(name, _line(test), test.basis, test.source) for name, test in playbook.tests.items()]
    lines.append(table(("TEST", "HOLDS WHEN", "BASIS", "SOURCE"), rows))
    for pattern in playbook.patterns:
        lines.append(f"\nPattern {pattern.id} (of each {pattern.scope}): requires {', '.join(pattern.requires)}")
        if pattern.supports:
            lines.append(f"  supported by {', '.join(pattern.supports)}")
        lines += [f"  refuted by {refuter.test}: it would be {refuter.means}" for refuter in pattern.refutes]
    return "\n".join(lines)


def _line(test: Test) -> str:
    against = " × its baseline" if test.relative_to == "baseline" else ""
    return f"{test.expr} {test.op} {test.threshold:g}{against}"
