"""``label_replace`` and ``label_join``."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from probes.labels import Labels
from probes.printable import one_line
from probes.promql.context import Context
from probes.promql.errors import PromQLError
from probes.promql.patterns import fault
from probes.promql.settle import merged, relabelled
from probes.promql.value import Vector

LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")
_REFERENCE = re.compile(r"\$(?:(\$)|\{(\w+)\}|(\w+))", re.ASCII)


def label_replace(ctx: Context, vector: Vector, target: str, replacement: str, source: str, pattern: str) -> Vector:
    """Set ``target`` to ``replacement`` ($1, ${name}) where the whole of ``source`` matches ``pattern``."""
    try:
        wrong = fault(pattern)
        matcher = re.compile(pattern, re.DOTALL)
    except re.error as error:
        raise PromQLError(f"invalid regular expression in label_replace(): {pattern}: {error}") from None
    if wrong is not None:
        raise PromQLError(f"pattern {one_line(pattern, 60)!r} in label_replace() {wrong}")
    _check(target, "label_replace")

    def change(labels: Labels) -> Labels:
        hit = matcher.fullmatch(labels.get(source))
        return labels if hit is None else labels.replace(**{target: expand(replacement, hit)})

    return _each(ctx, vector, ("replace", target, replacement, source, pattern), change)


def expand(template: str, hit: re.Match[str]) -> str:
    """Go's Regexp.Expand: ``$name`` takes the longest run of letters, digits and ``_``; unknown names are empty."""

    def one(reference: re.Match[str]) -> str:
        if reference[1]:
            return "$"
        name = reference[2] or reference[3]
        if name.isdigit():
            number = int(name)
            return (hit[number] or "") if number <= (hit.re.groups or 0) else ""
        return hit.groupdict().get(name) or ""

    return _REFERENCE.sub(one, template)


def label_join(ctx: Context, vector: Vector, target: str, separator: str, sources: tuple[str, ...]) -> Vector:
    """Set ``target`` to the values of ``sources`` joined by ``separator``."""
    _check(target, "label_join")

    def change(labels: Labels) -> Labels:
        return labels.replace(**{target: separator.join(labels.get(s) for s in sources)})

    return _each(ctx, vector, ("join", target, separator, *sources), change)


def _check(name: str, function: str) -> None:
    if LABEL_NAME.match(name) is None:
        raise PromQLError(f"invalid destination label name in {function}(): {name}")


def _each(ctx: Context, vector: Vector, what: tuple[str, ...], change: Callable[[Labels], Labels]) -> Vector:
    """Rewrite the labels of every row; ``what`` names the change, which is made once for the same label sets."""
    labels, unique = ctx.cache.get(("relabel", what, vector.labels), lambda: _rewrite(vector.labels, change))
    made = relabelled(vector, labels)
    return made if unique else merged(made)


def _rewrite(labels: Sequence[Labels], change: Callable[[Labels], Labels]) -> tuple[tuple[Labels, ...], bool]:
    changed = tuple(change(found) for found in labels)
    return changed, len(set(changed)) == len(changed)
