"""Keys whose blocks were handed to the log and are not published yet.

Between the two somebody else may take such a key away: the log then holds a record that says it is gone behind the one
that stores it. Who publishes it must know, and write it again; and who takes it away must log that, although no slot
says that the log knows the key.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from kvstore.keys import Keys

Slots = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
NO_SLOTS: Slots = np.zeros(0, np.int64)


def names(keys: Keys) -> list[bytes]:
    """Keys as dictionary keys."""
    raw = np.ascontiguousarray(keys).tobytes()
    return [raw[row * 32 : row * 32 + 32] for row in range(len(keys))]


@dataclass(slots=True, eq=False)
class Claim:
    """The keys of one put or append, from its batch until it is published or taken back."""

    future: asyncio.Future[None]
    """Done when the batch is durable; fails as the log fails."""
    names: set[bytes]
    existing: Slots = field(default_factory=lambda: NO_SLOTS)
    """Slots that were published before, and are in the log once `future` is done."""
    dropped: set[bytes] = field(default_factory=set)
    """Of `names`: a later record says that they are gone."""
    again: bool = False
    """Not its first batch."""


class Claims:
    """The claims of a shard, by key."""

    def __init__(self) -> None:
        self._of: dict[bytes, list[Claim]] = {}

    def __len__(self) -> int:
        return len(self._of)

    def __contains__(self, name: bytes) -> bool:
        return name in self._of

    def add(self, claim: Claim, added: set[bytes]) -> None:
        """`added` keys belong to `claim`."""
        for name in added:
            self._of.setdefault(name, []).append(claim)
        claim.names |= added

    def end(self, claim: Claim) -> None:
        """Published or taken back."""
        for name in claim.names:
            left = [other for other in self._of.get(name, ()) if other is not claim]
            if left:
                self._of[name] = left
            else:
                self._of.pop(name, None)
        claim.names = set()

    def drop(self, name: bytes) -> None:
        """A record that says `name` is gone went to the log."""
        for claim in self._of.get(name, ()):
            claim.dropped.add(name)
