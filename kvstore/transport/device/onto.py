"""Reads that end on a device: what a get asks of its shards, with the data going there instead of into host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from kvstore.deadline import Deadline
from kvstore.header import HEADER_BYTES, Bytes
from kvstore.layout import Layout
from kvstore.shards import Numbered, Shards
from kvstore.tally import Tally
from kvstore.transport import Distant, Ints, Peer, Words
from kvstore.transport.device.moves import host_moves
from kvstore.transport.device.peer import DevicePeer
from kvstore.transport.device.rows import DeviceRows

if TYPE_CHECKING:
    from kvstore.client_base import ClientBase
    from kvstore.keys import Keys


class Onto:
    """Of one get: row `i` ends in block `places[i]` of `rows`. `heads` `[n, …]`: the slots as far as they are in host
    memory, headers always, the data where it is summed or has to pass through."""

    def __init__(self, client: ClientBase, rows: DeviceRows, places: Ints, layout: Layout, *, verify: bool) -> None:
        self.target = rows
        self.places = places
        self.verify = verify
        self.block_bytes = layout.block_bytes
        self.client = client
        near = all(isinstance(link.peer, DevicePeer) for link in client.shards.links)
        width = HEADER_BYTES if near and not verify else layout.slot_bytes
        self.heads: Bytes = np.empty((len(places), width), np.uint8)
        self.shards = cast(Shards, self)

    # --- what `Fetch` asks of shards ---------------------------------------------------------------------------------

    @property
    def tallies(self) -> Numbered[Tally]:
        return self.client.shards.tallies

    def rows(self, home: Ints) -> list[tuple[int, Ints | None]]:
        return self.client.shards.rows(home)

    def find(self, number: int, keys: Keys) -> tuple[Ints, Words]:
        return self.client.shards.find(number, keys)

    def peer(self, number: int) -> Peer:
        return cast(Peer, _OntoPeer(self.client.shards.peer(number), self))


class _OntoPeer:
    """A peer whose reads end on the device."""

    def __init__(self, peer: Peer, onto: Onto) -> None:
        self._peer = peer
        self._onto = onto
        self.facts = peer.facts
        self.index = peer.index

    def generations(self, slots: Ints) -> Words:
        return self._peer.generations(slots)

    def read(self, slots: Ints, rows: Ints | None, out: Bytes) -> int:
        onto = self._onto
        if not len(slots):
            return 0
        at = np.arange(len(slots), dtype=np.int64) if rows is None else rows
        places = onto.places[at]
        address, size = onto.target.address, onto.block_bytes
        if isinstance(self._peer, DevicePeer):
            descriptors = self._peer.read_onto(slots, at, out, address, places)
            if onto.verify:
                moves = host_moves(address, places, out[:, HEADER_BYTES:], size, rows=at, off=True)
                onto.target.device.move(moves)
            return descriptors
        descriptors = self._peer.read(slots, rows, out)
        self._upload(at, out)
        return descriptors

    async def fetch(self, slots: Ints, rows: Ints | None, out: Bytes, deadline: Deadline) -> int:
        """Over the network, straight onto the device where it can be had so, else by way of host memory."""
        if not len(slots):
            return 0
        onto, far = self._onto, cast(Distant, self._peer)
        at = np.arange(len(slots), dtype=np.int64) if rows is None else rows
        landing = onto.client.own.landing if onto.client.own is not None else None
        if landing is not None and landing.ready(onto.client, out.shape[1]):
            width = out.shape[1] if onto.verify else HEADER_BYTES
            return await landing.bring(far, slots, deadline, (out, at, width), (onto.target, onto.places[at]))
        descriptors = await far.fetch(slots, rows, out, deadline)
        self._upload(at, out)
        return descriptors

    async def fetch_generations(self, slots: Ints, deadline: Deadline) -> Words:
        return await cast(Distant, self._peer).fetch_generations(slots, deadline)

    def _upload(self, at: Ints, out: Bytes) -> None:
        """Rows `at` of what has landed in host memory, on to their places."""
        onto = self._onto
        room = out[:, HEADER_BYTES:]
        onto.target.device.move(host_moves(onto.target.address, onto.places[at], room, onto.block_bytes, rows=at))
