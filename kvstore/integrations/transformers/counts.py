"""What one StoreCache did."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """Plain counts, of this cache alone; tokens are of all rows together unless said otherwise."""

    matched_tokens: int = 0
    """Taken from the store instead of computed."""
    computed_columns: int = 0
    """Positions that forward passes computed, padding included (a step of a batch of three: 1)."""
    forwards: int = 0
    read_blocks: int = 0
    written_blocks: int = 0
    appends: int = 0
    puts: int = 0
    read_failures: int = 0
    """The store could not be asked or read: everything was computed."""
    write_failures: int = 0
    """Steps whose writing failed; it is tried again later."""
    conflicts: int = 0
    """A session's tail was not what we continued: edited, or somebody else's; it was begun anew."""
    given_up_rows: int = 0
    """Rows that are written no more (the store was away too long, or the row ended)."""
