"""A topology from a file: for hosts whose NVML cannot be asked, or to say what NVML does not know."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import yaml

from kvstore.errors import BadRequest
from kvstore.topology.graph import SCHEMA, Gpu, Topology, Way, bus_of

MAX_BYTES = 4 << 20


def read(path: Path) -> Topology:
    """Of a YAML (or JSON) file. Raises `BadRequest` with what is wrong where; `OSError` where it cannot be read."""
    if path.exists() and not path.is_file():
        raise BadRequest(f"{path}: no regular file")
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise BadRequest(f"{path}: more than {MAX_BYTES >> 20} MiB are no topology")
    try:
        said = yaml.safe_load(data)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where is not None else ""
        raise BadRequest(f"{path}{line}: not YAML: {getattr(error, 'problem', None) or 'it does not parse'}") from None
    try:
        return parsed(said, source=str(path))
    except BadRequest as error:
        raise BadRequest(f"{path}: {error}") from None


def parsed(said: Any, source: str) -> Topology:
    """Of what a file holds. Raises `BadRequest`."""
    if not isinstance(said, dict) or said.get("schema") != SCHEMA:
        raise BadRequest(f"a topology begins with schema: {SCHEMA}")
    _require_known(said, ("schema", "source", "gpus", "links"))
    gpus = tuple(_gpu(entry, at) for at, entry in enumerate(_rows(said, "gpus")))
    _require_apart(gpus)
    ways: dict[tuple[str, str], Way] = {}
    for at, entry in enumerate(_rows(said, "links")):
        ends, way = _link(entry, at)
        if ends in ways:
            raise BadRequest(f"links[{at}]: the way from {ends[0]!r} to {ends[1]!r} is there twice")
        back = ways.get((ends[1], ends[0]))
        if back is not None and back.word != way.word:
            raise BadRequest(
                f"links[{at}]: from {ends[0]!r} to {ends[1]!r} it is {way.word}, the other way round {back.word}: both "
                "directions are one way (only their bytes_per_second may differ)"
            )
        ways[ends] = way
    return Topology(gpus, ways, source)


def _rows(said: dict[str, Any], name: str) -> list[Any]:
    rows = said.get(name, [])
    if not isinstance(rows, list):
        raise BadRequest(f"{name} is a list")
    return rows


def _gpu(entry: Any, at: int) -> Gpu:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or not entry["name"]:
        raise BadRequest(f"gpus[{at}]: a GPU has a name")
    try:
        _require_known(entry, ("name", "bus", "uuid", "model"))
        return Gpu(entry["name"], bus_of(_text(entry, "bus")), _text(entry, "uuid"), _text(entry, "model"))
    except BadRequest as error:
        raise BadRequest(f"gpus[{at}]: {error}") from None


def _require_known(entry: dict[Any, Any], names: tuple[str, ...]) -> None:
    """A name that is misspelt would be no word about what it should have said."""
    for name in entry:
        if name not in names:
            raise BadRequest(f"no field {name!r:.40}; there are {', '.join(names)}")


def _require_apart(gpus: tuple[Gpu, ...]) -> None:
    sits: dict[str, str] = {}
    for gpu in gpus:
        if gpu.bus and sits.setdefault(gpu.bus, gpu.name) != gpu.name:
            raise BadRequest(f"{sits[gpu.bus]!r} and {gpu.name!r} are both on bus {gpu.bus}")


def _text(entry: dict[str, Any], name: str) -> str:
    """Of an optional field. YAML reads some bus ids as numbers where they are not quoted."""
    value = entry.get(name, "")
    if not isinstance(value, str):
        raise BadRequest(f"{name} {value!r:.40} is no text: write it in quotes")
    return value


def _link(entry: Any, at: int) -> tuple[tuple[str, str], Way]:
    ends = entry.get("between") if isinstance(entry, dict) else None
    if not isinstance(ends, list) or len(ends) != 2 or not all(isinstance(end, str) for end in ends):
        raise BadRequest(f"links[{at}]: between: [ONE, OTHER] is expected")
    try:
        _require_known(entry, ("between", "way", "bytes_per_second"))
        return (ends[0], ends[1]), Way(str(entry.get("way", "?")), _rate(entry.get("bytes_per_second")))
    except BadRequest as error:
        raise BadRequest(f"links[{at}]: {error}") from None


def _rate(value: Any) -> float | None:
    """YAML 1.1 has `450e9` for a text: it wants a sign in the exponent."""
    if value is None:
        return None
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        with contextlib.suppress(ValueError, OverflowError):
            return float(value)
    raise BadRequest(f"bytes_per_second {value!r} is no number")
