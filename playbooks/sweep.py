"""Utilisation, saturation and errors of every resource, before any hypothesis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from playbooks.bench import Answer, Bench, Member
from playbooks.decide import fill
from playbooks.episode import episodes, hold_steps, trailing
from playbooks.frontmatter import LOADER
from playbooks.middle import median
from playbooks.playbook import DEFAULT_HOLD_MS, Test
from playbooks.terms import expand
from playbooks.verdict import CoreCheck, SourceLine
from probes.labels import Labels

CORE = ("capacity", "queue", "preemption", "latency", "freshness")
# Latency is bad against an objective, an earlier window, a baseline or peers; with none of these it stays open.
# A sticky check counts when it held at any time: it may be over because what it did is done (memory freed by a death).
STICKY_HOLD_MS = 20_000
MAY_STAY_OPEN = frozenset({"latency"})
ENGINES_ONLY = frozenset({"preemption"})  # a store refuses or evicts: it has no request to take blocks from


@dataclass(frozen=True, slots=True)
class Check:
    test: Test
    scope: str
    core: str | None
    sticky: bool
    unless: Test | None = None
    now: bool = False
    """Only the last step counts, whatever held before."""
    pending: Test | None = None
    """What is bad at this moment already, though not for long enough: the check then says neither yes nor no."""


@dataclass(frozen=True, slots=True)
class Bad:
    """A check that is bad for a member."""

    check: Check
    member: Member
    value: float
    says: str

    @property
    def symptom(self) -> str:
        return self.check.core or self.check.test.name


@dataclass(frozen=True)
class Swept:
    bad: tuple[Bad, ...]
    core: tuple[CoreCheck, ...]


@cache
def checks() -> tuple[Check, ...]:
    """The packaged checks."""
    text = Path(__file__).with_name("sweep.yml").read_text(encoding="utf-8")
    return tuple(_check(body) for body in yaml.load(text, Loader=LOADER)["checks"])


def _check(body: Mapping[str, Any]) -> Check:
    test = Test(
        name=body["id"],
        expr=expand(body["expr"]),
        op=body["op"],
        threshold=float(body["threshold"]),
        basis=body["basis"],
        source=body["source"],
        says=body["says"],
        relative_to=body.get("relative_to"),
    )
    sticky, now = bool(body.get("sticky", False)), bool(body.get("now", False))
    return Check(test, body["scope"], body.get("core"), sticky, _beside(body, "unless"), now, _beside(body, "pending"))


def _beside(body: Mapping[str, Any], name: str) -> Test | None:
    """A test beside the check's own: ``unless``, under which a shift is what one would expect, or ``pending``."""
    given = body.get(name)
    if given is None:
        return None
    return Test(
        name=f"{body['id']}-{name}",
        expr=expand(given["expr"]),
        op=given["op"],
        threshold=float(given["threshold"]),
        basis="policy",
        source=body["source"],
        says=given.get("says", ""),
        relative_to=given.get("relative_to"),
    )


def sweep(bench: Bench, members: Mapping[str, Sequence[Member]], extra: Iterable[Check] = ()) -> Swept:
    """Ask every check of every member of its scope."""
    bad: list[Bad] = []
    said: dict[str, list[Answer]] = {name: [] for name in CORE}
    words: dict[str, str] = {}
    begun: dict[str, str] = {}
    objectives = tuple(extra)
    for check in (*_unless_told(checks(), objectives), *objectives):
        for member in members.get(check.scope, ()):
            answer, value = _ask(bench, check, member)
            if answer is Answer.FALSE and check.pending is not None and (soon := _soon(bench, check.pending, member)):
                answer = Answer.UNKNOWN
                begun.setdefault(check.core or check.test.name, f"{_name(member)}: {soon}")
            if check.core is not None and not (check.now and answer is Answer.UNKNOWN):
                said[check.core].append(answer)
            if answer is Answer.TRUE:
                sentence = fill(check.test.says, value, check.test.threshold)
                bad.append(Bad(check, member, value, sentence))
                words.setdefault(check.core or check.test.name, f"{_name(member)}: {sentence}")
    no_engine = bool(members.get("shard")) and not members.get("engine")
    asked = [name for name in CORE if not (no_engine and name in ENGINES_ONLY)]
    core = tuple(_core_check(name, said[name], words, begun) for name in asked)
    return Swept(tuple(bad), core)


def _core_check(name: str, answers: Sequence[Answer], words: Mapping[str, str], begun: Mapping[str, str]) -> CoreCheck:
    """What has only begun speaks for a question that is open, never for one that is decided."""
    bad = _core(name, answers)
    return CoreCheck(name, bad, (begun if bad is None else words).get(name, ""))


def with_silent(swept: Swept, sources: Sequence[SourceLine]) -> Swept:
    """A target that one asked for and that never answered is no healthy one: nobody knows how it is."""
    silent = [s for s in sources if s.never_answered]
    if not silent:
        return swept
    check = next(c for c in checks() if c.core == "freshness")
    bad = [Bad(check, Labels.of({"instance": s.target}), 0.0, f"never answered: {s.error or s.state}") for s in silent]
    says = f"{len(silent)} of {len(sources)} targets never answered"
    core = tuple(CoreCheck(c.name, True, c.says or says) if c.name == "freshness" else c for c in swept.core)
    return Swept((*swept.bad, *bad), core)


def _unless_told(packaged: Iterable[Check], objectives: Sequence[Check]) -> Iterable[Check]:
    """A user's own objective decides what bad latency is; our comparisons are for want of one."""
    told = {check.core for check in objectives}
    return (check for check in packaged if check.core is None or check.core not in told)


def _ask(bench: Bench, check: Check, member: Member) -> tuple[Answer, float]:
    answered = bench.answer(check.test, member)
    hold = STICKY_HOLD_MS if check.sticky else DEFAULT_HOLD_MS
    need = 1 if check.now else hold_steps(hold, bench.grid.step_ms, len(answered.answers))
    answer, window = trailing(answered.answers, need), answered.values[-need:]
    if check.sticky and answer is not Answer.TRUE:
        past = episodes(answered.answers, need)
        if past:
            answer, window = Answer.TRUE, answered.values[past[-1].first : past[-1].last + 1]
    if answer is Answer.TRUE and check.unless is not None:
        expected = trailing(bench.answer(check.unless, member).answers, need)
        answer = Answer.FALSE if expected is Answer.TRUE else answer
    kept = window[~np.isnan(window)]
    return answer, median(kept) if len(kept) else float("nan")


def _soon(bench: Bench, pending: Test, member: Member) -> str:
    """What is bad now, in words; empty when nothing is."""
    answered = bench.answer(pending, member)
    if answered.answers[-1] != Answer.TRUE:
        return ""
    return fill(pending.says, float(answered.values[-1]), pending.threshold)


def _core(name: str, answers: Sequence[Answer]) -> bool | None:
    if Answer.TRUE in answers:
        return True
    if name in MAY_STAY_OPEN:
        return False if Answer.FALSE in answers else None
    if not answers or Answer.UNKNOWN in answers:
        return None
    return False


def _name(member: Member) -> str:
    """An engine by its instance; the rank matters only where it is not the first. A shard by its name first."""
    if member.get("shard"):
        return f"shard {member.get('shard')} ({member.get('instance')})"
    named = [value for label, value in member if label != "engine" or value != "0"]
    return ", ".join(named) or "fleet"
