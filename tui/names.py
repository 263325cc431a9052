"""What entities are called in front of a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence


def entity_name(labels: Mapping[str, str]) -> str:
    """A short name for a person: the shard, or the instance with its rank, GPU or device."""
    if labels.get("shard"):
        return f"shard {labels['shard']}"
    name = labels.get("instance", "")
    if labels.get("gpu"):
        return f"{name} gpu {labels['gpu']}"
    if labels.get("device"):
        return f"{name} {labels['device']}"
    rank = labels.get("engine", "")
    return f"{name} #{rank}" if rank not in ("", "0") else name


def names_apart(entities: Sequence[Mapping[str, str]]) -> list[str]:
    """Their names. Shards of two stores have the same numbers: such are told with their ports, or where these are the
    same, too, with their addresses."""
    names = [entity_name(labels) for labels in entities]
    for told in (_port, _address):
        counts = Counter(names)
        for i, labels in enumerate(entities):
            if counts[names[i]] > 1 and labels.get("shard") and labels.get("instance"):
                names[i] = f"{entity_name(labels)} {told(labels)}"
    return names


def _port(labels: Mapping[str, str]) -> str:
    return f":{labels['instance'].rpartition(':')[2]}"


def _address(labels: Mapping[str, str]) -> str:
    return labels["instance"]
