"""Whose blocks a log holds: the layout's fields, as JSON, kept in every checkpoint and summed in every segment."""

from __future__ import annotations

import json
from pathlib import Path

import xxhash

from kvstore.errors import LayoutMismatch

_SECRET = "salt"
"""Only a fingerprint, but a tenant's: its value is not shown."""


def layout_sum(layout: str) -> int:
    """What a segment says of its layout: xxh3-64 of the text."""
    return xxhash.xxh3_64_intdigest(layout.encode())


def require_layout(directory: Path, theirs: str, ours: str) -> None:
    """Raise `LayoutMismatch` naming the first field in which the log's layout (`theirs`) is not `ours`."""
    if theirs == ours:
        return
    have, want = _fields(theirs), _fields(ours)
    name = next((name for name in sorted({*have, *want}) if have.get(name) != want.get(name)), "layout")
    what = (
        f"layout field {name!r}, {have.get(name)!r} there and {want.get(name)!r} here"
        if name != _SECRET
        else "layout field 'salt': another tenant's"
    )
    raise LayoutMismatch(
        f"the log in {directory} holds blocks of another layout ({what}): use that layout, or another log directory"
    )


def _fields(layout: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(layout) if layout else {}
    return found
