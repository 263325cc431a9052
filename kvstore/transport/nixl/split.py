"""The pool of a device, as reads of it are put together: headers in host memory, data in the device's, both packed.

One request has one kind of memory on either side, so a read is two, posted one behind the other, and over when both
are. Neither waits for the other: what makes a reader believe a block is the same whichever came first. With sums header
and data must agree. Without, the generation is looked at once more after both (or all was leased): it was known before
they were asked for, it only grows, and the header that came must carry it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kvstore.header import HEADER_BYTES
from kvstore.layout import Layout
from kvstore.transport import Ints
from kvstore.transport.nixl.agent import Agent, Disconnected, Transfer, spans
from kvstore.transport.nixl.owner import Make
from kvstore.transport.nixl.regions import Region
from kvstore.transport.nixl.remote import RemotePool


@dataclass(frozen=True, slots=True)
class Data:
    """Where the blocks' data begins; `gpu`: on which card, as the process that holds it counts; None: host memory."""

    base: int
    gpu: int | None


class SplitPool(RemotePool):
    """Headers of `blocks` slots at `base`, their data at `data`. Slots whole and side by side are what lands, so every
    block is a descriptor of its own in both requests: there are no runs, and prepared lists are all that it takes."""

    split = True

    def __init__(self, agent: str, base: int, blocks: int, layout: Layout, data: Data) -> None:
        super().__init__(agent, base, blocks, layout.slot_bytes)
        self._pitch = HEADER_BYTES
        self._block_bytes = layout.block_bytes
        self._data = data
        self._prepared_data = 0

    def prepare(self, agent: Agent) -> None:
        every = np.arange(self._blocks)
        blocks = spans(self._data.base, every, 1, self._block_bytes)
        blocks[:, 2] = self._data.gpu or 0
        self._prepared_data = agent.prepare(self.agent, blocks, gpu=self._data.gpu)
        self._prepared = agent.prepare(self.agent, spans(self._base, every, 1, HEADER_BYTES))

    def take_prepared(self) -> tuple[int, ...]:
        data, self._prepared_data = self._prepared_data, 0
        return (*super().take_prepared(), *([data] if data else []))

    def read(self, slots: Ints, rows: Ints | None, region: Region, first: int) -> Make:
        """See `RemotePool.read`."""
        self.require(slots)
        to = np.arange(first, first + len(slots)) if rows is None else rows + first
        into: Any = to.astype(np.int32)
        source: Any = slots.astype(np.int32)

        def make(agent: Agent) -> Transfer:
            if not self._prepared:
                raise Disconnected("the connection was closed")
            heads, data = region.parts(agent, self._block_bytes)
            whole = agent.make_prepared(self.agent, heads, into, self._prepared, source, HEADER_BYTES)
            try:
                blocks = agent.make_prepared(self.agent, data, into, self._prepared_data, source, self._block_bytes)
            except BaseException:
                agent.let_go(whole)
                raise
            return whole.and_with(blocks)

        return make
