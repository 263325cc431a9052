"""A shard's pool, as reads of it are put together: one slot, one run, runs, or single slots of prepared lists."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvstore.errors import BadRequest
from kvstore.header import HEADER
from kvstore.transport import Ints
from kvstore.transport.nixl.agent import Agent, Disconnected, Transfer, spans
from kvstore.transport.nixl.owner import Make
from kvstore.transport.nixl.regions import Region

_SINGLES_BELOW = 2.0
"""Mean slots a run below which prepared descriptors of single slots beat descriptors made of runs (measured)."""
_GENERATION_AT = HEADER.fields["generation"][1] if HEADER.fields else 32


class RemotePool:
    """`blocks` slots of `slot_bytes` at `base` in the memory of the agent that is known here as `agent`."""

    split = False
    """Whether headers and data lie apart (`split.SplitPool`)."""

    def __init__(self, agent: str, base: int, blocks: int, slot_bytes: int) -> None:
        self.agent = agent
        self._base = base
        self._blocks = blocks
        self._slot_bytes = slot_bytes
        self._pitch = slot_bytes
        """From one header there to the next."""
        self._prepared = 0

    def prepare(self, agent: Agent) -> None:
        """Reads of single slots need it; done on the thread of our own agent."""
        whole = spans(self._base, np.arange(self._blocks), 1, self._slot_bytes)
        self._prepared = agent.prepare(self.agent, whole)

    def take_prepared(self) -> tuple[int, ...]:
        """What is to be dropped when the peer goes; nothing can be read any more."""
        prepared, self._prepared = self._prepared, 0
        return (prepared,) if prepared else ()

    def require(self, slots: Ints) -> None:
        """Raise `BadRequest` where a slot is not of this pool."""
        if len(slots):
            self._require(int(slots.min()), int(slots.max()))

    def read(self, slots: Ints, rows: Ints | None, region: Region, first: int) -> Make:
        """Slots (one at least) into slots `first + rows` of a region (`rows` None: `first` and those after it). Raises
        `BadRequest` where a slot is not of this pool."""
        count = len(slots)
        if count == 1:
            self._require(slots.item(0), slots.item(0))
            into = [first if rows is None else first + rows.item(0)]
            return self._singles(into, [slots.item(0)], region)
        apart = slots[1:] - slots[:-1] != 1
        if rows is not None:
            apart |= rows[1:] - rows[:-1] != 1
        cuts = np.flatnonzero(apart)
        if not len(cuts):
            self._require(slots.item(0), slots.item(-1))
            return self._run(slots.item(0), count, first if rows is None else first + rows.item(0), region)
        self.require(slots)
        if count < _SINGLES_BELOW * (len(cuts) + 1):
            to = np.arange(first, first + count) if rows is None else rows + first
            return self._singles(to.astype(np.int32), slots.astype(np.int32), region)
        return self._runs(slots, rows, np.concatenate(([0], cuts + 1)), region, first)

    def generations(self, slots: Ints, region: Region, first: int) -> Make:
        """The generations of slots (one at least), packed, from slot `first` of a region on."""
        local = spans(region.base + first * self._slot_bytes, np.arange(len(slots)), 1, 8)
        source = spans(self._base + _GENERATION_AT, slots, 1, self._pitch)
        source[:, 1] = 8
        return lambda agent: agent.make(self.agent, local, source)

    def _require(self, least: int, most: int) -> None:
        if least < 0 or most >= self._blocks:
            raise BadRequest(f"slots {least} … {most} are not all in a pool of {self._blocks}")

    def _singles(self, into: Any, source: Any, region: Region) -> Make:
        def make(agent: Agent) -> Transfer:
            if not self._prepared:
                raise Disconnected("the connection was closed")
            return agent.make_prepared(self.agent, region.prepared, into, self._prepared, source, self._slot_bytes)

        return make

    def _run(self, slot: int, count: int, to: int, region: Region) -> Make:
        size = count * self._slot_bytes
        local = [(region.base + to * self._slot_bytes, size, region.gpu or 0)]
        source = [(self._base + slot * self._slot_bytes, size, 0)]
        return lambda agent: agent.make(self.agent, local, source, gpu=region.gpu)

    def _runs(self, slots: Ints, rows: Ints | None, starts: Ints, region: Region, first: int) -> Make:
        lengths = np.diff(starts, append=len(slots))
        local = spans(region.base, first + (starts if rows is None else rows[starts]), lengths, self._slot_bytes)
        local[:, 2] = region.gpu or 0
        source = spans(self._base, slots[starts], lengths, self._slot_bytes)
        return lambda agent: agent.make(self.agent, local, source, gpu=region.gpu)
