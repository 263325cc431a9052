"""Targets told apart: no two of them may give samples of the same series."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from probes.target import Target, TargetError, parse_target


def told_apart(targets: Sequence[Target]) -> list[Target]:
    """Each target once, shown and labelled unlike every other.

    A number where two differ only in what is not shown, such as the values of a query. Pages of one ``host:port``
    (behind an ingress, or a proxy) get their path into the label ``instance``. Raises ``TargetError`` for two with one
    name.
    """
    found: dict[tuple[object, ...], Target] = {_identity(target): target for target in targets}
    counts: Counter[str] = Counter()
    named = []
    for target in found.values():
        counts[target.shown] += 1
        count = counts[target.shown]
        named.append(target if count == 1 else replace(target, shown=f"{target.shown} #{count}"))
    return _instances(named)


def beside(target: Target, taken: Mapping[str, str]) -> Target:
    """A target that was listed later than others; ``taken`` maps their instances to their URLs."""
    if taken.get(target.instance, target.url) == target.url:
        return target
    instance = with_path(target) if _unnamed(target) else target.instance
    if taken.get(instance, target.url) != target.url:
        raise TargetError(_clash(target, instance))
    return replace(target, instance=instance)


def _identity(target: Target) -> tuple[object, ...]:
    return target.shown, target.url, target.path


def _instances(targets: Sequence[Target]) -> list[Target]:
    pages = Counter(target.instance for target in targets if target.kind == "http")
    taken: set[str] = set()
    told = []
    for target in targets:
        if target.kind == "http":
            if pages[target.instance] > 1 and _unnamed(target):
                target = replace(target, instance=_free(with_path(target), taken))
            if target.instance in taken:
                raise TargetError(_clash(target, target.instance))
            taken.add(target.instance)
        told.append(target)
    return told


def _free(instance: str, taken: set[str]) -> str:
    """The instance, numbered where only what may not be shown tells it from another."""
    count, free = 1, instance
    while free in taken:
        count += 1
        free = f"{instance} #{count}"
    return free


def _unnamed(target: Target) -> bool:
    """Whether its instance is the ``host:port`` of its URL."""
    return parse_target(target.url).instance == target.instance


def with_path(target: Target) -> str:
    """The instance with the path of its page; path parameters (``;x=…``) may be secrets and stay out."""
    path = "/".join(part.partition(";")[0] for part in urlsplit(target.url).path.split("/"))
    return target.instance + path


def _clash(target: Target, instance: str) -> str:
    return (
        f"target {target.shown}: another target has the name (label instance) {instance}, too; "
        "their numbers would be mixed up: give each its own name"
    )
