"""A plain-text table: columns as wide as their widest cell, numbers to the right."""

from __future__ import annotations

from collections.abc import Sequence

from playbooks.printable import printable


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = (), indent: str = "") -> str:
    """Lines joined by line feeds; ``right`` names the columns that end flush right. No head: pass an empty one."""
    everything = [[printable(cell) for cell in row] for row in ([head] if head else [])] + [
        [printable(cell) for cell in row] for row in rows
    ]
    if not everything:
        return ""
    widths = [max(len(row[k]) for row in everything) for k in range(len(everything[0]))]
    lines = []
    for row in everything:
        cells = [
            cell.rjust(width) if k in right else cell.ljust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append((indent + "  ".join(cells)).rstrip())
    return "\n".join(lines)
