"""The packaged rule files as they are after reading, in one file: every start would read 60 kB of YAML anew.

``engines/packed.json`` is written by ``python -m probes.rules.packed`` and names the check sums of the files that it
was made from; where they differ from what is there, the files themselves are read.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from probes.promql import ast
from probes.records import dataclass
from probes.rules.canonical import CanonicalEntry
from probes.rules.rule import Alternative, Relabel, Rule

ENGINES = Path(__file__).parents[1] / "engines"
FILE = ENGINES / "packed.json"
_FORMAT = 1
# The position of a class is its number in the file: add at the end, and count _FORMAT up for any other change.
_CLASSES: tuple[Any, ...] = (
    ast.NumberLiteral,
    ast.StringLiteral,
    ast.VectorSelector,
    ast.MatrixSelector,
    ast.Subquery,
    ast.Call,
    ast.Aggregate,
    ast.Binary,
    ast.Unary,
    ast.Paren,
    ast.Matcher,
    ast.VectorMatching,
    Relabel,
    Alternative,
    Rule,
    CanonicalEntry,
)
_NUMBERS = {cls: number for number, cls in enumerate(_CLASSES)}
_TUPLE = -1


@dataclass(frozen=True)
class Packed:
    """What the files say; ``info`` is ``info_labels.yml`` as loaded."""

    entries: tuple[CanonicalEntry, ...]
    rules: tuple[Rule, ...]
    info: Mapping[str, Mapping[str, list[str]]]


@cache
def packed() -> Packed | None:
    """The packed files; None where they have changed since they were packed (or were never)."""
    try:
        found = json.loads(FILE.read_bytes())
        if found["format"] != _FORMAT or found["sums"] != _sums():
            return None
        return Packed(_decoded(found["entries"]), _decoded(found["rules"]), found["info"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def write() -> None:
    """Read the YAML files and pack them anew."""
    import yaml

    from probes.rules.canonical import Vocabulary
    from probes.rules.document import Document
    from probes.rules.files import VOCABULARY_FILE, packaged, read_rules

    documents = [Document.read(f, f.name) for f in packaged()]
    vocabulary = Vocabulary.read([d for d in documents if d.file.endswith(VOCABULARY_FILE)])
    rules = [r for d in documents if not d.file.endswith(VOCABULARY_FILE) for r in read_rules(d, vocabulary)]
    content = {
        "format": _FORMAT,
        "sums": _sums(),
        "info": yaml.safe_load((ENGINES / "info_labels.yml").read_text("utf-8")),
        "entries": _encoded(tuple(vocabulary)),
        "rules": _encoded(tuple(rules)),
    }
    FILE.write_text(json.dumps(content, separators=(",", ":"), ensure_ascii=False) + "\n", encoding="utf-8")


def _sums() -> dict[str, int]:
    return {f.name: zlib.crc32(f.read_bytes()) for f in sorted(ENGINES.glob("*.yml"))}


def _encoded(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_TUPLE, *map(_encoded, value)]
    number = _NUMBERS.get(type(value))
    if number is None:
        return value
    return [number, *(_encoded(getattr(value, item.name)) for item in fields(value))]


def _decoded(value: Any) -> Any:
    if type(value) is not list:
        return value
    parts = [_decoded(one) if type(one) is list else one for one in value[1:]]
    return tuple(parts) if value[0] == _TUPLE else _CLASSES[value[0]](*parts)


if __name__ == "__main__":
    write()
