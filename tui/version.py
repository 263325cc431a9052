"""Which kvtop this is."""

from __future__ import annotations

VERSION = "0.1.0"


def version_line() -> str:
    return f"kvtop {VERSION} (kvscope)"
