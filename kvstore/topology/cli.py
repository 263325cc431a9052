"""`kvstore topology`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from kvstore.printable import printable
from kvstore.topology.graph import LEGEND, SELF, Topology


def run(argv: Sequence[str]) -> int:
    """Print how the GPUs of this host, or of a file, reach each other; the exit code."""
    given = _parser().parse_args(argv)
    topology = _read(given.file)
    if given.measure:
        from kvstore.topology.measure import measured

        topology = measured(topology)
    if given.json:
        print(json.dumps(topology.as_dict(), indent=1))
    else:
        print("\n".join(lines_of(topology)))
    return 0


def _read(path: Path | None) -> Topology:
    if path is not None:
        from kvstore.topology.file import read as read_file

        return read_file(path)
    from kvstore.topology.nvml import read as read_nvml

    return read_nvml()


def lines_of(topology: Topology) -> list[str]:
    """A matrix of words, one of measured rates where there are any, the order of each GPU's peers, and a legend."""
    names = [gpu.name for gpu in topology.gpus]
    if not names:
        return [f"no GPUs ({printable(topology.source)})"]
    words = [[SELF if a == b else topology.way(a, b).word for b in names] for a in names]
    found = [f"GPUs by {printable(topology.source)}", *_matrix(names, words)]
    rates = [[None if a == b else topology.way(a, b).bytes_per_second for b in names] for a in names]
    if any(rate is not None for row in rates for rate in row):
        text = [["-" if rate is None else f"{rate / 1e9:.1f}" for rate in row] for row in rates]
        found += ["", "GB/s, from the row's GPU to the column's", *_matrix(names, text)]
    found += ["", "peers, the best reached first (by what was measured, else by the kind of way)"]
    for name in names:
        ranked = [f"{printable(peer)} ({way.word})" for peer, way in topology.ranked(name)]
        found.append(f"  {printable(name)}: {', '.join(ranked) or 'none'}")
    used = {"NV" if word.startswith("NV") else word for row in words for word in row}
    found += ["", *(f"  {word:<5} {text}" for word, text in LEGEND.items() if word in used)]
    return found


def _matrix(gpus: list[str], rows: list[list[str]]) -> list[str]:
    names = [printable(name) for name in gpus]
    width = max(len(text) for row in [names, *rows] for text in row)
    head = " " * width + "".join(f"  {name:>{width}}" for name in names)
    return [
        head,
        *(
            f"{name:<{width}}" + "".join(f"  {text:>{width}}" for text in row)
            for name, row in zip(names, rows, strict=True)
        ),
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("kvstore topology", description="How the GPUs of this host reach each other.")
    parser.add_argument(
        "--file", type=Path, metavar="FILE", help="from a file (YAML, or this command's --json), not NVML"
    )
    parser.add_argument(
        "--measure", action="store_true", help="copy between each two of them and say how fast that was"
    )
    parser.add_argument("--json", action="store_true", help="as JSON, which --file reads")
    return parser
