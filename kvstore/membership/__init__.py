"""Who the shards of a store are, and what each is the home of.

    static.py        `Static`        a list of addresses or a cluster file: never changes (the default)
    etcd.py          `Etcd`          shards register in etcd under leases; clients look there and watch
    registration.py  `Registration`  the shard's side of that
    document.py      `Document`      what lies in etcd: founders, then one change after the other
    homes.py         `Homes`         keys → shard numbers under one epoch
    ownership.py     `Ownership`     what a shard may publish, and until when
    follow.py        `Follower`      a client that goes along with the changes
    calls.py, protobuf.py            etcd's API, as far as it is needed

An *epoch* counts the changes of membership, from 1 (the founders are complete). A shard is a member while it renews its
lease; its number is never another's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kvstore.deadline import Deadline

if TYPE_CHECKING:
    from kvstore.membership.homes import Homes
    from kvstore.security import Access

STATIC_EPOCH = 0


@dataclass(frozen=True, slots=True)
class Member:
    """A shard. `number` −1 where only the shard itself can say it."""

    address: str
    number: int = -1


@dataclass(frozen=True, slots=True)
class View:
    """The members of one epoch. `homes` None: as the shards themselves say (static membership)."""

    epoch: int
    members: tuple[Member, ...]
    homes: Homes | None = None


class Membership(Protocol):
    """Where a client learns of the shards. For one event loop."""

    async def view(self, deadline: Deadline) -> View:
        """The members as they are now. Raises `ShardUnavailable`, `BadRequest`."""
        ...

    async def newer(self, than: View) -> View:
        """Waits, as long as it takes, for a view that differs from `than`."""
        ...

    async def close(self) -> None: ...


def membership_of(targets: str | Path | Sequence[str], access: Access) -> Membership:
    """Of `etcd://HOST:PORT/NAME`, else of addresses or a cluster file. Raises `BadRequest`."""
    if isinstance(targets, str) and targets.startswith(("etcd://", "etcds://")):
        from kvstore.membership.etcd import Etcd

        return Etcd.of(targets, access)
    from kvstore.membership.static import Static

    return Static(targets)
