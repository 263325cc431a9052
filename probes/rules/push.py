"""Pushes label matchers from a rule's result down to its selectors, through the relabelling in between."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from probes.promql.ast import Matcher
from probes.rules.rule import Relabel

Matchers = tuple[Matcher, ...]


def push(matchers: Matchers, relabels: Iterable[Relabel]) -> list[Matchers]:
    """The matchers that the inner series must pass so that the relabelled ones pass ``matchers``.

    ``relabels`` are innermost first. The answer is a disjunction: none means that no series can pass. Its parts do
    not overlap, so their union has each series once.
    """
    ways = [matchers]
    for relabel in reversed(tuple(relabels)):
        ways = [inner for way in ways for inner in _through(relabel, way)]
    return ways


def _through(relabel: Relabel, matchers: Matchers) -> list[Matchers]:
    mine = tuple(m for m in matchers if m.name == relabel.target)
    if not mine:
        return [matchers]
    rest = tuple(m for m in matchers if m.name != relabel.target)
    ways: list[Matchers] = []
    if relabel.copies:
        hit = tuple(replace(m, name=relabel.source) for m in mine)
        ways.append((*rest, *hit, *(() if relabel.always else (Matcher(relabel.source, "!=", ""),))))
    elif all(m.accepts(relabel.replacement) for m in mine):
        ways.append((*rest, *(() if relabel.always else (Matcher(relabel.source, "=~", relabel.regex),))))
    if not relabel.always:
        # Not relabelled: the target is what the series brought along.
        ways.append((*rest, *mine, Matcher(relabel.source, "!~", relabel.regex)))
    return ways
