"""A playbook in a terminal: the page that a person reads, then what the machine tests."""

from __future__ import annotations

import textwrap

from playbooks.playbook import Playbook, Test


def runbook(playbook: Playbook, width: int = 100) -> str:
    """The page under its cause's name, and the machine's part in words."""
    title = f"{playbook.id} ({playbook.severity})"
    page = playbook.body.strip()
    if not page.startswith("# "):
        page = f"# {playbook.title}\n\n{page}"
    return "\n".join([title, "=" * len(title), "", page, "", *_machine(playbook, width)])


def _machine(playbook: Playbook, width: int) -> list[str]:
    lines = ["## What the machine tests", ""]
    for name, test in playbook.tests.items():
        lines += [f"{name} ({test.basis}: {test.source})", *_wrapped(_line(test), width)]
    for pattern in playbook.patterns:
        lines.append(f"\nPattern {pattern.id}, of each {pattern.scope}: all of {', '.join(pattern.requires)}")
        if pattern.supports:
            lines.append(f"  supported by {', '.join(pattern.supports)}")
        lines += [f"  refuted by {refuter.test}: it would be {refuter.means}" for refuter in pattern.refutes]
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent="    ", subsequent_indent="      ", break_long_words=False)


def _line(test: Test) -> str:
    against = " × its baseline" if test.relative_to == "baseline" else ""
    return f"{test.expr} {test.op} {test.threshold:g}{against}"
