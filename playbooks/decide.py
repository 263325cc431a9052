"""One cause, one member: held, refuted, undecided, and on what evidence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from playbooks.bench import Answer, Answered, Bench, Member
from playbooks.episode import conjunction, episodes, first_of_last_run, hold_steps, trailing
from playbooks.grid import Grid
from playbooks.middle import median
from playbooks.playbook import Pattern, Playbook, Test
from playbooks.verdict import Evidence, Refutation, Verdict

_FIELD = re.compile(r"\{(value|threshold)(:[^{}]*)?\}")
_ORDER = [Verdict.CONFIRMED, Verdict.LIKELY, Verdict.SUSPECTED]


@dataclass(frozen=True)
class Ruling:
    """What a playbook says of one member."""

    playbook: Playbook
    pattern: Pattern
    member: Member
    verdict: Verdict
    evidence: tuple[Evidence, ...] = ()
    refuted_by: tuple[Refutation, ...] = ()
    ruled_out: tuple[Refutation, ...] = ()
    missing: tuple[str, ...] = ()
    enable: str = ""
    why: str = ""
    onset_ms: int | None = None
    ended_ms: int | None = None


def rule(playbook: Playbook, pattern: Pattern, member: Member, bench: Bench, finer: Bench) -> Ruling:
    """Decide one pattern for one member. ``finer`` is the same window with short ranges, for the onset."""
    steps = len(bench.grid.times)
    need = hold_steps(pattern.hold_ms, bench.grid.step_ms, steps)
    required = _required(playbook, pattern, member, bench, need)
    both = conjunction([a.answers for a in required])
    held = trailing(both, need)
    over = None
    if held is not Answer.TRUE and pattern.past:
        over = next(iter(reversed(episodes(both, need))), None)
    if held is not Answer.TRUE and over is None:
        return _not_held(playbook, pattern, member, bench, required, held, need)
    if bench.grid.end_ms - bench.grid.start_ms < pattern.least_ms:
        needs = f"at least {pattern.least_ms // 1000} s of data"
        return Ruling(playbook, pattern, member, Verdict.UNKNOWN, missing=(needs,), why=needs)
    at = steps - 1 if over is None else over.last
    span = slice(max(0, at - need + 1), at + 1)
    found = [
        _evidence(a, span, bench.grid)
        for a in [*required, *(bench.answer(playbook.tests[n], member) for n in pattern.supports)]
        if _says(a, span) is Answer.TRUE
    ]
    against, ruled_out = _refutations(playbook, pattern, member, bench, span)
    if against:
        return Ruling(playbook, pattern, member, Verdict.REFUTED, tuple(found), refuted_by=tuple(against))
    onset = _onset(playbook, pattern, member, bench, finer, at)
    return Ruling(
        playbook,
        pattern,
        member,
        _strength(found, pattern),
        tuple(found),
        ruled_out=tuple(ruled_out),
        onset_ms=onset,
        ended_ms=None if over is None or over.present else int(bench.grid.times[over.last]),
    )


def _required(playbook: Playbook, pattern: Pattern, member: Member, bench: Bench, need: int) -> list[Answered]:
    """The required tests up to the first that says no: on a healthy engine most questions need not be asked."""
    found: list[Answered] = []
    for name in pattern.requires:
        found.append(bench.answer(playbook.tests[name], member))
        if not pattern.past and trailing(found[-1].answers, need) is Answer.FALSE:
            break
    return found


def _not_held(
    playbook: Playbook,
    pattern: Pattern,
    member: Member,
    bench: Bench,
    required: Sequence[Answered],
    held: Answer,
    need: int,
) -> Ruling:
    said = {a.test.name: trailing(a.answers, need) for a in required}
    no = [a for a in required if said[a.test.name] is Answer.FALSE]
    if no or held is Answer.FALSE:
        by = tuple(Refutation(playbook.id, a.test.name, _sentence(a, slice(-need, None), holds=False)) for a in no)
        return Ruling(playbook, pattern, member, Verdict.NOT_APPLICABLE, refuted_by=by)
    dark = [a.test for a in required if said[a.test.name] is Answer.UNKNOWN]
    missing = tuple(dict.fromkeys(name for test in dark for name in bench.missing(test, member)))
    needs = [test.needs for test in dark if test.needs]
    enable = next((test.enable for test in dark if test.enable), "")
    if not missing and not needs:
        needs = ["samples of " + ", ".join(test.name for test in dark) + " in this window"]
    return Ruling(
        playbook,
        pattern,
        member,
        Verdict.UNKNOWN,
        missing=(*missing, *needs),
        enable=enable,
        why="; ".join(needs),
    )


def _refutations(
    playbook: Playbook, pattern: Pattern, member: Member, bench: Bench, span: slice
) -> tuple[list[Refutation], list[Refutation]]:
    """(those that hold: it is the look-alike, those that were asked and do not hold: it is not)."""
    against: list[Refutation] = []
    ruled_out: list[Refutation] = []
    for refuter in pattern.refutes:
        answered = bench.answer(playbook.tests[refuter.test], member)
        said = _says(answered, span)
        if said is Answer.UNKNOWN:
            continue
        if said is Answer.TRUE:
            says = refuter.says or _sentence(answered, span, holds=True)
            against.append(Refutation(refuter.means, refuter.test, says))
        else:
            ruled_out.append(Refutation(refuter.means, refuter.test, _sentence(answered, span, holds=False)))
    return against, ruled_out


def _says(answered: Answered, span: slice) -> Answer:
    return trailing(answered.answers[span], len(answered.answers[span]))


def _strength(found: Sequence[Evidence], pattern: Pattern) -> Verdict:
    if len({e.kind for e in found}) >= 2:
        verdict = Verdict.CONFIRMED
    elif any(e.basis != "policy" for e in found):
        verdict = Verdict.LIKELY
    else:
        verdict = Verdict.SUSPECTED
    return max(verdict, Verdict(pattern.at_most), key=_ORDER.index)


def _evidence(answered: Answered, span: slice, grid: Grid) -> Evidence:
    test = answered.test
    return Evidence(
        test=test.name,
        expr=grid.fill(test.expr),
        value=_typical(answered, span),
        op=test.op,
        threshold=test.threshold,
        basis=test.basis,
        window_s=grid.window_ms / 1000,
        source=test.source,
        kind=test.kind,
        says=_sentence(answered, span, holds=True),
    )


def _typical(answered: Answered, span: slice) -> float:
    values = answered.values[span]
    kept = values[~np.isnan(values)]
    return median(kept) if len(kept) else float("nan")


def _sentence(answered: Answered, span: slice, *, holds: bool) -> str:
    test = answered.test
    value = _typical(answered, span)
    text = fill(test.says, value, test.threshold)
    if holds:
        return text
    shown = next((m.group(2) for m in _FIELD.finditer(test.says) if m.group(2)), ":g")
    line = fill("{threshold" + shown + "}", value, test.threshold)
    return f"{text} (it would take {test.op} {line})"


_HUGE = 1e12  # no quantity of ours: three digits say enough, and a percentage of it could overflow


def fill(text: str, value: float, threshold: float) -> str:
    """Fill ``{value}`` and ``{threshold}`` (with a format) into a sentence; nothing else is looked up."""

    def put(match: re.Match[str]) -> str:
        number = value if match.group(1) == "value" else threshold
        if abs(number) >= _HUGE:
            return f"{number:.3g}"
        try:
            return format(number, (match.group(2) or ":.3g")[1:])
        except ValueError:
            return f"{number:.3g}"

    return _FIELD.sub(put, text)


def _onset(playbook: Playbook, pattern: Pattern, member: Member, bench: Bench, finer: Bench, at: int) -> int | None:
    """Time of the first step of this episode, asked with short ranges; None when it began before the window."""
    tests = [playbook.tests[name] for name in pattern.requires]
    coarse = conjunction([bench.answer(t, member).answers for t in tests])
    first = first_of_last_run(coarse, at)
    moment = int(bench.grid.times[first])
    plain: list[Test] = [t for t in tests if t.relative_to is None]
    if not plain:
        return moment if first > 0 else None
    sharp = conjunction([finer.answer(t, member).answers for t in plain])
    times = finer.grid.times
    here = max(0, int(np.searchsorted(times, moment, side="right")) - 1)
    earlier = first_of_last_run(sharp, here)
    if len(plain) < len(tests):  # the finer look knows nothing of a shift; a mean crosses its line within a window
        shifted = conjunction([bench.answer(t, member).answers for t in tests if t.relative_to is not None])
        shift = int(bench.grid.times[first_of_last_run(shifted, at)]) - bench.grid.window_ms // 2
        earlier = max(earlier, min(here, int(np.searchsorted(times, shift))))
    if first == 0 and not (sharp[:earlier] == Answer.FALSE).any():
        return None
    return min(moment, int(times[earlier]))
