"""The shards that a client talks to: which is the home of which key, and where keys are by their mapped indexes."""

from __future__ import annotations

import asyncio

import numpy as np

from kvstore.deadline import Deadline
from kvstore.errors import BadRequest, ShardUnavailable
from kvstore.keys import Keys
from kvstore.layout import Layout
from kvstore.link import Link
from kvstore.placement import Placement, placement
from kvstore.tally import Tally
from kvstore.transport import Ints, Peer, Words


class Shards:
    """Links by shard number, and the placement that all of them agree on."""

    def __init__(self, links: list[Link], layout: Layout) -> None:
        self.links = _in_order(links)
        self.tallies = [Tally() for _ in links]
        kinds = {str(link.facts.get("placement")) for link in links}
        if len(kinds) != 1:
            raise BadRequest(f"these shards do not agree on the placement: {', '.join(sorted(kinds))}")
        self.placement: Placement = placement(kinds.pop(), layout, [str(number) for number in range(len(links))])

    def __len__(self) -> int:
        return len(self.links)

    @property
    def afar(self) -> bool:
        """Whether some shard is reached over the network."""
        return any(link.afar for link in self.links)

    def home(self, keys: Keys) -> Ints:
        """Shard number of each key."""
        if len(self.links) == 1:
            return np.zeros(len(keys), np.int64)
        return self.placement.home(keys)

    def rows(self, home: Ints) -> list[tuple[int, Ints | None]]:
        """Shard numbers that occur in `home`, and the rows of each (None: all rows)."""
        if len(self.links) == 1:
            return [(0, None)] if len(home) else []
        return [(number, np.flatnonzero(home == number)) for number in np.unique(home).tolist()]

    def peer(self, number: int) -> Peer:
        """The peer of a shard if it is up; else `ShardUnavailable` (`Link.ensure` may bring it back)."""
        link = self.links[number]
        if link.peer is None or not link.up:
            raise ShardUnavailable(f"shard {number} ({link.address}) is gone")
        return link.peer

    async def ensure(self, numbers: list[int], deadline: Deadline) -> None:
        """All of these shards are up on return. Raises `ShardUnavailable`."""
        for number in numbers:
            if not self.links[number].up:
                await self.links[number].ensure(deadline)

    def find(self, number: int, keys: Keys) -> tuple[Ints, Words]:
        """Slot (−1: absent) and generation of each key in a shard's mapped index.

        A writer that moves an entry from bucket to bucket may hide it from one look: misses are looked at twice.
        """
        index = self.peer(number).index
        if index is None:
            raise ShardUnavailable(f"the index of shard {number} cannot be seen from here")
        slots, generations = index.find(keys)
        missing = np.flatnonzero(slots < 0)
        if len(missing):
            again, found = index.find(keys[missing])
            slots[missing], generations[missing] = again, found
        return slots, generations

    async def close(self) -> None:
        await asyncio.gather(*(link.drop() for link in self.links))


def _in_order(links: list[Link]) -> list[Link]:
    by_number = {link.number: link for link in links}
    if len(by_number) != len(links):
        raise BadRequest("a shard was named twice")
    told = int(links[0].facts["shards"])
    if told != len(links) or sorted(by_number) != list(range(told)):
        raise BadRequest(
            f"{len(links)} shards were named (numbers {', '.join(map(str, sorted(by_number)))}), the store has {told}: "
            "name all of them"
        )
    return [by_number[number] for number in range(told)]
