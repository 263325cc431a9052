"""Where a store's shards are: from a list of addresses or a cluster file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvstore.errors import BadRequest


def addresses_of(targets: str | Path | Sequence[str]) -> list[str]:
    """`"host:port,host:port"`, a sequence of such, or the path of a cluster file. Raises `BadRequest`."""
    if isinstance(targets, Path) or (isinstance(targets, str) and ("/" in targets or targets.endswith(".json"))):
        return [str(shard["address"]) for shard in read_cluster(Path(targets))]
    words = targets.split(",") if isinstance(targets, str) else [str(word) for word in targets]
    found = [word.strip() for word in words if word.strip()]
    if not found:
        raise BadRequest("no shard was named: give host:port,host:port or the path of a cluster file")
    for word in found:
        host, colon, port = word.rpartition(":")
        if not colon or not host or not port_of(port):
            raise BadRequest(f"{word!r} is no address of a shard: host:port is expected")
    return found


def port_of(text: str) -> int | None:
    """A port's number, 0 … 65535; None for anything else."""
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= 5 else -1
    return number if 0 <= number <= 65_535 else None


def read_cluster(path: Path) -> list[dict[str, Any]]:
    """The shards of a cluster file, by number."""
    try:
        shards = [dict(shard) for shard in json.loads(path.read_text(encoding="utf-8"))["shards"]]
        if not shards or not all(isinstance(shard["address"], str) for shard in shards):
            raise ValueError
        return sorted(shards, key=lambda shard: int(shard["shard"]))
    except OSError as error:
        raise BadRequest(f"cluster file {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadRequest(f"{path} is no cluster file (kvstore cluster --cluster-file FILE writes one)") from None
