"""The diagnosis: sweep, test every cause on every member, weigh, and say what is not known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from playbooks import causality
from playbooks.bench import Bench, Member, Rules
from playbooks.decide import Ruling, fill, rule
from playbooks.events import events
from playbooks.grid import Grid
from playbooks.objective import Objective
from playbooks.playbook import SCOPES, Formula, Playbook
from playbooks.stretch import last_stretch
from playbooks.sweep import MAY_STAY_OPEN, Bad, Swept, sweep, with_silent
from playbooks.verdict import (
    Command,
    Diagnosis,
    Finding,
    Overall,
    Quantity,
    Refutation,
    SourceLine,
    Undecided,
    Unexplained,
    Verdict,
)

ENGINE_SIGNALS = (
    "kv:pool_usage_ratio",
    "kv:requests_running",
    "kv:requests_waiting",
    "kv:preemptions_total",
    "kv:generation_tokens_total",
    "kv:prompt_tokens_total",
    "kv:prefix_cache_queries_total",
    "kv:requests_finished_total",
)
SHARD_SIGNALS = ("kv:pool_usage_ratio", "kv:operations_total", "kv:busy_seconds_total")
GPU_SIGNALS = ("kv:gpu_utilization_ratio", "kv:gpu_engine_active_ratio", "kv:gpu_memory_used_bytes")
DEVICE_SIGNALS = ("kv:rdma_port_state", "kv:rdma_transmit_bytes_total")
TIER_SIGNALS = ("kv:tier_lookup_tokens_total", "kv:tier_usage_bytes", "kv:tier_usage_ratio")


@dataclass(frozen=True)
class Case:
    """The window under diagnosis and how its sources stand."""

    grid: Grid
    sources: tuple[SourceLine, ...] = ()
    objectives: tuple[Objective, ...] = ()


def diagnose(view: Any, case: Case, playbooks: Sequence[Playbook], rules: Rules | None = None) -> Diagnosis:
    """Diagnose a window of a view.

    Raises PromQLError when a playbook's or an objective's expression is broken.
    """
    with getattr(view, "sharing", nullcontext)():
        return _diagnose(view, case, playbooks, rules)


def _diagnose(view: Any, case: Case, playbooks: Sequence[Playbook], rules: Rules | None) -> Diagnosis:
    grid, holes = last_stretch(view, case.grid)
    case = replace(case, grid=grid)
    bench, finer = Bench(view, case.grid, rules), Bench(view, case.grid.finer(), rules)
    members = find_members(bench)
    swept = with_silent(sweep(bench, members, (o.check for o in case.objectives)), case.sources)
    rulings = [
        rule(playbook, pattern, member, bench, finer)
        for playbook in playbooks
        for pattern in playbook.patterns
        for member in members[pattern.scope]
        if not pattern.only_with or any(bench.has(name, member) for name in pattern.only_with)
    ]
    strongest = _strongest(rulings)
    if any(source.incomplete for source in case.sources):
        strongest = [_at_most_suspected(r) for r in strongest]
    held = [r for r in strongest if r.verdict.is_finding]
    grouped = causality.roots(held, slack_ms=2 * case.grid.window_ms)
    names = _Names(members["engine"])
    findings = tuple(_finding(r, under, rulings, bench, names) for r, under in grouped)
    open_ = causality.unexplained(swept.bad, held)
    return Diagnosis(
        verdict=_overall(findings, swept, open_, [*members["engine"], *members["shard"]]),
        start_ms=case.grid.start_ms,
        end_ms=case.grid.end_ms,
        findings=findings,
        unknown=tuple(_undecided(r, names) for r in strongest if r.verdict is Verdict.UNKNOWN),
        unexplained=tuple(_unexplained(b, case.grid, names) for b in open_),
        events=holes + events(Bench(view, replace(case.grid, range_ms=0), rules), list(members["target"])),
        core=swept.core,
        refuted=tuple(_why_not(strongest)),
        sources=case.sources,
    )


def find_members(bench: Bench) -> dict[str, list[Member]]:
    """Members of each scope that this window shows.

    A ``shard`` is one of a KV store, a ``session_class`` one of its kinds of sessions; a ``target`` is an engine's page
    or a shard's, an ``exporter`` any other, an ``endpoint`` either; a ``device`` is an RDMA device.
    """
    times = len(bench.grid.times)
    recent = max(1, min(times, bench.grid.window_ms // bench.grid.step_ms))
    ever = [f"last_over_time({name}[$span])" for name in ENGINE_SIGNALS]
    engines = bench.members(ENGINE_SIGNALS, SCOPES["engine"], trailing=recent, without="shard")
    targets = bench.members(ever, SCOPES["target"])
    hosts = {m.get("instance") for m in targets}
    every = bench.members(["kv:up"], SCOPES["exporter"])
    tiers = bench.members(TIER_SIGNALS, SCOPES["endpoint"])
    return {
        "engine": engines,
        "shard": _shards(bench, recent),
        "session_class": [m for m in bench.members(["kv:sessions"], SCOPES["session_class"]) if m.get("session_class")],
        "target": targets,
        "exporter": [m for m in every if m.get("instance") not in hosts],
        "endpoint": sorted({m.only(SCOPES["endpoint"]) for m in (*every, *targets, *tiers)}, key=str),
        "gpu": [m for m in bench.members(GPU_SIGNALS, SCOPES["gpu"]) if m.get("gpu")],
        "device": [m for m in bench.members(DEVICE_SIGNALS, SCOPES["device"]) if m.get("device")],
        "model": bench.members(ENGINE_SIGNALS[:3], SCOPES["model"], trailing=recent, without="shard"),
        "fleet": [Member.of()],
    }


def _shards(bench: Bench, recent: int) -> list[Member]:
    """Shards that speak, those that spoke within the window and are still asked, and those that their peers miss.

    A stopped shard is no stranger, even to somebody who came after it stopped.
    """
    labels = SCOPES["shard"]
    speaking = bench.members(SHARD_SIGNALS, labels, trailing=recent)
    spoke = bench.members([f"last_over_time({name}[$span])" for name in SHARD_SIGNALS], labels)
    asked = {m.get("instance") for m in bench.members(["kv:up"], SCOPES["target"], trailing=recent)}
    found = {*speaking, *(m for m in spoke if m.get("instance") in asked)}
    known = {m.get("shard") for m in found}
    missed = bench.members(["max_over_time(kv:peer_up[$recent]) == 0"], ("peer",), trailing=recent)
    found.update(Member.of({"shard": m.get("peer")}) for m in missed if m.get("peer") not in known)
    return sorted((m for m in found if m.get("shard")), key=str)


def _strongest(rulings: Iterable[Ruling]) -> list[Ruling]:
    """One ruling a cause and member: the strongest of its patterns."""
    order = list(Verdict)
    best: dict[tuple[str, Member], Ruling] = {}
    for ruling in rulings:
        key = (ruling.playbook.id, ruling.member)
        if key not in best or order.index(ruling.verdict) < order.index(best[key].verdict):
            best[key] = ruling
    return list(best.values())


def _at_most_suspected(ruling: Ruling) -> Ruling:
    """Of a recording with families missing: what would refute it, or be the better cause, may be among them."""
    strong = ruling.verdict in (Verdict.CONFIRMED, Verdict.LIKELY)
    return replace(ruling, verdict=Verdict.SUSPECTED) if strong else ruling


class _Names:
    """Members as people name them: the engine's rank only where an instance has several."""

    def __init__(self, engines: Sequence[Member]) -> None:
        counts: dict[str, int] = {}
        for member in engines:
            counts[member.get("instance")] = counts.get(member.get("instance"), 0) + 1
        self._ranks = counts

    def __call__(self, member: Member) -> Mapping[str, str]:
        named = member.as_dict()
        if self._ranks.get(named.get("instance", ""), 0) <= 1:
            named.pop("engine", None)
        return named


def _finding(
    ruling: Ruling, under: Sequence[Ruling], rulings: Sequence[Ruling], bench: Bench, names: _Names
) -> Finding:
    playbook = ruling.playbook
    advice = playbook.advice(ruling.pattern.scope)
    lookalikes = [
        Refutation(other.playbook.id, by.by, by.says)
        for other in rulings
        if other.verdict is Verdict.REFUTED and causality.related(other.member, ruling.member)
        for by in other.refuted_by
        if by.cause == playbook.id
    ]
    return Finding(
        cause=playbook.id,
        title=advice.title,
        verdict=ruling.verdict,
        member=names(ruling.member),
        evidence=ruling.evidence,
        refuted=_once_each([*ruling.ruled_out, *lookalikes]),
        explains=tuple(dict.fromkeys(r.playbook.id for r in under if r.playbook.id != playbook.id)),
        cost=_costs(playbook, ruling.member, bench),
        what_if=tuple(_what_ifs(playbook.what_if, ruling.member, bench)),
        remedies=advice.remedies,
        confirm=tuple(Command(_address(c.command, ruling.member), c.safety) for c in advice.confirm),
        onset_ms=ruling.onset_ms,
        ended_ms=ruling.ended_ms,
        summary=playbook.summary,
        doc=f"docs/runbooks/{playbook.id}.md",
    )


def _once_each(refutations: Iterable[Refutation]) -> tuple[Refutation, ...]:
    """The first, which is the strongest, for each look-alike."""
    found: dict[str, Refutation] = {}
    for one in refutations:
        found.setdefault(one.cause, one)
    return tuple(found.values())


def _address(command: str, member: Member) -> str:
    return command.replace("$INSTANCE", member.get("instance") or "HOST:PORT")


def _latest(expr: str, member: Member, bench: Bench) -> float:
    table = bench.table(expr)
    values = [table.values[row, -1] for row in table.rows(member)]
    kept = [v for v in values if np.isfinite(v)]
    return float(sum(kept)) if kept else float("nan")


def _costs(playbook: Playbook, member: Member, bench: Bench) -> dict[str, Quantity]:
    found = {f.name: Quantity(_latest(f.expr, member, bench), f.unit) for f in playbook.cost}
    return {name: quantity for name, quantity in found.items() if np.isfinite(quantity.value)}


def _what_ifs(formulas: Iterable[Formula], member: Member, bench: Bench) -> Iterable[str]:
    for formula in formulas:
        value = _latest(formula.expr, member, bench)
        if np.isfinite(value):
            yield f"{formula.name}: {fill(formula.says, value, value)}"


def _undecided(ruling: Ruling, names: _Names) -> Undecided:
    return Undecided(ruling.playbook.id, names(ruling.member), ruling.missing, ruling.enable, ruling.why)


def _unexplained(bad: Bad, grid: Grid, names: _Names) -> Unexplained:
    return Unexplained(bad.check.test.name, names(bad.member), grid.fill(bad.check.test.expr), bad.value, bad.says)


def _why_not(rulings: Iterable[Ruling]) -> Iterable[Refutation]:
    """For every cause that does not hold, the first test that says so."""
    seen: dict[str, Refutation] = {}
    finding = {r.playbook.id for r in rulings if r.verdict.is_finding or r.verdict is Verdict.UNKNOWN}
    for ruling in rulings:
        if ruling.playbook.id not in finding and ruling.refuted_by:
            first = ruling.refuted_by[0]
            seen.setdefault(ruling.playbook.id, Refutation(ruling.playbook.id, first.by, first.says))
    return seen.values()


def _overall(findings: Sequence[Finding], swept: Swept, open_: Sequence[Bad], served: Sequence[Member]) -> Overall:
    if findings:
        return Overall.FINDING
    undecided = any(c.bad is None and c.name not in MAY_STAY_OPEN for c in swept.core)
    if open_ or undecided or not served:
        return Overall.UNKNOWN
    return Overall.HEALTHY
