"""Which shard is the home of which block.

A placement cuts the key space into *units* – buckets of a hash, (layer, head group) pairs, or windows of such a pair –
and keeps one table, unit → shard number. The table is a function of the first members and of the changes since,
replayed in order: whoever knows those (a few dozen bytes of JSON) computes the same homes, loads stay even, and a
change moves only what must move. Adding a shard moves its share of the units to it and nothing else; removing one
moves its units and nothing else.

A shard's number is its place among all names there ever were, so that a number in a message never means two shards.
"""

from __future__ import annotations

import copy
import heapq
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from kvstore.errors import BadRequest
from kvstore.keys import Keys, mix, parts
from kvstore.layout import Layout

Ints = npt.NDArray[np.int64]

_BUCKET_BITS = 12
_SEED = 0x6B76
"""Not the index's seed: a shard's keys must still spread over all buckets of its own index."""

WINDOW_CYCLE = 120
"""Windows of a (layer, head group) repeat their shards after so many. A multiple of 1–6, 8, 10, 12, 15, 20, 24, so that
neighbouring windows of the usual numbers of shards lie on neighbouring shards across the seam too."""


class Placement(ABC):
    """Homes of keys under one membership. Immutable: `add` and `remove` return the placement of the next epoch.

    `names[i]` is shard number i (also of one that left), `live` the numbers that are members now, `epoch` the number of
    changes since the first members. Raises `BadRequest` for no members, a name twice, or a change that cannot be.
    """

    kind: ClassVar[str]

    def __init__(self, layout: Layout, members: Sequence[str], changes: Sequence[str] = ()) -> None:
        if not members:
            raise BadRequest("a placement needs at least one shard")
        if len(set(members)) != len(members) or not all(members):
            raise BadRequest(f"shard names must differ and not be empty: {', '.join(members)}")
        self.layout = layout
        self.members = tuple(members)
        self.changes = tuple(changes)
        self.names: tuple[str, ...] = self.members
        self.live: tuple[int, ...] = tuple(range(len(members)))
        self._owners = self._first_owners(len(members))
        for change in changes:
            self._apply(change)
        self._owners.flags.writeable = False

    @property
    def epoch(self) -> int:
        return len(self.changes)

    def home(self, keys: Keys) -> Ints:
        """Shard number of each key of `keys` `[n, 4]`: `[n]`. Raises `BadRequest` for a key outside the layout."""
        return np.asarray(self._owners[self._units(keys)], np.int64)

    def number(self, name: str) -> int:
        """The number of the shard called `name`; raises `BadRequest` when there is none."""
        if name not in self.names:
            raise BadRequest(f"no shard {name!r}; there are {', '.join(self.names)}")
        return self.names.index(name)

    def loads(self) -> Ints:
        """Units by shard number `[len(names)]`."""
        return np.bincount(self._owners, minlength=len(self.names)).astype(np.int64)

    def add(self, name: str) -> Placement:
        """The next epoch, with one shard more; only units that the new shard receives move."""
        return type(self)(self.layout, self.members, (*self.changes, f"+{name}"))

    def remove(self, name: str) -> Placement:
        """The next epoch, without that shard; only its units move."""
        return type(self)(self.layout, self.members, (*self.changes, f"-{name}"))

    def then(self, changes: Sequence[str]) -> Placement:
        """Some epochs later: as if made with these changes, too, but only they are computed."""
        after = copy.copy(self)
        after._owners = self._owners.copy()
        after.changes = (*self.changes, *changes)
        for change in changes:
            after._apply(change)
        after._owners.flags.writeable = False
        return after

    def as_json(self) -> str:
        """What another process needs to compute the same homes (the layout travels by itself)."""
        return json.dumps({"kind": self.kind, "members": self.members, "changes": self.changes})

    @staticmethod
    def from_json(text: str | bytes, layout: Layout) -> Placement:
        try:
            values = json.loads(text)
            return placement(str(values["kind"]), layout, values["members"], values["changes"])
        except (ValueError, TypeError, KeyError) as error:
            raise BadRequest(f"not a placement: {error}") from None

    @abstractmethod
    def _units(self, keys: Keys) -> Ints:
        """The unit of each key `[n]`."""

    @abstractmethod
    def _first_owners(self, shards: int) -> Ints:
        """The table of the first members: shard number of each unit."""

    def _apply(self, change: str) -> None:
        sign, name = change[:1], change[1:]
        if sign == "+" and name and name not in self.names:
            self.names = (*self.names, name)
            self._grow(len(self.names) - 1)
        elif sign == "-" and name in self.names and self.names.index(name) in self.live:
            self._shrink(self.names.index(name))
        else:
            raise BadRequest(f"placement change {change!r} does not fit the members {', '.join(self.names)}")

    def _grow(self, shard: int) -> None:
        """Give `shard` its share, each unit taken from whoever has most; which of a donor's units, a hash decides."""
        most = [(-load, giver) for giver, load in enumerate(self.loads().tolist())]
        heapq.heapify(most)
        taken = [0] * len(most)
        for _ in range(len(self._owners) // (len(self.live) + 1)):
            load, donor = most[0]
            heapq.heapreplace(most, (load + 1, donor))
            taken[donor] += 1
        for giver, count in enumerate(taken):
            if not count:
                continue
            units = np.flatnonzero(self._owners == giver)
            order = np.argsort(_spread(units, shard), kind="stable")
            self._owners[units[order[:count]]] = shard
        self.live = (*self.live, shard)

    def _shrink(self, shard: int) -> None:
        """Deal the units of `shard` to the others, each to whoever has least."""
        rest = tuple(number for number in self.live if number != shard)
        if not rest:
            raise BadRequest(f"cannot remove {self.names[shard]!r}: it is the only shard")
        least = [(load, place) for place, load in enumerate(self.loads()[list(rest)].tolist())]
        heapq.heapify(least)
        receivers = []
        units = np.flatnonzero(self._owners == shard)
        for _ in range(len(units)):
            load, place = least[0]
            heapq.heapreplace(least, (load + 1, place))
            receivers.append(rest[place])
        self._owners[units] = receivers
        self.live = rest


class Uniform(Placement):
    """The baseline: a hash over blocks, blind to what attention reads together."""

    kind = "uniform"

    def _units(self, keys: Keys) -> Ints:
        return (mix(keys, _SEED) >> np.uint64(64 - _BUCKET_BITS)).astype(np.int64)

    def _first_owners(self, shards: int) -> Ints:
        return np.arange(1 << _BUCKET_BITS, dtype=np.int64) % shards


class HeadGroup(Placement):
    """One home for each (layer, head group): a full-attention call of a head group touches one shard."""

    kind = "head-group"

    def _units(self, keys: Keys) -> Ints:
        return self._pairs(keys)[0]

    def _first_owners(self, shards: int) -> Ints:
        """As tensor parallelism cuts heads where that divides evenly, so that a rank finds all layers on one shard."""
        layers, groups = self.layout.layers, self.layout.head_groups
        if groups % shards == 0:
            return np.tile(np.arange(groups, dtype=np.int64) * shards // groups, layers)
        return np.arange(layers * groups, dtype=np.int64) % shards

    def _pairs(self, keys: Keys) -> tuple[Ints, Ints]:
        """(layer, head group) as one number, and the block index, of each key."""
        layer, group, index = parts(keys)
        layers, groups = self.layout.layers, self.layout.head_groups
        if len(keys) and (int(layer.max()) >= layers or int(group.max()) >= groups):
            raise BadRequest(
                f"key of layer {layer.max()}, head group {group.max()}: the layout has {layers} layers, {groups} groups"
            )
        return layer * groups + group, index


class HeadGroupWindow(HeadGroup):
    """Windows of a (layer, head group) on one shard after the other: a sliding-window call, which reaches two
    neighbouring windows, touches at most two shards, and no context is too long for one shard."""

    kind = "head-group-window"

    def _units(self, keys: Keys) -> Ints:
        pair, index = self._pairs(keys)
        return pair * WINDOW_CYCLE + index // self.layout.window_blocks % WINDOW_CYCLE

    def _first_owners(self, shards: int) -> Ints:
        pairs = super()._first_owners(shards)
        return ((pairs[:, None] + np.arange(WINDOW_CYCLE)) % shards).ravel()


KINDS: dict[str, type[Placement]] = {kind.kind: kind for kind in (Uniform, HeadGroup, HeadGroupWindow)}


def placement(kind: str, layout: Layout, members: Sequence[str], changes: Sequence[str] = ()) -> Placement:
    """The placement of that kind; raises `BadRequest` for an unknown one."""
    if kind not in KINDS:
        raise BadRequest(f"no placement {kind!r}; there are {', '.join(KINDS)}")
    return KINDS[kind](layout, members, changes)


def _spread(units: Ints, seed: int) -> npt.NDArray[np.uint64]:
    """A hash of each unit that differs from shard to shard."""
    rows = np.zeros((len(units), 4), np.uint64)
    rows[:, 0] = units.astype(np.uint64)
    return mix(rows, seed + 1)
