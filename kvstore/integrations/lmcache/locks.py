"""What LMCache has locked: leases on the batches that were looked up, released once their last key is unlocked."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass

from kvstore.locations import Locations


@dataclass(slots=True, eq=False)
class _Batch:
    located: Locations
    left: int


class Locks:
    """For several threads. A lease also ends by itself: a controller that dies locks nothing for ever."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[Hashable, list[_Batch]] = defaultdict(list)

    def __len__(self) -> int:
        """Keys that are locked (by this count; their leases may have ended)."""
        return len(self._held)

    def add(self, names: list[Hashable], located: Locations) -> None:
        """The lease in `located` covers `names`."""
        batch = _Batch(located, len(names))
        with self._lock:
            for name in names:
                self._held[name].append(batch)

    def remove(self, names: list[Hashable]) -> list[Locations]:
        """One lock less on each; the leases that nobody needs any more."""
        free = []
        with self._lock:
            for name in names:
                batches = self._held.get(name)
                if not batches:
                    continue
                batch = batches.pop(0)
                if not batches:
                    del self._held[name]
                batch.left -= 1
                if not batch.left:
                    free.append(batch.located)
        return free
