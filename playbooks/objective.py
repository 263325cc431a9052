"""A user's own objective: what "bad" means where they said so."""

from __future__ import annotations

import re
from dataclasses import dataclass

from playbooks.playbook import Test
from playbooks.sweep import Check

_OBJECTIVE = re.compile(r"^(?P<expr>.+?)\s*(?P<op><=|>=|<|>)\s*(?P<value>[-+0-9.eE]+)\s*$", re.DOTALL)
_BROKEN = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}


class ObjectiveError(ValueError):
    """An objective that is not ``EXPR OP NUMBER``."""


@dataclass(frozen=True, slots=True)
class Objective:
    """``expr op value`` must hold; where it does not, latency is bad."""

    text: str
    check: Check


def objective(text: str) -> Objective:
    """Parse ``EXPR OP NUMBER``, for example ``histogram_quantile(0.99, …) < 2``.

    Raises ObjectiveError with one line that says what was expected.
    """
    match = _OBJECTIVE.match(text.strip())
    if match is None:
        raise ObjectiveError(f"objective {text!r} is not EXPR OP NUMBER; write for example 'kv:requests_waiting < 10'")
    try:
        value = float(match["value"])
    except ValueError:
        raise ObjectiveError(f"objective {text!r} does not end in a number") from None
    test = Test(
        name="objective",
        expr=" ".join(match["expr"].split()),
        op=_BROKEN[match["op"]],
        threshold=value,
        basis="policy",
        source="the user's objective",
        says=f"the objective {match['expr'].strip()} {match['op']} {match['value']} is broken: {{value:.4g}}",
    )
    return Objective(text, Check(test, "fleet", "latency", sticky=False))
