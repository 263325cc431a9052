"""What a person and a program read when the run is over: the table, the files, the exit code."""

from __future__ import annotations

import datetime
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu.rows import BAD, FAILED, RIGHT, SKIPPED, STATES, UNFINISHED, WRONG, Row
from gpu.runner import Found

SCHEMA = "kvscope.gpu-check/1"


def line(row: Row) -> str:
    """A row as it comes."""
    cells = [f"{row.section}: {row.name}", row.state, figure(row)]
    return "  ".join(cell for cell in cells if cell) + (f"  ({row.note})" if row.note else "")


def figure(row: Row) -> str:
    """The number with its unit, and the aim."""
    if row.value is None:
        return ""
    number = f"{row.value:,.0f}" if abs(row.value) >= 1000 or row.value == int(row.value) else f"{row.value:.3g}"
    return " ".join(part for part in (number, row.unit, f"(aim {row.aim})" if row.aim else "") if part)


def table(found: Found) -> str:
    """Section by section: how many rows are right, and every other row; then what it ran on and what it comes to."""
    others = [row for row in found.rows if row.state != RIGHT]
    wide = max((len(row.name) for row in others), default=0)
    lines = []
    for section in dict.fromkeys(row.section for row in found.rows):
        right = sum(row.state == RIGHT for row in found.rows if row.section == section)
        took = found.seconds.get(section)
        lines.append(section + (f" ({took:g} s)" if took is not None else "") + (f": {right} right" if right else ""))
        for row in others:
            if row.section == section:
                lines.append(f"  {row.name:<{wide}}  {row.state:<12}  {figure(row):<34}  {row.note}".rstrip())
    return "\n".join([*lines, "", machine(found.facts), verdict(found)])


def verdict(found: Found) -> str:
    """One line: how many rows of each state."""
    counts = Counter(row.state for row in found.rows)
    told = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
    return f"{_word(counts)}: {told}" if told else _word(counts)


def _word(counts: Mapping[str, int]) -> str:
    """The worst that there is; only a number that is wrong is WRONG, and what was only skipped is not well."""
    if counts[WRONG]:
        return "something is WRONG"
    if counts[FAILED]:
        return "something FAILED"
    if counts[UNFINISHED]:
        return "NOT FINISHED, and nothing is wrong so far"
    return "nothing is wrong" if any(counts[state] for state in STATES if state != SKIPPED) else "NOTHING was checked"


def machine(facts: dict[str, Any]) -> str:
    names = ("gpu", "python", "torch", "triton", "cuda", "seed", "seconds")
    return ", ".join(f"{name} {facts[name]}" for name in names if facts.get(name) is not None)


def exit_code(found: Found) -> int:
    """0 when nothing is wrong and something was checked: what was skipped was not."""
    return int(all(row.state == SKIPPED for row in found.rows) or any(row.state in BAD for row in found.rows))


def write(found: Found, out: Path) -> list[Path]:
    """`gpu-DATE.json` and `gpu-DATE.md` (`gpu-cpu-DATE` for a run without a GPU)."""
    day = datetime.date.today().isoformat()
    stem = out / (f"gpu-cpu-{day}" if found.facts.get("interpreted") else f"gpu-{day}")
    values = {
        "schema": SCHEMA,
        "date": day,
        "facts": found.facts,
        "seconds": found.seconds,
        "rows": [row.as_dict() for row in found.rows],
    }
    paths = [stem.with_suffix(".json"), stem.with_suffix(".md")]
    paths[0].write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    paths[1].write_text(markdown(found, day), encoding="utf-8")
    return paths


def markdown(found: Found, day: str) -> str:
    """The table as a page of `benchmarks/results/`."""
    lines = [
        f"# The store's kernels on a GPU, {day}",
        "",
        f"`benchmarks/gpu_check.py`: {machine(found.facts)}.",
        "",
        "| section | what | | figure | note |",
        "|---|---|---|---|---|",
    ]
    for row in found.rows:
        state = f"**{row.state}**" if row.state in (*BAD, "MISSED") else row.state
        cells = (row.section, row.name, state, figure(row), row.note)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, "", verdict(found) + ".", ""])
