"""What a shard that offers NIXL has beside itself: its mover, the landing arena, and perhaps the pool.

The pool of a device is the mover's memory (see `mover.py`). If that process ends, the pool is gone, and everything that
is known about it – index, sessions, leases, handles that clients have open – is about nothing. So the shard ends, too,
in one line and with an exit code: it is a cache. Whoever watches over it starts it again, and what was put durably
comes back from its log as after every other end. A second way to forget all that, in a process that goes on, would have
to be as right as the end of a process is by itself.
"""

from __future__ import annotations

import os

from kvstore.arena import Arena, Memory
from kvstore.door import close_all
from kvstore.errors import StoreError
from kvstore.header import HEADER_BYTES
from kvstore.layout import Layout
from kvstore.staging import Staging
from kvstore.transport.device.arena import DeviceArena
from kvstore.transport.device.holder import Holder
from kvstore.transport.device.memory import Device, Exported, device_named
from kvstore.transport.nixl.hands import Hands

LANDING_BYTES = 64 << 20


class Beside:
    """`pool`: the whole pool of `blocks` slots, or with a `device` its headers."""

    def __init__(self, layout: Layout, pool: Memory, blocks: int, device: str = "") -> None:
        # No put is larger than the pool, so a larger landing arena would be of no use.
        self.landing = Staging(layout, max(1, min(blocks, LANDING_BYTES // layout.slot_bytes)), name="kv-landing")
        self.hands = Hands(layout, pool, blocks, self.landing.arena, device)

    @classmethod
    def of(cls, layout: Layout, pool: Arena) -> Beside:
        """For a pool in host memory, which stays the shard's."""
        return cls(layout, pool.memory, len(pool))

    @property
    def pool_pid(self) -> int:
        """The process whose memory the pool is."""
        return self.hands.pid if self.hands.device else os.getpid()

    async def stop(self) -> None:
        await self.hands.stop()
        self.landing.close()


async def hold(layout: Layout, blocks: int, device: str, *, sealed: bool = True) -> tuple[Beside, DeviceArena]:
    """Start a mover that has a pool of `blocks` on `device`, and open that. Raises `BadRequest` where there is no such
    device, not so much memory, or no NIXL, and `StoreError` where NIXL cannot register it."""
    on = device_named(device)
    headers = Memory.create("kv-headers", blocks * HEADER_BYTES, readers_cannot_write=sealed)
    beside = Beside(layout, headers, blocks, device)
    try:
        await beside.hands.start()
        return beside, _opened(on, beside.hands, headers, layout)
    except BaseException:
        await beside.stop()
        headers.close()
        raise


def _opened(on: Device, hands: Hands, headers: Memory, layout: Layout) -> DeviceArena:
    """Takes over what the mover handed out."""
    words, (mark, *fds) = hands.said["device"], hands.fds
    lent = [os.dup(fd) for fd in fds]
    try:
        holder = Holder(mark)
        data = on.open(words, fds, writable=True)
    except StoreError:
        close_all([mark, *fds, *lent])
        raise
    exported = Exported({**words, "held": True}, [holder.fd, *lent])
    return DeviceArena(on, data, headers, layout.slot_bytes, layout.block_bytes, holder=holder, exported=exported)
