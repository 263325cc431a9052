"""Keys → shard numbers under one epoch, where members come and go."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvstore.keys import Keys
from kvstore.layout import Layout
from kvstore.placement import Ints, Placement, placement


class Homes:
    """A `Placement` of members by name: `"3"` is shard number 3, `"3.1"` the same after it had lost its lease once.

    (A placement never takes a name twice: what a shard was the home of before it left is no longer so.)
    """

    def __init__(
        self, kind: str, layout: Layout, first: Sequence[str], changes: Sequence[str], before: Homes | None = None
    ) -> None:
        """`before`: homes of an earlier epoch; what was computed for them is used again."""
        known = None if before is None else before.placement
        if known is not None and (known.kind, known.members, known.changes) == (
            kind,
            tuple(first),
            tuple(changes[: len(known.changes)]),
        ):
            self.placement: Placement = known.then(changes[len(known.changes) :])
        else:
            self.placement = placement(kind, layout, first, changes)
        self._numbers = np.array([number_of(name) for name in self.placement.names], np.int64)
        self.live = tuple(int(self._numbers[place]) for place in self.placement.live)

    def home(self, keys: Keys) -> Ints:
        """Shard number of each key of `keys` `[n, 4]`: `[n]`. Raises `BadRequest` for a key outside the layout."""
        if len(self.live) == 1:
            return np.full(len(keys), self.live[0], np.int64)
        numbers: Ints = self._numbers[self.placement.home(keys)]
        return numbers


def number_of(name: str) -> int:
    return int(name.partition(".")[0])
