"""The diagnosis as text, JSON (``kvscope.diagnosis/1``) and Markdown."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from playbooks.printable import name_text, names_text, printable
from playbooks.verdict import Diagnosis, Evidence, Finding, Overall, Quantity

SCHEMA = "kvscope.diagnosis/1"
_NAMES = 3
_WIDTH = 100
_HUGE = 1e12  # no quantity of ours: three digits say enough, and a percentage of it could overflow
_WORDS = 500  # of an error: JSON has the whole of it


def as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """The machine's form. Numbers that are no numbers become null; fields may be added, never renamed."""
    return {
        "schema": SCHEMA,
        "verdict": diagnosis.verdict.value,
        "window": {"start": diagnosis.start_ms / 1000, "end": diagnosis.end_ms / 1000},
        "findings": [_finding(f) for f in diagnosis.findings],
        "unknown": [
            {"cause": u.cause, "member": dict(u.member), "missing": list(u.missing), "enable": u.enable, "why": u.why}
            for u in diagnosis.unknown
        ],
        "unexplained": [
            {
                "resource": u.resource,
                "member": dict(u.member),
                "expr": u.expr,
                "value": _number(u.value),
                "says": u.says,
            }
            for u in diagnosis.unexplained
        ],
        "core": [{"check": c.name, "bad": c.bad, "says": c.says} for c in diagnosis.core],
        "ruled_out": [{"cause": r.cause, "by": r.by, "says": r.says} for r in diagnosis.refuted],
        "events": [
            {"time": e.time_ms / 1000, "kind": e.kind, "member": dict(e.member), "says": e.says}
            for e in diagnosis.events
        ],
        "sources": [
            {"target": s.target, "state": s.state, "age_s": _number(s.age_s), "error": s.error}
            for s in diagnosis.sources
        ],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "cause": finding.cause,
        "title": finding.title,
        "verdict": finding.verdict.value,
        "member": dict(finding.member),
        "onset": None if finding.onset_ms is None else finding.onset_ms / 1000,
        "ended": None if finding.ended_ms is None else finding.ended_ms / 1000,
        "summary": finding.summary,
        "evidence": [_evidence(e) for e in finding.evidence],
        "refuted": [{"cause": r.cause, "by": r.by, "says": r.says} for r in finding.refuted],
        "explains": list(finding.explains),
        "cost": {name: {"value": _number(q.value), "unit": q.unit} for name, q in finding.cost.items()},
        "what_if": list(finding.what_if),
        "remedies": list(finding.remedies),
        "confirm": [{"command": c.command, "class": c.safety} for c in finding.confirm],
        "doc": finding.doc,
    }


def _evidence(evidence: Evidence) -> dict[str, Any]:
    return {
        "test": evidence.test,
        "expr": evidence.expr,
        "value": _number(evidence.value),
        "op": evidence.op,
        "threshold": evidence.threshold,
        "basis": evidence.basis,
        "source": evidence.source,
        "kind": evidence.kind,
        "window_s": evidence.window_s,
        "says": evidence.says,
    }


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


def clock(ms: int) -> str:
    return _stamp(ms, "%H:%M:%S")


def day(ms: int) -> str:
    return _stamp(ms, "%Y-%m-%d")


def _stamp(ms: int, form: str) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime(form)
    except (OverflowError, OSError, ValueError):  # a recording may hold any number; no calendar has that year
        return f"{ms / 1000:.0f} s"


def span_text(diagnosis: Diagnosis) -> str:
    """The window: one date within a day, both over midnight."""
    first, last = diagnosis.start_ms, diagnosis.end_ms
    ended = clock(last) if day(first) == day(last) else f"{day(last)} {clock(last)}"
    return f"{day(first)} {clock(first)} to {ended} UTC"


def moment_text(diagnosis: Diagnosis, ms: int) -> str:
    """A time of the window, with its date where the window has more than one."""
    one_day = day(diagnosis.start_ms) == day(diagnosis.end_ms) == day(ms)
    return clock(ms) if one_day else f"{day(ms)} {clock(ms)}"


def member_text(member: Mapping[str, str]) -> str:
    """``pod-1:8000`` for a lone instance, ``gpu 1, node-a:9400`` for more; ``the fleet`` for none."""
    shown = sorted(names_text(member).items())
    named = [value if key == "instance" else f"{key} {value}" for key, value in shown]
    return ", ".join(named) or "the fleet"


def quantity(q: Quantity) -> str:
    """``1,234 tokens``, ``58 %``, ``12.3 s``."""
    if abs(q.value) >= _HUGE:
        return f"{q.value:.3g} {q.unit.replace('_', ' ')}"
    match q.unit:
        case "ratio":
            return f"{q.value:.0%}"
        case "seconds":
            return f"{q.value:.3g} s"
        case unit:
            number = f"{q.value:,.0f}" if abs(q.value) >= 100 else f"{q.value:.3g}"
            return f"{number} {unit.replace('_per_', ' per ').replace('_', ' ')}"


def headline(diagnosis: Diagnosis) -> str:
    """One line: the verdict and what it rests on."""
    if diagnosis.verdict is Overall.HEALTHY:
        return _healthy(diagnosis)
    if diagnosis.verdict is Overall.FINDING:
        first = diagnosis.findings[0]
        more = len(diagnosis.findings) - 1
        rest = f" (and {more} more)" if more else ""
        if any(source.incomplete for source in diagnosis.sources):
            rest += "; a recording is cut, so nothing is surer than that"
        return f"{first.verdict.value} {first.cause} on {member_text(first.member)}{_since(diagnosis, first)}{rest}"
    if diagnosis.unexplained:
        worst = diagnosis.unexplained[0]
        return f"cannot tell: {printable(worst.says)} on {member_text(worst.member)}, and no known cause explains it"
    undecided = [c.name for c in diagnosis.core if c.bad is None]
    soon = next((c for c in diagnosis.core if c.bad is None and c.says), None)
    if soon is not None:
        return f"cannot tell yet: {printable(soon.says)}; that has not held for long enough"
    return f"cannot tell: no answer to {', '.join(undecided) or 'anything'}; the signals are not there"


def _healthy(diagnosis: Diagnosis) -> str:
    """Names what was decided; what could not be compared is not in order, it is open."""
    good = [c.name for c in diagnosis.core if c.bad is False]
    left = [c.name for c in diagnosis.core if c.bad is None]
    if not left:
        return "healthy: capacity, queue, preemption, latency and freshness are all in order"
    return f"healthy: {', '.join(good)} are in order; {', '.join(left)} had nothing to be compared with"


def _since(diagnosis: Diagnosis, finding: Finding) -> str:
    onset = None if finding.onset_ms is None else moment_text(diagnosis, finding.onset_ms)
    if finding.ended_ms is not None:
        began = f" from {onset} to" if onset is not None else " until"
        return f"{began} {moment_text(diagnosis, finding.ended_ms)}"
    return " since before the window" if onset is None else f" since {onset}"


def as_text(diagnosis: Diagnosis) -> str:
    """For a terminal, at most 100 columns."""
    first = headline(diagnosis)
    if diagnosis.verdict is not Overall.FINDING:
        first = first[:1].upper() + first[1:]
    out = [
        *_wrap(first, "  "),
        f"window {span_text(diagnosis)}",
    ]
    for number, finding in enumerate(diagnosis.findings, 1):
        out += ["", *_finding_text(diagnosis, number, finding)]
    out += _section("No known cause explains", (f"{member_text(u.member)}: {u.says}" for u in diagnosis.unexplained))
    out += _section("Cannot be decided", _unknown_lines(diagnosis))
    out += _section("Events", _event_lines(diagnosis))
    out += _section("Sources", _source_lines(diagnosis))
    return "\n".join(out)


def _finding_text(diagnosis: Diagnosis, number: int, finding: Finding) -> Iterator[str]:
    told = f"{number}. {finding.verdict.value.upper()}  {finding.cause}  on {member_text(finding.member)}"
    yield from _wrap(told, "   ")
    yield from _wrap(f"   {finding.title};{_since(diagnosis, finding)}", "   ")
    for evidence in finding.evidence:
        yield from _wrap(f"   + {evidence.says}  [{evidence.basis}: {evidence.op} {evidence.threshold:g}]", "     ")
    for refuted in finding.refuted:
        yield from _wrap(f"   - not {refuted.cause}: {refuted.says}", "     ")
    if finding.explains:
        yield from _wrap(f"   > explains {', '.join(finding.explains)}", "     ")
    if finding.cost:
        costs = ", ".join(f"{name.replace('_', ' ')} {quantity(q)}" for name, q in finding.cost.items())
        yield from _wrap(f"   cost: {costs}", "     ")
    for line in finding.what_if:
        yield from _wrap(f"   what if: {line}", "     ")
    for remedy in finding.remedies:
        yield from _wrap(f"   do: {remedy}", "     ")
    for command in finding.confirm:
        words = printable(command.command)
        line = f"   confirm ({command.safety}): {words}"
        # A command is copied whole: it is never broken, and has a line of its own where it needs one.
        yield from [line] if len(line) <= _WIDTH else [f"   confirm ({command.safety}):", f"     {words}"]
    yield f"   more: {finding.doc}"


def _event_lines(diagnosis: Diagnosis) -> Iterator[str]:
    for one in diagnosis.events:
        yield f"{moment_text(diagnosis, one.time_ms)}  {member_text(one.member)} {one.says}"


def _source_lines(diagnosis: Diagnosis) -> Iterator[str]:
    for one in diagnosis.sources:
        if one.error:
            yield f"{name_text(one.target)}: {one.state}, {printable(one.error, _WORDS)}"


def _unknown_lines(diagnosis: Diagnosis) -> Iterator[str]:
    grouped: dict[tuple[str, tuple[str, ...], str], list[str]] = {}
    for one in diagnosis.unknown:
        grouped.setdefault((one.cause, one.missing, one.enable), []).append(member_text(one.member))
    for (cause, missing, enable), members in grouped.items():
        turn = f"; {enable}" if enable else ""
        apart = "; " if any("," in member for member in members) else ", "
        yield f"{cause} on {apart.join(members)}: missing {_few(missing)}{turn}"


def _few(missing: Sequence[str]) -> str:
    """The first signals by our own names; each has several of the sources' beside it, which the JSON lists."""
    own = [name for name in missing if name.startswith("kv:")] or list(missing)
    rest = len(missing) - len(own[:_NAMES])
    return ", ".join(own[:_NAMES]) + (f" ({rest} more names with --json)" if rest else "")


def _section(title: str, lines: Iterable[str]) -> list[str]:
    body = [row for line in lines for row in _wrap(f"  {line}", "    ")]
    return ["", title, *body] if body else []


def _wrap(text: str, indent: str) -> list[str]:
    """Lines of prose, whose line feeds are spaces; whatever else would steer a terminal is escaped."""
    text = printable(_BREAKS.sub(" ", text))
    return textwrap.wrap(text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


_BREAKS = re.compile(r"[\t\n\r]+")


def as_markdown(diagnosis: Diagnosis) -> str:
    """For a ticket or a chat."""
    out = [f"## kvscope: {headline(diagnosis)}", ""]
    out.append(f"Window {span_text(diagnosis)}.")
    for finding in diagnosis.findings:
        out += ["", f"### {finding.title}", ""]
        told = member_text(finding.member) + _since(diagnosis, finding)
        out.append(f"`{finding.cause}` · **{finding.verdict.value}** · {told}")
        out += ["", "| evidence | value | line | basis |", "|---|---|---|---|"]
        out += [
            f"| {_cell(e.says)} | {e.value:.4g} | {e.op} {e.threshold:g} | {e.basis} ({_cell(e.source)}) |"
            for e in finding.evidence
        ]
        out += ["", *(f"- not `{r.cause}`: {r.says}" for r in finding.refuted)]
        out += [f"- explains `{cause}`" for cause in finding.explains]
        out += [f"- cost, {name.replace('_', ' ')}: {quantity(q)}" for name, q in finding.cost.items()]
        out += [f"- what if: {line}" for line in finding.what_if]
        out += ["", "What to do:", "", *(f"1. {remedy}" for remedy in finding.remedies), "", "To confirm:", ""]
        out += [f"- `{c.command}` ({c.safety})" for c in finding.confirm]
    for title, lines in (
        ("No known cause explains", [f"{member_text(u.member)}: {u.says}" for u in diagnosis.unexplained]),
        ("Cannot be decided", list(_unknown_lines(diagnosis))),
        ("Events", list(_event_lines(diagnosis))),
        ("Sources", list(_source_lines(diagnosis))),
    ):
        if lines:
            out += ["", f"### {title}", "", *(f"- {line}" for line in lines)]
    # Line by line: a label or an error with a line feed of its own must not open a heading or end a table.
    return "\n".join(printable(_BREAKS.sub(" ", line)) for line in out)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
