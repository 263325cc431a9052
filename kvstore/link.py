"""A client's link to one shard: calls for control, a transport for blocks; comes back when the shard does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from kvstore import messages as m
from kvstore import wire
from kvstore.calls import Broken, Calls, TimedOut, Unfit
from kvstore.calls.frames import FrameCalls
from kvstore.clock import LamportClock
from kvstore.deadline import Deadline
from kvstore.describe import describe
from kvstore.errors import BadRequest, ClientUnknown, DeadlineExceeded, ShardUnavailable, StoreError
from kvstore.layout import Layout
from kvstore.security import Access
from kvstore.transport import Peer, Transport
from probes.instrument import current_traceparent

CONNECT_MS = 2_000
_MAY_HAVE_BEEN_DONE = (m.Put, m.Append, m.Remove)


class Link:
    """`lost` is called when a shard's process has ended for certain: nothing of it reads our memory any more."""

    def __init__(
        self,
        address: str,
        layout: Layout,
        transport: Transport,
        clock: LamportClock,
        name: str,
        lost: Callable[[Link], None],
        access: Access | None = None,
    ) -> None:
        self.address = address
        self.number = -1
        self.peer: Peer | None = None
        self.left = False
        """The shard is no member any more."""
        self.heard: Callable[[int], None] | None = None
        """Told the epoch of every answer."""
        self._layout = json.loads(layout.as_json())
        self._transport = transport
        self._clock = clock
        self._name = name
        self._lost = lost
        self._access = access or Access()
        self._calls: Calls | None = None
        self._connecting = asyncio.Lock()
        self._instance = ""
        self._afar = False

    @property
    def up(self) -> bool:
        """A peer is there, lives, and knows us: about a microsecond."""
        return self.peer is not None and self.peer.connected() and self._calls is not None and not self._calls.closed

    @property
    def afar(self) -> bool:
        """Whether the shard is (or was last) reached over the network: nothing of it is mapped, so its index has to be
        asked."""
        return self._afar

    @property
    def facts(self) -> dict[str, Any]:
        """What the shard said of itself; empty while it is not connected."""
        return {} if self.peer is None else self.peer.facts

    async def ensure(self, deadline: Deadline) -> Peer:
        """The peer, connected (again) where it was not. Raises `ShardUnavailable`, or what the shard refuses us for."""
        if self.up and self.peer is not None:
            return self.peer
        if self.left:
            raise ShardUnavailable(f"shard {self._who()} is no member of the store any more")
        await self._my_turn(deadline)
        try:
            if not self.up:
                await self.drop()
                await self._connect(deadline)
        finally:
            self._connecting.release()
        assert self.peer is not None
        return self.peer

    async def call(self, message: Any, deadline: Deadline, *, ticket: int = 0, trace: str = "", client: int = 0) -> Any:
        """The shard's answer; raises the `StoreError` that it answered with.

        `ShardUnavailable` when the process is gone or does not answer in time; for a put or append
        `DeadlineExceeded` in the latter case: it may have been done. What cannot be done twice is sent again only
        where it was surely not received. Where the shard has forgotten us (it has not heard of us for long, as over a
        link that was down) we come in again, and ask again.
        """
        while True:
            peer = await self.ensure(deadline)
            trace = trace or current_traceparent()
            envelope = m.Envelope(
                self._clock.tick(), deadline.left_ms, trace, client or int(peer.facts["client"]), ticket
            )
            try:
                data = await self._send(message, wire.pack_request(envelope, message), deadline)
            except Broken as error:
                if deadline.passed or isinstance(message, _MAY_HAVE_BEEN_DONE):
                    raise ShardUnavailable(f"shard {self._who()}: {error}") from None
                await asyncio.sleep(min(0.005, deadline.left_s))
                continue
            clock, answer = wire.unpack_reply(data)
            if self.heard is not None:
                self.heard(wire.epoch_of(data))
            self._clock.merge(clock)
            if isinstance(answer, ClientUnknown) and not client and not deadline.passed:
                await self._leave(peer, deadline)
                continue
            if isinstance(answer, StoreError):
                raise answer
            return answer

    async def drop(self) -> None:
        """Forget the connection; tells `lost` when the process behind it has ended."""
        peer, calls = self.peer, self._calls
        self.peer, self._calls = None, None
        if peer is not None:
            if not peer.alive():
                self._lost(self)
            peer.close()
        if calls is not None:
            await calls.close()

    async def _leave(self, peer: Peer, deadline: Deadline) -> None:
        """The shard does not know us by this peer any more: `ensure` is to come in again."""
        await self._my_turn(deadline)
        try:
            if self.peer is peer:
                await self.drop()
        finally:
            self._connecting.release()

    async def _my_turn(self, deadline: Deadline) -> None:
        """Returns with `_connecting` held."""
        try:
            async with asyncio.timeout(deadline.left_s):
                await self._connecting.acquire()
        except TimeoutError:
            raise self._silent(deadline) from None

    async def use(self, calls: Calls) -> None:
        """Ask over `calls` from now on, until the connection is made anew (for benches and tests)."""
        before, self._calls = self._calls, calls
        if before is not None:
            await before.close()

    async def _send(self, message: Any, request: bytes, deadline: Deadline) -> bytes:
        if self._calls is None:
            raise Broken("the connection was closed")
        try:
            return await self._calls.call(type(message), request, deadline.left_s)
        except TimedOut:
            if isinstance(message, _MAY_HAVE_BEEN_DONE):
                raise DeadlineExceeded(
                    f"shard {self._who()} has not answered within {deadline.allowed_ms:g} ms; it may have been done"
                ) from None
            raise self._silent(deadline) from None
        except Unfit as error:
            raise BadRequest(f"shard {self._who()}: {error}") from None
        except Broken:
            if self.peer is not None and not self.peer.alive():
                raise ShardUnavailable(f"shard {self._who()}: its process has ended") from None
            raise

    async def _connect(self, deadline: Deadline) -> None:
        described = await describe(self.address, self._access, deadline, self._who())
        described |= {"reached": self.address, "access": self._access}
        peer = await self._transport.connect(described, self._layout, self._name, deadline)
        number = int(peer.facts["shard"])
        if self.number not in (-1, number):
            peer.close()
            raise ShardUnavailable(f"{self.address} was shard {self.number} and now says that it is shard {number}")
        self.number = number
        self._afar = peer.index is None
        try:
            self._calls = await self._open_calls(peer, deadline)
        except BaseException:
            peer.close()
            raise
        peer.when_dead = lambda: self._lost(self)
        self.peer = peer

    async def _open_calls(self, peer: Peer, deadline: Deadline) -> Calls:
        """Frames on a Unix socket where the shard is on this host, gRPC elsewhere."""
        from kvstore.calls.rpc import RpcCalls

        path = peer.facts.get("calls")
        if not path:
            return RpcCalls(self.address, self._access)
        try:
            return await FrameCalls.connect(str(path), deadline.left_s)
        except (OSError, TimeoutError) as error:
            why = getattr(error, "strerror", None) or "no answer within the deadline"
            raise ShardUnavailable(f"shard {self._who()}: its socket {path} cannot be reached: {why}") from None

    def _who(self) -> str:
        return self.address if self.number < 0 else f"{self.number} ({self.address})"

    def _silent(self, deadline: Deadline) -> ShardUnavailable:
        return ShardUnavailable(f"shard {self._who()} has not answered within {deadline.allowed_ms:g} ms")
