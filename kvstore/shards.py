"""The shards that a client talks to: which is the home of which key, and where keys are by their mapped indexes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, TypeVar

import numpy as np

from kvstore.deadline import Deadline
from kvstore.errors import BadRequest, ShardUnavailable
from kvstore.keys import Keys
from kvstore.layout import Layout
from kvstore.link import Link
from kvstore.membership.homes import Homes
from kvstore.placement import Placement, placement
from kvstore.tally import Tally
from kvstore.transport import Ints, Peer, Words

T = TypeVar("T")


class Numbered(Generic[T]):
    """Things by shard number, which need not follow on each other: `links[3]`; iterated in order of number."""

    def __init__(self, things: Mapping[int, T]) -> None:
        self._things = dict(sorted(things.items()))

    def __getitem__(self, number: int) -> T:
        try:
            return self._things[number]
        except KeyError:
            raise ShardUnavailable(f"shard {number} is no member of the store any more") from None

    def __iter__(self) -> Iterator[T]:
        return iter(self._things.values())

    def __len__(self) -> int:
        return len(self._things)

    def get(self, number: int) -> T | None:
        return self._things.get(number)

    def items(self) -> Iterable[tuple[int, T]]:
        return self._things.items()


class Shards:
    """Links by shard number, and the placement that all of them agree on. Immutable: when members change there are
    others, which take over what `before` had of shards that stay."""

    def __init__(
        self, links: list[Link], layout: Layout, homes: Homes | None = None, before: Shards | None = None
    ) -> None:
        self._homes = homes
        if homes is None:
            links = _in_order(links)
            self.placement: Placement = placement(_kind(links), layout, [str(at) for at in range(len(links))])
        else:
            self.placement = homes.placement
        self.links = Numbered({link.number: link for link in links})
        known: dict[int, tuple[Link, Tally]] = {}
        if before is not None:
            known = {number: (before.links[number], tally) for number, tally in before.tallies.items()}
        self.tallies: Numbered[Tally] = Numbered(
            {
                number: known[number][1] if number in known and known[number][0] is link else Tally()
                for number, link in self.links.items()
            }
        )
        self._only = next(iter(self.links)).number if len(self.links) == 1 else None

    def __len__(self) -> int:
        return len(self.links)

    @property
    def afar(self) -> bool:
        """Whether some shard is reached over the network."""
        return any(link.afar for link in self.links)

    def home(self, keys: Keys) -> Ints:
        """Shard number of each key."""
        if self._homes is not None:
            return self._homes.home(keys)
        if self._only is not None:
            return np.zeros(len(keys), np.int64)
        return self.placement.home(keys)

    def has(self, numbers: Ints) -> bool:
        """Whether all of these are members."""
        return all(self.links.get(number) is not None for number in np.unique(numbers).tolist())

    def rows(self, home: Ints) -> list[tuple[int, Ints | None]]:
        """Shard numbers that occur in `home`, and the rows of each (None: all rows)."""
        if self._only is not None and (self._homes is None or (home == self._only).all()):
            return [(self._only, None)] if len(home) else []
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


def _kind(links: list[Link]) -> str:
    kinds = {str(link.facts.get("placement")) for link in links}
    if len(kinds) != 1:
        raise BadRequest(f"these shards do not agree on the placement: {', '.join(sorted(kinds))}")
    return kinds.pop()


def _in_order(links: list[Link]) -> list[Link]:
    cluster = next((link.facts["cluster"] for link in links if link.facts.get("cluster")), None)
    if cluster:
        raise BadRequest(f"the members of {cluster!r} may change: connect to etcd://HOST:PORT/{cluster}")
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
