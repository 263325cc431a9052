"""Was the diagnosis right?"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from playbooks.lab.live.rig import Outcome


@dataclass(frozen=True)
class Score:
    """`cause`: the first finding is the true one (or rightly nothing was found); `member`: it names the right one."""

    cause: bool
    member: bool
    says: str

    @property
    def right(self) -> bool:
        return self.cause and self.member


def score(outcome: Outcome) -> Score:
    """Compare the most important finding with the truth."""
    diagnosis, truth = outcome.diagnosis, outcome.truth
    first = diagnosis.findings[0] if diagnosis.findings else None
    said = f"{first.cause} on {_labels(first.member)} ({first.verdict.value})" if first else diagnosis.verdict.value
    if truth.cause == "healthy":
        silent = first is None and diagnosis.verdict.value == "healthy"
        return Score(silent, silent, said)
    if first is None:
        return Score(False, False, said)
    member = all(first.member.get(name) == value for name, value in truth.member.items())
    return Score(first.cause == truth.cause, member, said)


def as_json(outcome: Outcome) -> dict[str, Any]:
    """For machines: the truth, what was said, and whether that is right."""
    result = score(outcome)
    first = outcome.diagnosis.findings[0] if outcome.diagnosis.findings else None
    return {
        "scenario": outcome.scenario,
        "level": outcome.level,
        "seed": outcome.seed,
        "truth": {"cause": outcome.truth.cause, "member": dict(outcome.truth.member)},
        "verdict": outcome.diagnosis.verdict.value,
        "finding": {"cause": first.cause, "verdict": first.verdict.value, "member": dict(first.member)}
        if first
        else None,
        "refuted": [refutation.cause for refutation in first.refuted] if first else [],
        "cause_right": result.cause,
        "member_right": result.member,
        "stand_in": outcome.stand_in,
        "loops": [asdict(loop) for loop in outcome.loops],
    }


def _labels(member: Any) -> str:
    return ", ".join(f"{name} {value}" for name, value in member.items()) or "the store"
