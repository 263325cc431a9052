"""The half of a client that keeps blocks on its own device: gets that end there, puts that begin there.

`Client.connect(…, device="cuda:0")` has one; from a shard whose pool is on a device too, blocks come device to device.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from kvstore.afar import get_afar
from kvstore.arena import headers_of
from kvstore.arguments import counts, key_columns, whole_number
from kvstore.client_base import ClientBase
from kvstore.client_reads import Reads
from kvstore.deadline import Deadline
from kvstore.errors import BadRequest, ShardUnavailable
from kvstore.fetch import Fetch, Need
from kvstore.header import Bytes, Headers, Words
from kvstore.keys import Keys
from kvstore.locations import Answer, Locations
from kvstore.staging import Staged
from kvstore.transport import Ints
from kvstore.transport.device.onto import Onto
from kvstore.transport.device.rows import DeviceRows
from kvstore.transport.device.side import DeviceSide

_LONGEST_NAP_S = 0.005
_MOST_BYTES = 1 << 62
"""What can be asked of any allocator, to be refused there."""


@dataclass(slots=True)
class DeviceBlocks(Answer):
    """Answer to a get onto the device: `state` `[n]`, and the headers in host memory. Where a row's state is not OK,
    its place on the device holds nothing."""

    heads: Bytes
    state: np.ndarray[tuple[int], np.dtype[np.int8]]

    @property
    def headers(self) -> Headers:
        """`[n]` of `header.HEADER`, a view."""
        return headers_of(self.heads)


class OnDevice(ClientBase):
    """Blocks between the store and the client's own device."""

    @property
    def side(self) -> DeviceSide:
        if self.own is None:
            raise BadRequest('this client has no device: Client.connect(…, device="cuda:0") gives it one')
        return self.own

    def device_rows(self, n: int) -> DeviceRows:
        """New memory for `n` blocks on the client's device; freed with the last that looks at it."""
        size = self.layout.block_bytes
        return DeviceRows.allocate(self.side.device, whole_number("n", n, least=1, most=_MOST_BYTES // size), size)

    async def stage_on_device(self, n: int, *, deadline_ms: int | None = None) -> Staged:
        """A run of the client's staging arena on its device, to fill in place (`run.rows`) and `put` to one shard whose
        pool is on a device. `unstage` it, or put it."""
        return await self.side.staging.take(whole_number("n", n), self._deadline(deadline_ms))

    async def get_on_device(
        self,
        what: Keys | Locations,
        into: Any,
        *,
        places: Ints | None = None,
        min_clock: int | Words = 0,
        min_valid: int | Ints = 0,
        verify: bool | None = None,
        deadline_ms: int | None = None,
    ) -> DeviceBlocks:
        """As `Client.get`, onto the client's device: row `i` becomes block `places[i]` (default: `i`) of `into`, each
        another one.

        `into`: `device_rows`, or anything contiguous there that has `__cuda_array_interface__` (a torch tensor `[m,
        *block_shape]`, such as one plane of a paged pool); what the caller's current stream still does there is waited
        for, other streams are the caller's to see to. `verify` sums what has
        arrived from a copy off the device: without it the generations before and after the copy decide, and no byte of
        the blocks passes through the host. (From shards in host memory, or over the network, they come by way of it.)
        """
        deadline = self._deadline(deadline_ms)
        known = what if isinstance(what, Locations) else None
        keys = known.keys if known is not None else key_columns(what)
        home = known.shard if known is not None else self.shards.home(keys)
        rows = DeviceRows.of(into, self.side.device, self.layout.block_bytes)
        at = np.arange(len(keys)) if places is None else counts("places", places, len(keys))
        if len(np.unique(at)) != len(at):
            raise BadRequest("places: two rows cannot become one block on the device")
        if len(at) and int(at.max()) >= len(rows):
            raise BadRequest(f"block {int(at.max())} of {len(rows)} is no place on the device")
        verify = self.verify if verify is None else verify
        need = Need.of(min_clock, min_valid, len(keys), enforce=self._enforce_need)
        self.side.device.settle()
        while True:
            onto = Onto(self, rows, at, self.layout, verify=verify)
            fetch = Fetch(onto.shards, keys, home, onto.heads, self.layout.block_bytes, verify=verify, need=need)
            try:
                await self._drive(fetch, keys, known, deadline)
                return self._landed(fetch, onto.heads)
            except ShardUnavailable:
                if deadline.passed:
                    raise
                # It may come back elsewhere, or over the network: begin anew.
                await self.shards.ensure(fetch.shards_waited_for(), deadline)

    async def _drive(self, fetch: Fetch, keys: Keys, known: Locations | None, deadline: Deadline) -> None:
        """A get to its end, from known places first if there are any. Raises `ShardUnavailable`."""
        if self.shards.afar:
            await get_afar(cast(Reads, self), fetch, keys, known, deadline)
            return
        nap = 0.0
        while True:
            if known is not None:
                fetch.from_locations(known)
                known = None
            else:
                fetch.attempt()
            if fetch.done or deadline.passed:
                return
            await asyncio.sleep(min(nap, deadline.left_s))
            nap = min(_LONGEST_NAP_S, nap * 2 + 0.0001)

    def _landed(self, fetch: Fetch, heads: Bytes) -> DeviceBlocks:
        blocks = DeviceBlocks(heads, fetch.state)
        if blocks.found.any():
            self._saw(int(blocks.clock.max()))
        return blocks
