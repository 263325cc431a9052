"""A finding told whole: evidence, look-alikes ruled out, cost, remedies, confirming commands, runbook."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from playbooks.verdict import Evidence, Finding, Undecided, Unexplained
from tui.draw.canvas import Glyphs
from tui.draw.prose import Line, code, markdown, wrapped
from tui.draw.verdict import member_name
from tui.quantity import age, clock, digits, text_of

_KNOWN_UNITS = {
    "ratio": "ratio",
    "seconds": "seconds",
    "s": "seconds",
    "bytes": "bytes",
    "bytes_per_second": "bytes_per_second",
    "tokens": "tokens",
    "tokens_per_second": "tokens_per_second",
    "per_second": "per_second",
}


def finding(item: Finding, width: int, glyphs: Glyphs, runbook: str = "") -> Iterator[Line]:
    """All of a finding, most needed first; ``runbook`` is the text of its page."""
    yield from _heading(item, width)
    yield from _section("Evidence")
    for proof in item.evidence:
        yield from evidence(proof, width, glyphs)
    yield from _refuted(item, width, glyphs)
    if item.explains:
        yield from _section("Explains")
        yield from wrapped(", ".join(item.explains), width, first="  ")
    if item.cost:
        yield from _section("Cost")
        for name, amount in item.cost.items():
            yield [("  " + name.replace("_", " "), "text"), ("  " + quantity(amount.value, amount.unit), "value")]
    yield from _bullets("What if", item.what_if, width, glyphs)
    yield from _bullets("Remedies", item.remedies, width, glyphs)
    if item.confirm:
        yield from _section("Confirm")
        for command in item.confirm:
            yield from code(command.command, width)
            yield [(f"    {command.safety}", "warn" if command.safety != "read-only" else "muted")]
    yield from _section("Expressions behind the evidence")
    for proof in item.evidence:
        yield [(f"  {proof.test}", "muted")]
        yield from code(proof.expr, width, "    ")
    if runbook or item.doc:
        yield from _section("Runbook")
        yield from markdown(runbook or item.doc, width)


def _heading(item: Finding, width: int) -> Iterator[Line]:
    for index, line in enumerate(wrapped(item.title, width, "strong", f"{item.verdict.value}: ")):
        yield [(line[0][0], "warn"), line[1]] if index == 0 else line
    when = f"since {clock(item.onset_ms, date=True)} UTC" if item.onset_ms is not None else "since before the window"
    until = f" until {clock(item.ended_ms)}" if item.ended_ms is not None else ""
    yield [("on ", "muted"), (member_name(item.member), "strong"), (f" {when}{until}", "muted")]
    if item.summary:
        yield []
        yield from wrapped(item.summary, width)


def _bullets(title: str, items: Sequence[str], width: int, glyphs: Glyphs) -> Iterator[Line]:
    if items:
        yield from _section(title)
    for text in items:
        yield from wrapped(text, width, first=f"  {glyphs.bullet} ")


def evidence(proof: Evidence, width: int, glyphs: Glyphs) -> Iterator[Line]:
    """What was asked, what came back, and why the line lies where it lies."""
    yield from wrapped(proof.says or proof.test, width, "text", f"  {glyphs.ok} ")
    against = f"{_plain(proof.value)} {proof.op} {_plain(proof.threshold)}"
    basis = f"{proof.basis}: {proof.source}" if proof.source else proof.basis
    about = f"over {age(proof.window_s)}, {proof.kind}; threshold: {basis}"
    for index, line in enumerate(wrapped(about, width, "muted", " " * (len(against) + 8))):
        yield [("      ", "text"), (against, "value"), ("  ", "text"), line[1]] if index == 0 else line


def _plain(value: float) -> str:
    return f"{value:.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"


def _refuted(item: Finding, width: int, glyphs: Glyphs) -> Iterator[Line]:
    if not item.refuted:
        return
    yield from _section("Ruled out")
    for other in item.refuted:
        yield from wrapped(f"{other.cause}: {other.says or other.by}", width, "text", f"  {glyphs.minus} ")


def unexplained(item: Unexplained, width: int, glyphs: Glyphs) -> Iterator[Line]:
    """A bad resource that no cause accounts for."""
    yield [("unexplained", "strong"), (f"  {item.resource}", "warn")]
    yield [("on ", "muted"), (member_name(item.member), "strong")]
    yield []
    yield from wrapped(item.says or "it is bad, and no known cause explains it", width)
    yield [("  value ", "muted"), (digits(item.value), "value")]
    yield from code(item.expr, width)


def undecided(item: Undecided, width: int, glyphs: Glyphs) -> Iterator[Line]:
    """A cause that cannot be decided, and how it could be."""
    yield [(item.cause, "strong"), ("  cannot be decided", "muted")]
    yield [("on ", "muted"), (member_name(item.member), "strong")]
    if item.why:
        yield []
        yield from wrapped(item.why, width)
    if item.missing:
        yield from _section("Missing")
        for name in item.missing:
            yield [(f"  {glyphs.bullet} ", "text"), (name, "code")]
    if item.enable:
        yield from _section("How to turn it on")
        yield from wrapped(item.enable, width, first="  ")


def quantity(value: float, unit: str) -> str:
    """A cost with its unit, in our own words where we know the unit."""
    known = _KNOWN_UNITS.get(unit)
    if known is None:
        return f"{digits(value)} {unit.replace('_per_', ' per ').replace('_', ' ')}"
    text = text_of(value, known)
    return f"{text} tokens" if known == "tokens" else text


def _section(title: str) -> Iterator[Line]:
    yield []
    yield [(title.upper(), "head")]
