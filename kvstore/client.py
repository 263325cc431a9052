"""The client: lookups, gets, puts and appends over all shards of a store, batched, each with a deadline.

`SyncClient` (`kvstore.sync`, also found here) is the same for plain code.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from kvstore import messages as m
from kvstore.arguments import require_targets, session_number, whole_number
from kvstore.client_base import all_of
from kvstore.client_device import OnDevice
from kvstore.client_reads import Reads
from kvstore.client_writes import Puts
from kvstore.deadline import Deadline
from kvstore.errors import BadRequest, StoreError
from kvstore.forks import use_grpc
from kvstore.handle import SessionHandle
from kvstore.layout import Layout
from kvstore.link import Link
from kvstore.membership import Membership, membership_of
from kvstore.membership.follow import Follower, follows, most_of
from kvstore.security import Access
from kvstore.shards import Shards
from kvstore.staging import Staging
from kvstore.traced import traced_methods

DEADLINE_MS = 5_000
HEARTBEAT_S = 1.0
STAGING_BYTES = 64 << 20


@traced_methods({name: f"kv.{name}" for name in ("lookup", "get", "put", "append", "match_tail", "remove")})
@follows("lookup", "get", "put", "append", "match_tail", "remove", "open_session", "close_session")
class Client(Reads, Puts, OnDevice):
    """Made by `connect`; an async context manager. For one event loop (`SyncClient` for plain code).

    Every operation has a deadline (`deadline_ms`, else the client's own) and raises a `StoreError` within it. Arrays
    are columns, one row a block. `verify` False leaves the sums of blocks unchecked.
    """

    @classmethod
    async def connect(
        cls,
        targets: str | Path | Sequence[str],
        layout: Layout,
        *,
        deadline_ms: int = DEADLINE_MS,
        staging_blocks: int | None = None,
        verify: bool = True,
        name: str = "",
        enforce_need: bool = True,
        transport: str = "auto",
        access: Access | None = None,
        device: str | None = None,
    ) -> Client:
        """Connect to every shard of a store: `"127.0.0.1:7600,127.0.0.1:7601"`, a sequence of such, the path of a
        cluster file, or `"etcd://127.0.0.1:2379/NAME"`, where members may come and go. `staging_blocks`: room for puts
        under way (default: 64 MiB). `transport`: `mapped` (shards of this host), `nixl` (of any host), or `auto`:
        mapped where a shard's door can be reached from here, else nixl.

        `device`: our own (`cuda:N`), for `get_on_device` and `stage_on_device`; shards whose pool is on a GPU are read
        without one, too.

        `access`: certificates and token (default: what the environment names), which are needed off loopback.

        Raises `AccessDenied`, `LayoutMismatch` naming the field, `ShardUnavailable`, `BadRequest` for targets that make
        no store.
        `enforce_need` False is a test's switch: gets then take blocks older than they need.
        """
        use_grpc()
        deadline = Deadline(deadline_ms)
        access = access or Access.from_environment()
        membership = membership_of(require_targets(targets), access)
        client = cls(
            layout,
            deadline_ms=deadline_ms,
            verify=verify,
            staging=_staging(layout, staging_blocks),
            enforce_need=enforce_need,
            transport=transport,
            device=device,
        )
        name = str(name) or f"pid-{os.getpid()}"

        def link_to(address: str) -> Link:
            link = Link(address, layout, client._transport, client.clock, name, client._lost, access)
            link.heard = client._heard
            return link

        await client._meet(membership, link_to, deadline)
        client._beating = asyncio.get_running_loop().create_task(client._beat())
        return client

    async def _meet(self, membership: Membership, link_to: Callable[[str], Link], deadline: Deadline) -> None:
        """Connect to the members, and go along with them if they may change; else nothing is left behind."""
        links: list[Link] = []
        try:
            view = await membership.view(deadline)
            links = [link_to(member.address) for member in view.members]
            if view.homes is None:
                await all_of(link.ensure(deadline) for link in links)
            else:
                await most_of(view, links, deadline)
            self._shards = Shards(links, self.layout, view.homes)
            if view.homes is not None:
                self.follower = Follower(self, membership, view, link_to)
        except BaseException:
            await membership.close()
            for link in links:
                await link.drop()
            await self._transport.leave()
            self.staging.close()
            raise

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Report what was read, then let go of everything. May be called twice."""
        if self._beating is not None:
            self._beating.cancel()
            self._beating = None
            with contextlib.suppress(StoreError):
                await self.report(deadline_ms=200)
        if self.follower is not None:
            await self.follower.close()
        await self._end_kept()
        await self.returns.close()
        await self.writes.close()
        if self.own is not None:
            await self.device_writes.close()
        if self._shards is not None:
            await self._shards.close()
            self._shards = None
        await self._transport.leave()
        self._transport.close()
        self.staging.close()

    # --- sessions -------------------------------------------------------------------------------------------------

    async def open_session(
        self,
        session_class: str = "default",
        *,
        ttl_ms: int | None = None,
        number: int = 0,
        renew: bool = True,
        deadline_ms: int | None = None,
    ) -> SessionHandle:
        """A new session, or (with its `number`, from any process) one that goes on; a new one if its TTL had ended."""
        deadline = self._deadline(deadline_ms)
        number = session_number(number)
        handle = number or secrets.randbits(63) | 1
        if not isinstance(session_class, str) or not session_class.isascii():
            raise BadRequest("session_class is 1 to 64 of A-Z a-z 0-9 _ . : / -")
        if ttl_ms is not None:
            ttl_ms = whole_number("ttl_ms", ttl_ms, least=1)
        else:
            ttl_ms = int(next(iter(self.shards.links)).facts.get("session_ttl_ms", m.OpenSession().ttl_ms))
        states = await all_of(
            link.call(m.OpenSession(handle, session_class, ttl_ms, create=True), deadline) for link in self.shards.links
        )
        returned = number != 0 and all(state.alive for state in states)
        made = SessionHandle(self, handle, session_class, ttl_ms, returned, renew)
        self._sessions.add(made)
        return made

    def held(self) -> list[SessionHandle]:
        """Sessions that this client opened and has not closed."""
        return [handle for handle in self._sessions if handle.held]

    async def close_session(self, number: int, *, forget: bool = False, deadline_ms: int | None = None) -> None:
        deadline, number = self._deadline(deadline_ms), session_number(number)
        await all_of(link.call(m.CloseSession(number, bool(forget)), deadline) for link in self.shards.links)

    async def renew_session(self, number: int, *, deadline_ms: int | None = None) -> None:
        """A sign of life: the session's TTL starts anew on every shard."""
        deadline = self._deadline(deadline_ms)
        nothing = m.TailMatch(session_number(number), np.zeros((0, 4), np.uint64), np.zeros((0, 24), np.uint8))
        await all_of(link.call(nothing, deadline) for link in self.shards.links)

    # --- heartbeats -----------------------------------------------------------------------------------------------

    async def report(self, *, deadline_ms: int | None = None) -> None:
        """Tell every shard what was read and used there; done once a second by itself."""
        deadline = self._deadline(deadline_ms)
        shards = self.shards
        told: list[Coroutine[Any, Any, Any]] = [
            link.call(tally.drain(), deadline)
            for link, tally in zip(shards.links, shards.tallies, strict=True)
            if link.up
        ]
        told += [self._tell_bandwidth(link, deadline) for link in shards.links if link.up]
        await asyncio.gather(*told, return_exceptions=True)

    async def _tell_bandwidth(self, link: Link, deadline: Deadline) -> None:
        """What was measured when we connected, once a connection."""
        peer = link.peer
        bandwidth = getattr(peer, "bandwidth", None)
        if bandwidth is None or self._told.get(link.number) is peer:
            return
        from kvstore.transport.probe import LANES

        await link.call(m.Measured(LANES.index(bandwidth.lane), int(bandwidth.bytes_per_second)), deadline)
        self._told[link.number] = peer

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            for link in self.shards.links:
                if not link.up:
                    with contextlib.suppress(StoreError):
                        await link.ensure(Deadline(HEARTBEAT_S * 1000))
            await self.report(deadline_ms=2_000)


def _staging(layout: Layout, blocks: int | None) -> Staging:
    """Raises `BadRequest` for one that cannot be made."""
    if not isinstance(layout, Layout):
        raise BadRequest(f"layout is a kvstore.layout.Layout, not {type(layout).__name__}")
    if blocks is None:
        blocks = max(1, STAGING_BYTES // layout.slot_bytes)
    blocks = whole_number("staging_blocks", blocks, least=1, most=(1 << 62) // layout.slot_bytes)
    try:
        return Staging(layout, blocks)
    except (OSError, MemoryError) as error:
        why = getattr(error, "strerror", None) or "there is not so much memory"
        size = blocks * layout.slot_bytes / (1 << 20)
        raise BadRequest(f"staging_blocks {blocks}: {size:,.0f} MiB cannot be had: {why}") from None


def __getattr__(name: str) -> Any:
    if name == "SyncClient":
        from kvstore.sync import SyncClient

        return SyncClient
    raise AttributeError(name)
