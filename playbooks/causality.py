"""A symptom is shown under its root, not beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from playbooks.decide import Ruling
from playbooks.playbook import Playbook
from playbooks.sweep import Bad
from playbooks.verdict import Verdict
from probes.labels import Labels

_STRENGTH = {Verdict.CONFIRMED: 0, Verdict.LIKELY: 1, Verdict.SUSPECTED: 2}
_SEVERITY = {"critical": 0, "warning": 1, "info": 2}
SYMPTOM = "symptom:"


def related(one: Labels, other: Labels) -> bool:
    """True when two members may be the same thing: every label that both have agrees."""
    return all(other.get(name, value) == value for name, value in one)


def accounts_for(playbook: Playbook, member: Labels, what: str, where: Labels) -> bool:
    """True when a cause on ``member`` accounts for ``what`` (a cause's id or ``symptom:…``) on ``where``."""
    if what in playbook.explains_elsewhere:
        return True
    return what in playbook.explains and related(member, where)


def roots(found: Sequence[Ruling], slack_ms: int) -> list[tuple[Ruling, list[Ruling]]]:
    """Roots with the rulings that each explains, most important first.

    A cause that began clearly later than its supposed effect cannot explain it; ``slack_ms`` is how exact onsets are.
    """
    under: dict[int, int] = {}
    for effect, ruling in enumerate(found):
        for cause, other in enumerate(found):
            if cause != effect and _explains(other, ruling, slack_ms) and not _reaches(under, cause, effect):
                under[effect] = cause
                break
    grouped: list[tuple[Ruling, list[Ruling]]] = []
    for index, ruling in enumerate(found):
        if index not in under:
            grouped.append((ruling, [found[i] for i in under if _root(under, i) == index]))
    return sorted(grouped, key=lambda pair: _rank(pair[0]))


def _explains(cause: Ruling, effect: Ruling, slack_ms: int) -> bool:
    if not accounts_for(cause.playbook, cause.member, effect.playbook.id, effect.member):
        return False
    if _STRENGTH[cause.verdict] > _STRENGTH[effect.verdict] + 1:
        return False
    began, showed = cause.onset_ms, effect.onset_ms
    return began is None or showed is None or began <= showed + slack_ms


def _reaches(under: Mapping[int, int], start: int, goal: int) -> bool:
    while start in under:
        start = under[start]
        if start == goal:
            return True
    return False


def _root(under: Mapping[int, int], index: int) -> int:
    while index in under:
        index = under[index]
    return index


def _rank(ruling: Ruling) -> tuple[int, int, int, float, str]:
    return (
        int(ruling.ended_ms is not None),
        _STRENGTH[ruling.verdict],
        _SEVERITY.get(ruling.playbook.severity, 3),
        float("-inf") if ruling.onset_ms is None else ruling.onset_ms,
        ruling.playbook.id + str(ruling.member),
    )


def unexplained(bad: Iterable[Bad], found: Sequence[Ruling]) -> list[Bad]:
    """Bad checks that no finding accounts for."""
    return [
        one
        for one in bad
        if not any(accounts_for(r.playbook, r.member, SYMPTOM + one.symptom, one.member) for r in found)
    ]
