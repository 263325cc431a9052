"""Recordings composed once and kept in a folder, for tests and rehearsals that need many of them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path

from .compose import Composed, compose
from .scenarios import Truth
from .trim import trim


@cache
def lab_digest() -> str:
    """Changes with the lab's source: what an older lab composed is not taken from the shelf."""
    digest = hashlib.blake2b(digest_size=6)
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


class Shelf:
    """``folder`` is made when it is missing; entries of another lab version are never read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def composed(self, name: str, seed: int = 0, interval_s: float = 5) -> Composed:
        """The recording of a scenario, from the shelf or composed now."""
        self.folder.mkdir(parents=True, exist_ok=True)
        stem = f"{name}-{seed}-{interval_s:g}s-{lab_digest()}"
        text, truth = self.folder / f"{stem}.om", self.folder / f"{stem}.json"
        if text.exists() and truth.exists():
            return Composed(text.read_text(), _truth(truth.read_text()))
        made = compose(name, seed, interval_s)
        _put(truth, json.dumps(asdict(made.truth)))
        _put(text, made.text)
        return made

    def path(self, name: str, seed: int = 0, drop: Sequence[str] = (), interval_s: float = 5) -> Path:
        """A file with that recording, less the families in ``drop``."""
        made = self.composed(name, seed, interval_s)
        label = f"{name}-{seed}-{interval_s:g}s"
        if drop:
            label += "-without-" + hashlib.blake2b("\n".join(drop).encode(), digest_size=4).hexdigest()
        path = self.folder / f"{label}-{lab_digest()}.om"
        if not path.exists():
            _put(path, trim(made.text, drop=drop))
        return path


def _put(path: Path, text: str) -> None:
    """Whole or not at all: two test runs may fill one shelf."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(text)
    partial.replace(path)


def _truth(text: str) -> Truth:
    fields = json.loads(text)
    for name in ("also_acceptable", "must_not"):
        fields[name] = tuple(fields[name])
    return Truth(**fields)
